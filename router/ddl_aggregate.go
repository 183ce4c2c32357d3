package router

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// aggregateStats answers pipelines that begin with $collStats, $indexStats or $planCacheStats: one document, or several, from
// every backend ($planCacheStats: of every partition), with the shard's name in it (mongos-behaviour §6.2), and then the rest of the pipeline.
func (r *Router) aggregateStats(ctx context.Context, q *Request, ns string, a *aggArgs) (reply Reply, err error) {
	stage := firstStage(a.pipeline)
	if _, named := q.First.StringValueOK(); !named {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "%s is valid only on a collection", stage)
	}
	if a.explain {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "explain of a pipeline that begins with %s is not supported", stage)
	}
	err = r.within(ctx, ns, partition.Read, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errNoCollection(ns)
		}
		var err error
		if stage == "$collStats" && shareBackend(parts) {
			reply, err = r.collStatsBehind(ctx, q, c, parts, a)
			return err
		}
		rest := a.pipeline[1:]
		if stage == "$indexStats" && shareBackend(parts) {
			rest = append(append([]bson.Raw(nil), indexStatsTogether...), rest...)
		}
		reply, err = r.aggregateBehind(ctx, q, c, parts, a, rest, func(p *partition.Part) []bson.Raw {
			return []bson.Raw{a.pipeline[0], statsFields(stage, c, p)}
		})
		return err
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

// indexStatsTogether are the stages that make one document of what the partitions on one backend say of an index: read as often as all together, and
// counted since the first of them began.
var indexStatsTogether = func() []bson.Raw {
	var stages []bson.Raw
	for _, stage := range []bson.D{
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "shard", Value: "$shard"}, {Key: "name", Value: "$name"}}},
			{Key: "first", Value: bson.D{{Key: "$first", Value: "$$ROOT"}}},
			{Key: "ops", Value: bson.D{{Key: "$sum", Value: "$accesses.ops"}}},
			{Key: "since", Value: bson.D{{Key: "$min", Value: "$accesses.since"}}},
		}}},
		{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{"$first",
			bson.D{{Key: "accesses", Value: bson.D{{Key: "ops", Value: "$ops"}, {Key: "since", Value: "$since"}}}}}}}}},
	} {
		raw, err := bson.Marshal(stage)
		if err != nil {
			panic(err)
		}
		stages = append(stages, raw)
	}
	return stages
}()

// statsFields is the stage behind a partition's statistics that gives them what mongos does: the shard's name, and the
// client's namespace where there is one.
func statsFields(stage string, c *partition.Collection, p *partition.Part) bson.Raw {
	literal := func(dst []byte, field, s string) []byte {
		return bsoncore.AppendDocumentElement(dst, field, bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$literal", s)))
	}
	fields := literal(nil, "shard", p.Backend)
	if stage == "$collStats" {
		fields = literal(fields, "ns", c.NS)
	}
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$set", bsoncore.BuildDocument(nil, fields))))
}
