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
// every partition ($collStats: of every backend), with the shard's name in it (mongos-behaviour §6.2), and then the rest of the pipeline.
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
		reply, err = r.aggregateBehind(ctx, q, c, parts, a, a.pipeline[1:], func(p *partition.Part) []bson.Raw {
			return []bson.Raw{a.pipeline[0], statsFields(stage, c, p)}
		})
		return err
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

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
