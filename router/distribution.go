package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// aggregateDistribution answers pipelines that begin with $shardedDataDistribution, which the shell's sh.status() sends: how many
// documents and bytes of each sharded collection a backend holds. There are no orphans.
func (r *Router) aggregateDistribution(ctx context.Context, q *Request, _ string, a *aggArgs) (Reply, error) {
	if _, named := q.First.StringValueOK(); named || q.DB != "admin" {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "$shardedDataDistribution must be run against the 'admin' database with {aggregate: 1}")
	}
	if spec, ok := bsoncore.Document(a.pipeline[0]).Lookup("$shardedDataDistribution").DocumentOK(); !ok || len(spec) > 5 {
		return Reply{}, wire.Errorf(6789100, "The $shardedDataDistribution stage specification must be an empty object")
	}
	maps := r.cfg.Table.View().Catalog.Maps
	var docs []bson.Raw
	for _, ns := range sorted(maps) {
		if !maps[ns].Sharded() {
			continue
		}
		d, err := r.distributionOf(ctx, ns)
		if err != nil {
			return Reply{}, err
		}
		if d != nil {
			docs = append(docs, d)
		}
	}
	b, err := r.overDocuments(ctx, q, docs, a.pipeline[1:])
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: cursorReply("firstBatch", b, 0, q.DB+".$cmd.aggregate", false)}, nil
}

// distributionOf is one collection's document, nil where the collection is sharded no more.
func (r *Router) distributionOf(ctx context.Context, ns string) (doc bson.Raw, err error) {
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		doc = nil
		if !c.Sharded() {
			return nil
		}
		var order []string
		owned := map[string]*[2]int64{} // documents, bytes
		for _, p := range parts {
			reply, err := r.ask(ctx, p.Backend, p.DB, bson.D{{Key: "collStats", Value: p.Physical}})
			if err != nil {
				return err
			}
			o := owned[p.Backend]
			if o == nil {
				o = new([2]int64)
				owned[p.Backend] = o
				order = append(order, p.Backend)
			}
			for i, field := range []string{"count", "size"} {
				n, _ := bsoncore.Document(reply).Lookup(field).AsInt64OK()
				o[i] += n
			}
		}
		shards := bson.A{}
		for _, id := range order {
			shards = append(shards, bson.D{{Key: "shardName", Value: id}, {Key: "numOrphanedDocs", Value: 0}, {Key: "numOwnedDocuments", Value: owned[id][0]},
				{Key: "ownedSizeBytes", Value: owned[id][1]}, {Key: "orphanedSizeBytes", Value: 0}})
		}
		doc, err = bson.Marshal(bson.D{{Key: "ns", Value: ns}, {Key: "shards", Value: shards}})
		return err
	})
	return doc, err
}
