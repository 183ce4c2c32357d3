package admission_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/admission"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/backend/commands"
)

// server is what a scripted server says of itself.
type server struct {
	hello   backendtest.Hello
	version string
	// fcv is empty where getParameter is refused.
	fcv string
	// status answers connectionStatus.
	status backendtest.Answer
}

func (s server) start(t *testing.T) *backend.Backend {
	t.Helper()
	scripted := backendtest.New(t)
	scripted.SetHello(s.hello)
	scripted.SetScript(func(c backendtest.Command) backendtest.Answer {
		switch c.Name {
		case "buildInfo":
			return backendtest.OK(bson.E{Key: "version", Value: s.version})
		case "getParameter":
			if s.fcv == "" {
				return backendtest.Err(13, "Unauthorized", "not authorized on admin to execute command")
			}
			return backendtest.OK(bson.E{Key: "featureCompatibilityVersion", Value: bson.D{{Key: "version", Value: s.fcv}}})
		case "connectionStatus":
			if v, _ := c.Body.Lookup("showPrivileges").BooleanOK(); !v {
				return backendtest.Err(9, "FailedToParse", "the privileges were not asked for")
			}
			return s.status
		}
		return backendtest.OK()
	})
	b, err := backend.Open(t.Context(), backend.Config{ID: "b1", URI: scripted.URI(), SelectionTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.Close(ctx)
	})
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// user is a reply to connectionStatus for a user with privileges.
func user(privileges ...commands.Privilege) backendtest.Answer {
	list := bson.A{}
	for _, p := range privileges {
		resource := bson.D{{Key: "db", Value: p.Resource.DB}, {Key: "collection", Value: p.Resource.Collection}}
		switch {
		case p.Resource.Cluster:
			resource = bson.D{{Key: "cluster", Value: true}}
		case p.Resource.Any:
			resource = bson.D{{Key: "anyResource", Value: true}}
		}
		list = append(list, bson.D{{Key: "resource", Value: resource}, {Key: "actions", Value: p.Actions}})
	}
	// A server adds resources that say nothing of ordinary collections.
	list = append(list, bson.D{{Key: "resource", Value: bson.D{{Key: "system_buckets", Value: ""}}}, {Key: "actions", Value: bson.A{"find", "validate"}}})
	return status(bson.A{bson.D{{Key: "user", Value: "proxy"}, {Key: "db", Value: "admin"}}}, bson.A{bson.D{{Key: "role", Value: "r"}, {Key: "db", Value: "admin"}}}, list)
}

func status(users, roles, privileges bson.A) backendtest.Answer {
	return backendtest.OK(bson.E{Key: "authInfo", Value: bson.D{{Key: "authenticatedUsers", Value: users},
		{Key: "authenticatedUserRoles", Value: roles}, {Key: "authenticatedUserPrivileges", Value: privileges}}})
}

var open = status(bson.A{}, bson.A{}, bson.A{})

// without is a role less some actions.
func without(missing ...string) []commands.Privilege {
	var role []commands.Privilege
	for _, p := range commands.Role() {
		var kept []string
		for _, a := range p.Actions {
			drop := false
			for _, m := range missing {
				drop = drop || a+" on "+p.Resource.String() == m
			}
			if !drop {
				kept = append(kept, a)
			}
		}
		role = append(role, commands.Privilege{Resource: p.Resource, Actions: kept})
	}
	return role
}

// hello is a member of a set that announces a wire version.
func hello(wire int32) backendtest.Hello {
	return backendtest.Hello{SetName: "rs", MaxWireVersion: wire}
}

func TestExamineSaysWhatABackendIsAndWhatItLacks(t *testing.T) {
	standalone := backendtest.Standalone()
	standalone.MaxWireVersion = 21
	nobody := backendtest.Err(13, "Unauthorized", "Command connectionStatus requires authentication")
	for _, c := range []struct {
		name    string
		server  server
		catalog bool
		refused []string // words of the refusal; nil: none
		warned  []string // words of the warnings; nil: none
		want    admission.Finding
	}{
		{name: "6.0", server: server{hello(17), "6.0.20", "6.0", open}, want: admission.Finding{Version: "6.0.20", FCV: "6.0", Wire: 17, Set: "rs"}},
		{name: "7.0", server: server{hello(21), "7.0.14", "7.0", open}, want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs"}},
		{name: "8.0", server: server{hello(25), "8.0.4-rc1", "8.0", open}, want: admission.Finding{Version: "8.0.4-rc1", FCV: "8.0", Wire: 25, Set: "rs"}},
		{name: "older", server: server{hello(13), "5.0.31", "5.0", open}, refused: []string{"'b1'", "5.0", "maxWireVersion 13", "6.0"}},
		{name: "newer", server: server{hello(27), "8.2.1", "8.2", open}, warned: []string{"8.2.1", "6.0, 7.0, 8.0"}, want: admission.Finding{Version: "8.2.1", FCV: "8.2", Wire: 27, Set: "rs"}},
		{name: "between", server: server{hello(20), "6.3.1", "6.3", open}, warned: []string{"6.3.1"}, want: admission.Finding{Version: "6.3.1", FCV: "6.3", Wire: 20, Set: "rs"}},
		{name: "an upgrade half done", server: server{hello(17), "6.0.20", "5.0", open}, warned: []string{"compatibility version is 5.0", "to 6.0"}, want: admission.Finding{Version: "6.0.20", FCV: "5.0", Wire: 17, Set: "rs"}},
		{name: "standalone", server: server{standalone, "7.0.14", "7.0", open}, warned: []string{"standalone", "transactions are refused"}, want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21}},
		{name: "no login", server: server{hello(21), "7.0.14", "", nobody}, refused: []string{"'b1'", "names no user"}},
		{name: "no login, and connectionStatus is answered", server: server{hello(21), "7.0.14", "", open}, refused: []string{"'b1'", "names no user"}},
		{name: "the page's role", server: server{hello(21), "7.0.14", "7.0", user(commands.Role()...)}, catalog: true, want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "everything", server: server{hello(21), "7.0.14", "7.0", user(commands.Privilege{Resource: commands.Resource{Any: true}, Actions: allActions()})}, catalog: true,
			want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "records of retried writes", server: server{hello(21), "7.0.14", "7.0", user(without("find on config.transactions")...)},
			refused: []string{"'b1'", "'proxy@admin'", "find on config.transactions", "repeated write", "docs/backends.md"}},
		{name: "oplog", server: server{hello(21), "7.0.14", "7.0", user(without("find on local.oplog.rs")...)}, refused: []string{"find on local.oplog.rs"}},
		{name: "records, on a standalone, which has none", server: server{standalone, "7.0.14", "7.0", user(without("find on config.transactions", "find on local.oplog.rs")...)},
			warned: []string{"standalone"}, want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, User: "proxy@admin"}},
		{name: "a spare one", server: server{hello(21), "7.0.14", "7.0", user(without("killop on the cluster")...)}, warned: []string{"'proxy@admin'", "killop on the cluster", "killOp", "13"},
			want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "a spare one, had on buckets only", server: server{hello(21), "7.0.14", "7.0", user(without("validate on all databases")...)}, warned: []string{"validate on all databases"},
			want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "parameters", server: server{hello(21), "7.0.14", "", user(without("getParameter on the cluster")...)}, warned: []string{"getParameter on the cluster"},
			want: admission.Finding{Version: "7.0.14", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "a server that does not tell", server: server{hello(21), "7.0.14", "7.0", status(bson.A{bson.D{{Key: "user", Value: "proxy"}, {Key: "db", Value: "admin"}}}, bson.A{bson.D{{Key: "role", Value: "root"}}}, bson.A{})},
			warned: []string{"not checked"}, want: admission.Finding{Version: "7.0.14", FCV: "7.0", Wire: 21, Set: "rs", User: "proxy@admin"}},
		{name: "a user without roles", server: server{hello(21), "7.0.14", "7.0", status(bson.A{bson.D{{Key: "user", Value: "proxy"}, {Key: "db", Value: "admin"}}}, bson.A{}, bson.A{})}, refused: []string{"find on config.transactions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.server.start(t)
			f, err := admission.Examine(t.Context(), b, c.catalog)
			if (err != nil) != (c.refused != nil) || err != nil && !admission.Refused(err) {
				t.Fatalf("got %v, refused for %v", err, c.refused)
			}
			for _, word := range c.refused {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the refusal does not say %q: %v", word, err)
				}
			}
			warnings := strings.Join(f.Warnings, "\n")
			for _, word := range c.warned {
				if !strings.Contains(warnings, word) {
					t.Errorf("no warning says %q: %s", word, warnings)
				}
			}
			if err != nil {
				return
			}
			if c.warned == nil && warnings != "" {
				t.Errorf("warned: %s", warnings)
			}
			c.want.Backend, c.want.Kind, c.want.Host, c.want.Warnings = "b1", b.Kind(), b.HostString(), f.Warnings
			if f.Version != c.want.Version || f.FCV != c.want.FCV || f.Wire != c.want.Wire || f.Set != c.want.Set || f.User != c.want.User || f.Kind != c.want.Kind || f.Host != c.want.Host {
				t.Errorf("found %+v, want %+v", f, c.want)
			}
		})
	}
}

func allActions() []string {
	var all []string
	for _, p := range commands.Role() {
		all = append(all, p.Actions...)
	}
	return all
}

// What lives in the catalog's database is asked of the user on the catalog's backend only.
func TestCatalogPrivilegesAreNeededWhereTheCatalogIs(t *testing.T) {
	var role []commands.Privilege
	for _, p := range commands.Role() {
		role = append(role, p)
		if p.Resource == (commands.Resource{}) { // per database instead of on all of them, but for the catalog's
			role[len(role)-1] = commands.Privilege{Resource: commands.Resource{DB: "shardway_member"}, Actions: p.Actions}
		}
	}
	b := server{hello(21), "7.0.14", "7.0", user(role...)}.start(t)
	for _, catalog := range []bool{true, false} {
		_, err := admission.Examine(t.Context(), b, catalog)
		if err == nil || strings.Contains(err.Error(), "on the database shardway ") != catalog {
			t.Errorf("catalog %v: %v", catalog, err)
		}
	}
}

// A backend that does not answer is not refused: it may be asked again.
func TestSilenceIsNoRefusal(t *testing.T) {
	b := server{hello(21), "7.0.14", "7.0", backendtest.Err(91, "ShutdownInProgress", "going down")}.start(t)
	if _, err := admission.Examine(t.Context(), b, false); err == nil || admission.Refused(err) {
		t.Errorf("got %v, want an error that is no refusal", err)
	}
}
