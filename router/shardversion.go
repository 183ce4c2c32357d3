package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{{Name: "getShardVersion", Admin: true, Help: "tells the version of a collection's map", Run: r.getShardVersion}}
})

// getShardVersion tells the version of the map this proxy routes by, as mongos does: for a collection or for a database (mongos-behaviour §10).
func (r *Router) getShardVersion(_ context.Context, q *Request) (Reply, error) {
	ns, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch(q.Name, q.First, "string")
	}
	db, coll := catalog.SplitNS(ns)
	if err := checkDB(db); err != nil {
		return Reply{}, err
	}
	view := r.cfg.Table.View()
	if coll == "" {
		d := view.Catalog.Database(db)
		if d == nil {
			return Reply{}, wire.Errorf(wire.NamespaceNotFound, "database %s not found", db)
		}
		return docReply(bson.D{{Key: "primaryShard", Value: d.Primary}, {Key: "shardingEnabled", Value: true},
			{Key: "version", Value: bson.D{{Key: "uuid", Value: d.UUID}, {Key: "timestamp", Value: stamp(d.Created)}, {Key: "lastMod", Value: 1}}}})
	}
	if err := checkCollection(db, coll); err != nil {
		return Reply{}, err
	}
	m := view.Catalog.Maps[ns]
	if !m.Sharded() {
		return Reply{}, wire.Errorf(wire.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	return docReply(bson.D{
		{Key: "version", Value: bson.Timestamp{T: uint32(m.V)}},
		{Key: "versionEpoch", Value: m.Epoch},
		{Key: "versionTimestamp", Value: stamp(m.Created)},
	})
}
