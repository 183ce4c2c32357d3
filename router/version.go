package router

import (
	"context"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// What the proxy announces is what it and every backend honours: a driver that is told a higher wire version, or a tool that is told a higher version, uses what some backend would refuse.

// wire70 is the wire version of 7.0, and the highest that the proxy announces.
const wire70 = 21

// newestVersion is the version that belongs to it.
const newestVersion = "7.0.0"

// versions are the first version of MongoDB that announces each wire version.
var versions = map[int32]string{
	9: "4.4.0", 13: "5.0.0", 14: "5.1.0", 15: "5.2.0", 16: "5.3.0", 17: "6.0.0", 18: "6.1.0", 19: "6.2.0", 20: "6.3.0", wire70: newestVersion,
}

// wireVersionOf is the highest wire version that the proxy and all of backends honour; those that have never answered are not asked.
func wireVersionOf(backends *backend.Set) int32 {
	v := int32(wire70)
	for _, b := range backends.All() {
		if w := b.MaxWireVersion(); w > 0 {
			v = min(v, w)
		}
	}
	return v
}

// AnnouncedVersion is the version of MongoDB that a proxy in front of backends announces: the lowest of theirs by their wire versions, so without what a bug-fix release adds, and no more than 7.0.0.
func AnnouncedVersion(backends *backend.Set) string {
	for w := wireVersionOf(backends); w > 0; w-- {
		if v, ok := versions[w]; ok {
			return v
		}
	}
	return versions[9]
}

// wireVersion is what hello announces.
func (r *Router) wireVersion() int32 { return wireVersionOf(r.cfg.Backends) }

// version is what buildInfo announces.
func (r *Router) version() string { return AnnouncedVersion(r.cfg.Backends) }

// versionArray is a version as buildInfo's versionArray tells it.
func versionArray(version string) bson.A {
	var out bson.A
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // versions has numbers only
		out = append(out, int32(n))
	}
	return append(out, int32(0))
}

// refuseExisting refuses, with the servers' own words, to create what exists. From 7.0 on a server finds nothing wrong with it if the options are the same; the fleet answers as its oldest
// backend does, wherever the collection is. It asks only if the collection's own backend would not refuse it by itself.
func (r *Router) refuseExisting(ctx context.Context, ns string, part *partition.Part) error {
	b := r.cfg.Backends.Get(part.Backend)
	if b == nil || b.MaxWireVersion() < wire70 || r.wireVersion() >= wire70 {
		return nil
	}
	info, err := r.describe(ctx, part.Home)
	if err == nil && info != nil {
		err = wire.Errorf(wire.NamespaceExists, "Collection already exists. NS: %s", ns)
	}
	return err
}
