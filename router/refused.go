package router

import (
	"context"

	"github.com/shardway/shardway/wire"
)

var _ = register(refusedCommands)

// refusedCommands are commands of mongos that this proxy knows and does not do. They are not unknown (59): shells would ask then
// whether this is a mongos at all.
func refusedCommands(*Router) []Command {
	const zones = "zones are not supported; moveChunk and moveRange place a partition"
	const reads = "run it on the backends themselves"
	var cmds []Command
	add := func(why string, admin bool, names ...string) {
		for _, name := range names {
			cmds = append(cmds, Command{Name: name, Admin: admin, Help: "refused: " + why, Run: func(context.Context, *Request) (Reply, error) {
				return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s is not supported through this proxy: %s", name, why)
			}})
		}
	}
	add(zones, true, "addShardToZone", "removeShardFromZone", "updateZoneKeyRange")
	add("a collection keeps its shard key", true, "reshardCollection", "refineCollectionShardKey", "abortReshardCollection", "commitReshardCollection",
		"cleanupReshardCollection")
	add("a collection stays sharded; copy it to one that is not", true, "unshardCollection", "abortUnshardCollection")
	add("movePrimary moves a database's unsharded collections, moveChunk and moveRange a sharded one's partitions", true, "moveCollection", "abortMoveCollection")
	add("balancerStop keeps partitions where they are, for all collections", true, "setAllowMigrations")
	add("count the values of the key with an aggregation; a hashed key spreads what has many", true, "analyzeShardKey", "configureQueryAnalyzer")
	add("set it on every backend, one after another", true, "setFeatureCompatibilityVersion")
	add("every proxy checks the maps it reads, and a partition's documents are checked whenever it is replaced", false, "checkMetadataConsistency")
	add("use an aggregation", false, "mapReduce")
	add(reads, true, "fsyncUnlock")
	return cmds
}
