package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
)

// entries are the log's lines with a message.
func entries(log, message string) (found []map[string]any) {
	for line := range strings.Lines(log) {
		entry := map[string]any{}
		if json.Unmarshal([]byte(line), &entry) == nil && entry["message"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// old is a scripted server of an unsupported version.
func old(t *testing.T, maxWire int32) *backendtest.Server {
	t.Helper()
	s := backendtest.New(t)
	s.SetHello(backendtest.Hello{SetName: "rs", MaxWireVersion: maxWire})
	return s
}

func TestServeLogsWhatItMet(t *testing.T) {
	set, alone := fleettest.Start(t, 1), fleettest.Start(t, 1, fleettest.Standalone)
	args := backendArgs(set.Servers[0], alone.Servers[0])
	p := start(t, append([]string{"serve"}, args...)...)
	p.logged(t, "listening")
	met := map[any]map[string]any{}
	for _, e := range entries(p.stderr.String(), "met a backend") {
		met[e["backend"]] = e
	}
	if len(met) != 2 {
		t.Fatalf("met %v", met)
	}
	for id, want := range map[string]map[string]any{
		"b1": {"kind": "replica set", "set": set.Servers[0].SetName(), "accessControl": false},
		"b2": {"kind": "standalone", "set": "", "accessControl": false, "host": alone.Servers[0].Addr()},
	} {
		for key, value := range want {
			if met[id][key] != value {
				t.Errorf("%s of %s is %v, want %v", key, id, met[id][key], value)
			}
		}
		if version, _ := met[id]["version"].(string); len(strings.Split(version, ".")) < 3 {
			t.Errorf("the version of %s is %v", id, met[id]["version"])
		}
		if wire, _ := met[id]["maxWireVersion"].(float64); wire < 17 {
			t.Errorf("the wire version of %s is %v", id, met[id]["maxWireVersion"])
		}
	}
	text := p.stderr.String()
	if !strings.Contains(text, "it is a standalone: transactions are refused there") {
		t.Error("the log does not say what is not done on a standalone")
	}
	p.terminate(t)

	out, _, err := run(t, append([]string{"serve", "--check"}, args...)...)
	for _, want := range []string{"the configuration is valid", "backend 'b1' is a replica set", "backend 'b2' is a standalone", "transactions are refused", "without access control"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("--check: %v, %q does not say %q", err, out, want)
		}
	}
}

// A server that is too old ends the start, whether it has the catalog or not, and even where the driver does not speak to it.
func TestServeRefusesOldServers(t *testing.T) {
	f := fleettest.Start(t, 1)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"catalog":            {[]string{"--backend", "b1=" + old(t, 13).URI()}, []string{"'b1'", "MongoDB 5.0", "maxWireVersion 13", "6.0"}},
		"another":            {[]string{"--backend", "b1=" + f.Servers[0].URI(), "--backend", "b2=" + old(t, 9).URI()}, []string{"'b2'", "MongoDB 4.4", "6.0"}},
		"too old to be read": {[]string{"--backend", "b1=" + old(t, 6).URI()}, []string{"'b1'", "MongoDB 3.6", "6.0"}},
	} {
		args := append([]string{"--catalog", "b1", "--listen", "127.0.0.1:0", "--pool-selection-timeout", "5s"}, c.args...)
		for _, how := range []string{"serve", "serve --check"} {
			_, errs, err := run(t, append(strings.Fields(how), args...)...)
			for _, want := range c.want {
				if err == nil || !strings.Contains(errs, want) {
					t.Errorf("%s, %s: %v, %q does not say %q", name, how, err, errs, want)
				}
			}
		}
	}
}

// unprivileged answers as a server does whose user may do nothing but read.
func unprivileged(c backendtest.Command) backendtest.Answer {
	switch c.Name {
	case "buildInfo":
		return backendtest.OK(bson.E{Key: "version", Value: "7.0.14"})
	case "getParameter":
		return backendtest.Err(13, "Unauthorized", "not authorized on admin to execute command")
	case "connectionStatus":
		var reply bson.E
		reply.Key = "authInfo"
		reply.Value = bson.D{{Key: "authenticatedUsers", Value: bson.A{bson.D{{Key: "user", Value: "reader"}, {Key: "db", Value: "admin"}}}},
			{Key: "authenticatedUserRoles", Value: bson.A{bson.D{{Key: "role", Value: "readAnyDatabase"}, {Key: "db", Value: "admin"}}}},
			{Key: "authenticatedUserPrivileges", Value: bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: ""}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"find", "changeStream"}}}}}}
		return backendtest.OK(reply)
	}
	return backendtest.OK()
}

func TestServeRefusesAUserWithoutPrivileges(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(unprivileged)
	for _, how := range []string{"serve", "serve --check"} {
		_, errs, err := run(t, append(strings.Fields(how), "--listen", "127.0.0.1:0", "--backend", "b1="+s.URI())...)
		for _, want := range []string{"'b1'", "'reader@admin'", "find on config.transactions", "find on local.oplog.rs", "insert on the database shardway", "docs/backends.md"} {
			if err == nil || !strings.Contains(errs, want) {
				t.Errorf("%s: %v, %q does not say %q", how, err, errs, want)
			}
		}
	}
}

// A server with access control is used as the user of the connection string, and refused where that names none.
func TestServeOnAServerWithAccessControl(t *testing.T) {
	f := fleettest.Start(t, 1, func(o *fleet.Options) { o.Args = append(o.Args, "--auth") })
	s := f.Servers[0]
	if _, err := s.Command(t.Context(), bson.D{{Key: "createUser", Value: "proxy"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{"root"}}, {Key: "$db", Value: "admin"}}); err != nil {
		t.Skipf("%s does not let the first user be created from the loopback: %v", f.Program().Kind, err)
	}
	_, errs, err := run(t, append([]string{"serve"}, backendArgs(s)...)...)
	if err == nil || !strings.Contains(errs, "names no user") {
		t.Errorf("without a user: %v, %q", err, errs)
	}
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--backend", "b1=mongodb://proxy:secret@"+s.Addr()+"/?authSource=admin")
	if e := p.logged(t, "met a backend"); e["accessControl"] != true || e["user"] != "proxy@admin" {
		t.Errorf("met %v", e)
	}
	p.logged(t, "listening")
	p.terminate(t)
}

// A backend that was down at the start is looked at when it comes, and not used when it is too old; one that a client brings is
// refused with the same sentence.
func TestBackendsThatComeLaterAreLookedAt(t *testing.T) {
	f := fleettest.Start(t, 1)
	late := old(t, 13)
	late.Stop()
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--catalog", "b1", "--backend", "b1="+f.Servers[0].URI(), "--backend", "b2="+late.URI(),
		"--pool-selection-timeout", "1s", "--pool-heartbeat-interval", "500ms", "--reshape-lease", "2s", "--reshape-lease-renew", "500ms")
	addr := p.logged(t, "listening")["address"].(string)
	if n := len(entries(p.stderr.String(), "a backend is not used")); n != 0 {
		t.Errorf("a backend that is down is refused: %d lines", n)
	}
	late.Restart()
	e := p.logged(t, "a backend is not used")
	if text, _ := e["error"].(string); e["backend"] != "b2" || !strings.Contains(text, "MongoDB 5.0") {
		t.Errorf("the log says %v", e)
	}
	client := connect(t, "mongodb://"+addr+"/")
	err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "addShard", Value: "rs/" + old(t, 9).Addr()}, {Key: "name", Value: "b3"}}).Err()
	if err == nil || !strings.Contains(err.Error(), "'b3'") || !strings.Contains(err.Error(), "MongoDB 4.4") {
		t.Errorf("addShard of an old server: %v", err)
	}
	for _, c := range late.Received() {
		if bytes.Contains(c.Body, []byte("shardway_member")) {
			t.Errorf("the refused backend was sent %v", c.Body)
		}
	}
	p.terminate(t)
}

// A refusal is logged once, not at every look.
func TestRefusalIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	s := backendtest.New(t)
	s.SetScript(unprivileged)
	b, err := backend.Open(t.Context(), backend.Config{ID: "b1", URI: s.URI()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := newAdmission("b1", zerolog.New(&log))
	for range 3 {
		if err := a.admit(context.Background(), b); err == nil {
			t.Fatal("it is admitted")
		}
	}
	if n := len(entries(log.String(), "a backend is not used")); n != 1 {
		t.Errorf("%d lines", n)
	}
	if _, err := b.Run(t.Context(), "admin", bson.D{{Key: "ping", Value: 1}}); err == nil || !strings.Contains(err.Error(), "find on config.transactions") {
		t.Errorf("a request to the refused backend: %v, want the refusal", err)
	}
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "connectionStatus" {
			return backendtest.OK(bson.E{Key: "authInfo", Value: bson.D{}})
		}
		return backendtest.OK(bson.E{Key: "version", Value: "7.0.14"})
	})
	before := len(s.Received())
	for range 3 {
		if err := a.admit(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(entries(log.String(), "met a backend")); n != 1 {
		t.Errorf("met %d times", n)
	}
	asked := len(s.Received()) - before
	if _, err := b.Run(t.Context(), "admin", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Errorf("a request to the admitted backend: %v", err)
	}
	if asked != 3 {
		t.Errorf("it was asked %d times, want its three questions once", asked)
	}
}
