package merge

import "github.com/shardway/shardway/wire"

// known are MongoDB's stages that are not done over several partitions; any other name is no stage at all.
var known = map[string]bool{
	"$bucket": true, "$bucketAuto": true, "$changeStream": true, "$changeStreamSplitLargeEvent": true, "$collStats": true,
	"$currentOp": true, "$densify": true, "$documents": true, "$facet": true, "$fill": true, "$geoNear": true, "$graphLookup": true,
	"$indexStats": true, "$listClusterCatalog": true, "$listLocalSessions": true, "$listSampledQueries": true, "$listSearchIndexes": true,
	"$listSessions": true, "$lookup": true, "$merge": true, "$out": true, "$planCacheStats": true, "$querySettings": true,
	"$queryStats": true, "$rankFusion": true, "$sample": true, "$scoreFusion": true, "$search": true, "$searchMeta": true,
	"$setWindowFields": true, "$shardedDataDistribution": true, "$unionWith": true, "$vectorSearch": true,
}

// unsupported refuses a stage by name: 115 for one that MongoDB has, its own 40324 for what it has not.
func unsupported(name string) error {
	if !known[name] && !perDocument[name] && !afterMerge[name] {
		return wire.Errorf(40324, "Unrecognized pipeline stage name: '%s'", name)
	}
	return wire.Errorf(wire.CommandNotSupported,
		"the stage %s is not supported over several partitions; put a $match on the shard key first, or use it on an unsharded collection", name)
}
