// Package admission looks at a backend before the product uses it: which server it is, and whether its version is supported
// and the privileges there suffice.
package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/commands"
	"github.com/shardway/shardway/wire"
)

// Supported are the server versions that the product is made for and tested against.
var Supported = []string{"6.0", "7.0", "8.0"}

// oldestWire is the maxWireVersion of 6.0; servers below do not take all that the product sends.
const oldestWire = 17

// Finding is what a look at a backend has shown.
type Finding struct {
	Backend string
	Kind    backend.Kind
	// Set is the replica set's name; empty on a standalone.
	Set, Host string
	// Version is what buildInfo says; FCV is the feature compatibility version, empty where it cannot be read.
	Version, FCV string
	// Wire is the lowest maxWireVersion of the members.
	Wire int32
	// User is who the product is on the backend, "user@db"; empty without access control.
	User string
	// Warnings say what the product will not do there, or what is not as it should be.
	Warnings []string
}

// Examine looks at a backend that has been reached; hasCatalog says that the catalog lives on it. An error is a refusal, a
// *wire.Error with code 188 IncompatibleServerVersion or 13 Unauthorized, or says that the backend could not be asked:
// Refused tells them apart.
func Examine(ctx context.Context, b *backend.Backend, hasCatalog bool) (Finding, error) {
	ctx = backend.Examining(ctx)
	lowest, highest, oldest := b.WireVersions()
	f := Finding{Backend: b.ID(), Kind: b.Kind(), Set: b.SetName(), Host: b.HostString(), Wire: lowest}
	if err := CheckWire(b); err != nil {
		return f, err
	}
	info, err := b.Run(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return f, f.unanswered("buildInfo", err)
	}
	f.Version, _ = info.Lookup("version").StringValueOK()
	if !slices.Contains(Supported, series(f.Version)) {
		f.warn("version %s is not one that this release is tested with (%s); what the server does differently is not known here", f.Version, strings.Join(Supported, ", "))
	}
	if highest != lowest {
		f.warn("its members announce the wire versions %d (%s) to %d: until all run one version, what only the newer ones know is not used", lowest, oldest, highest)
	}
	if f.Kind == backend.KindStandalone {
		f.warn("it is a standalone: transactions are refused there (20), the memory of retried writes ends with the proxy, " +
			"and writes to a partition wait while it is split or moved")
	}
	if err := f.access(ctx, b, hasCatalog); err != nil {
		return f, err
	}
	if f.FCV != "" && !slices.Contains(Supported, f.FCV) && below(f.FCV, Supported[0]) {
		f.warn("its feature compatibility version is %s: raise it to %s (setFeatureCompatibilityVersion)", f.FCV, series(f.Version))
	}
	return f, nil
}

// CheckWire refuses a backend one of whose servers is older than the oldest supported version. Before a server has answered it
// refuses nothing.
func CheckWire(b *backend.Backend) error {
	lowest, _, oldest := b.WireVersions()
	if lowest == 0 || lowest >= oldestWire {
		return nil
	}
	return wire.Errorf(wire.IncompatibleServerVersion, "backend '%s': its server %s runs MongoDB %s (maxWireVersion %d), and the oldest version that is supported is %s: upgrade it",
		b.ID(), oldest, releaseOf(lowest), lowest, Supported[0])
}

// Refused reports whether an error of Examine is a refusal, which asking again does not change.
func Refused(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && (e.Code == wire.IncompatibleServerVersion || e.Code == wire.Unauthorized)
}

// access finds out who the product is on the backend and what it may do there.
func (f *Finding) access(ctx context.Context, b *backend.Backend, hasCatalog bool) error {
	fcv, fcvErr := b.Run(ctx, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
	if fcvErr == nil {
		f.FCV, _ = fcv.Lookup("featureCompatibilityVersion", "version").StringValueOK()
	}
	status, err := b.Run(ctx, "admin", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if code(err) == wire.Unauthorized {
		return f.nobody()
	}
	if err != nil {
		return f.unanswered("connectionStatus", err)
	}
	var reply connectionStatus
	if err := bson.Unmarshal(status, &reply); err != nil {
		return f.unanswered("connectionStatus", err)
	}
	info := reply.AuthInfo
	if len(info.Users) == 0 {
		if code(fcvErr) == wire.Unauthorized {
			return f.nobody()
		}
		return nil // no access control
	}
	f.User = info.Users[0].User + "@" + info.Users[0].DB
	if len(info.Privileges) == 0 && len(info.Roles) > 0 {
		f.warn("it does not tell the privileges of user '%s', so that they are not checked", f.User)
		return nil
	}
	fatal, limits := commands.Missing(info.privileges(), commands.Backend{HasCatalog: hasCatalog, Standalone: f.Kind == backend.KindStandalone})
	for _, l := range limits {
		f.warn("user '%s' lacks the privilege %s (%s): %s", f.User, l.Privilege, each(l.Rows, func(r commands.Row) string { return r.Name }),
			each(l.Rows, func(r commands.Row) string { return r.Without }))
	}
	if len(fatal) > 0 {
		return f.lacks(fatal)
	}
	return nil
}

// lacks refuses a backend whose user misses privileges.
func (f *Finding) lacks(fatal []commands.Lack) error {
	var all []string
	for _, l := range fatal {
		all = append(all, fmt.Sprintf("%s (%s: %s)", l.Privilege, l.Rows[0].Name, l.Rows[0].Why))
	}
	return wire.Errorf(wire.Unauthorized, "backend '%s': user '%s' lacks the privileges: %s. docs/backends.md has a role with all that is needed", f.Backend, f.User, strings.Join(all, "; "))
}

func (f *Finding) nobody() error {
	return wire.Errorf(wire.Unauthorized, "backend '%s' has access control, and its connection string names no user; docs/backends.md has the role that one needs", f.Backend)
}

func (f *Finding) unanswered(command string, err error) error {
	return fmt.Errorf("backend '%s' does not answer %s: %w", f.Backend, command, err)
}

func (f *Finding) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}

// each joins what f says of the rows, each word once.
func each(rows []commands.Row, f func(commands.Row) string) string {
	var all []string
	for _, r := range rows {
		if word := f(r); !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return strings.Join(all, ", ")
}

// code is a server's error code, 0 for no error and for one that is not a server's.
func code(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// connectionStatus is the reply to the command.
type connectionStatus struct {
	AuthInfo authInfo `bson:"authInfo"`
}

type authInfo struct {
	Users []struct {
		User string `bson:"user"`
		DB   string `bson:"db"`
	} `bson:"authenticatedUsers"`
	Roles      []bson.Raw `bson:"authenticatedUserRoles"`
	Privileges []struct {
		Resource struct {
			Cluster    bool    `bson:"cluster"`
			Any        bool    `bson:"anyResource"`
			DB         *string `bson:"db"`
			Collection *string `bson:"collection"`
		} `bson:"resource"`
		Actions []string `bson:"actions"`
	} `bson:"authenticatedUserPrivileges"`
}

// privileges are those on resources that the table knows; others, such as buckets of time series, cover nothing of it.
func (i *authInfo) privileges() []commands.Privilege {
	var all []commands.Privilege
	for _, p := range i.Privileges {
		r := commands.Resource{Cluster: p.Resource.Cluster, Any: p.Resource.Any}
		if p.Resource.DB != nil && p.Resource.Collection != nil {
			r.DB, r.Collection = *p.Resource.DB, *p.Resource.Collection
		} else if !r.Cluster && !r.Any {
			continue
		}
		all = append(all, commands.Privilege{Resource: r, Actions: p.Actions})
	}
	return all
}
