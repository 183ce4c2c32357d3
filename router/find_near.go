package router

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

// notWithNear are the fields of a find that an aggregate, which asks the partitions for the nearest documents, does not have.
var notWithNear = []string{"min", "max", "returnKey", "showRecordId", "tailable", "awaitData", "oplogReplay"}

// findNear answers a find of the nearest documents over several partitions, in the order of their distance.
func (r *Router) findNear(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, a *findArgs, near *merge.Near) (Reply, error) {
	for _, option := range notWithNear {
		if v, err := bsoncore.Document(q.Msg.Body).LookupErr(option); err == nil && (v.Type == bsoncore.TypeEmbeddedDocument && len(v.Data) > 5 || isTrue(v)) {
			return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s with $near is not supported across partitions; give a filter on the shard key", option)
		}
	}
	if a.limit > math.MaxInt64-a.skip {
		return Reply{}, wire.Errorf(wire.Overflow, "sum of limit and skip cannot be represented as a 64-bit integer, limit: %d, skip: %d", a.limit, a.skip)
	}
	plan, err := merge.PlanNear(near, a.projection, a.skip, a.limit)
	if err != nil {
		return Reply{}, err
	}
	f := newFanout(r, q, c.Name, plan.Sort, plan.Projection)
	f.skip, f.limit, f.plain = plan.Skip, plan.Limit, true
	f.batchSize = min(a.batchSize, maxBatch)
	as := *q
	as.Command = r.commands["aggregate"]
	passed := func(key []byte) bool {
		switch string(key) {
		case "hint", "let", "collation", "allowDiskUse", "comment", "readConcern":
			return true
		}
		return false
	}
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, as.appendFor(nil, p, true, func(key []byte) bool { return !passed(key) }, func(d []byte) []byte {
			return appendCursorArg(appendPipeline(d, plan.Shard), firstOf(f.batchSize, len(parts)))
		}))
	}
	return r.openFind(ctx, q, c, f, parts, msgs, a)
}
