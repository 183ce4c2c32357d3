package router

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/shardkey"
)

// configCollections names what configDocuments makes.
var configCollections = []string{"changelog", "chunks", "collections", "databases", "mongos", "settings", "shards", "version"}

// configInfos lists the collections of config as listCollections does.
func configInfos() []bson.Raw {
	infos := make([]bson.Raw, len(configCollections))
	for i, name := range configCollections {
		info := bsoncore.AppendStringElement(nil, "name", name)
		info = bsoncore.AppendStringElement(info, "type", "collection")
		info = bsoncore.AppendDocumentElement(info, "options", bsoncore.BuildDocument(nil))
		info = bsoncore.AppendDocumentElement(info, "info", bsoncore.BuildDocument(nil, bsoncore.AppendBooleanElement(nil, "readOnly", true)))
		infos[i] = bson.Raw(bsoncore.BuildDocument(nil, info))
	}
	return infos
}

// configDocuments makes a collection of config (mongos-behaviour §10.5); one that is not known is empty.
func (r *Router) configDocuments(ctx context.Context, coll string) ([]bson.Raw, error) {
	snap := r.cfg.Table.View().Catalog
	var docs []any
	switch coll {
	case "version":
		docs = []any{bson.D{{Key: "_id", Value: 1}, {Key: "minCompatibleVersion", Value: 5}, {Key: "currentVersion", Value: 6}, {Key: "clusterId", Value: snap.ClusterID}}}
	case "shards":
		for _, b := range r.cfg.Backends.All() {
			docs = append(docs, bson.Raw(r.shardDoc(b.ID())))
		}
	case "databases":
		for _, name := range sorted(snap.Databases) {
			d := snap.Database(name)
			if d == nil {
				continue
			}
			docs = append(docs, bson.D{{Key: "_id", Value: name}, {Key: "primary", Value: d.Primary}, {Key: "partitioned", Value: true},
				{Key: "version", Value: bson.D{{Key: "uuid", Value: d.UUID}, {Key: "timestamp", Value: stamp(d.Created)}, {Key: "lastMod", Value: 1}}}})
		}
	case "collections":
		for _, ns := range sorted(snap.Maps) {
			if m := snap.Maps[ns]; m.Sharded() {
				docs = append(docs, collectionDoc(m, snap.Collections[ns]))
			}
		}
	case "chunks":
		for _, ns := range sorted(snap.Maps) {
			if m := snap.Maps[ns]; m.Sharded() {
				docs = append(docs, chunkDocs(m)...)
			}
		}
	case "settings":
		docs = r.settingDocs(snap)
	case "mongos":
		all, err := r.cfg.Catalog.AllMongos(ctx)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		own := catalog.Mongos{Name: r.cfg.Server, Created: r.started, Ping: now, Up: int64(now.Sub(r.started).Seconds()), Waiting: true, Version: r.version(), FQDNs: bson.A{}}
		docs = append(docs, own) // with or without an entry in the catalog
		for _, m := range all {
			if m.Name != own.Name {
				docs = append(docs, m)
			}
		}
	case "changelog":
		return r.changelog(ctx)
	}
	return marshalAll(docs)
}

// settingDocs are the documents of config.settings.
func (r *Router) settingDocs(snap *catalog.Snapshot) []any {
	mode := "full"
	if snap.BalancerStopped {
		mode = "off"
	}
	docs := []any{bson.D{{Key: "_id", Value: "balancer"}, {Key: "mode", Value: mode}, {Key: "stopped", Value: snap.BalancerStopped}},
		bson.D{{Key: "_id", Value: "chunksize"}, {Key: "value", Value: float64(r.cfg.Reshaper.MaxPartitionBytes("")) / (1 << 20)}}}
	for _, s := range []struct {
		id string
		to catalog.Switch
	}{{"autosplit", snap.AutoSplit}, {"automerge", snap.AutoMerge}} {
		if s.to != catalog.SwitchUnset {
			docs = append(docs, bson.D{{Key: "_id", Value: s.id}, {Key: "enabled", Value: s.to == catalog.SwitchOn}})
		}
	}
	return docs
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func marshalAll(docs []any) ([]bson.Raw, error) {
	out := make([]bson.Raw, len(docs))
	for i, d := range docs {
		if raw, ok := d.(bson.Raw); ok {
			out[i] = raw
			continue
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			return nil, err
		}
		out[i] = raw
	}
	return out, nil
}

func stamp(t time.Time) bson.Timestamp { return bson.Timestamp{T: uint32(t.Unix()), I: 1} }

func collectionDoc(m *catalog.Map, set catalog.CollectionSettings) bson.D {
	d := bson.D{{Key: "_id", Value: m.NS}, {Key: "lastmodEpoch", Value: m.Epoch}, {Key: "lastmod", Value: m.Created}, {Key: "timestamp", Value: stamp(m.Created)},
		{Key: "uuid", Value: m.UUID}, {Key: "key", Value: m.Key.Raw()}, {Key: "unique", Value: false}, {Key: "noBalance", Value: set.NoBalance}}
	if set.MaxPartitionBytes > 0 {
		d = append(d, bson.E{Key: "maxChunkSizeBytes", Value: set.MaxPartitionBytes})
	}
	return d
}

// chunkDocs shows partitions as chunks: positions as NumberLong(position − 2^63), the ends as MinKey and MaxKey.
func chunkDocs(m *catalog.Map) []any {
	docs := make([]any, len(m.Partitions))
	for i, p := range m.Partitions {
		docs[i] = bson.D{{Key: "_id", Value: chunkID(m.UUID, p.Range)}, {Key: "uuid", Value: m.UUID},
			{Key: "min", Value: boundDoc(m.Key, p.Range, false)}, {Key: "max", Value: boundDoc(m.Key, p.Range, true)},
			{Key: "shard", Value: p.Backend}, {Key: "lastmod", Value: bson.Timestamp{T: uint32(m.V), I: uint32(i)}},
			{Key: "history", Value: bson.A{bson.D{{Key: "validAfter", Value: stamp(m.Created)}, {Key: "shard", Value: p.Backend}}}}}
	}
	return docs
}

func boundDoc(key *shardkey.Pattern, rg shardkey.Range, upper bool) bson.D {
	var v any
	switch {
	case upper && rg.Hi == 0:
		v = bson.MaxKey{}
	case upper:
		v = rg.Hi.Int64()
	case rg.Lo == 0:
		v = bson.MinKey{}
	default:
		v = rg.Lo.Int64()
	}
	return bson.D{{Key: key.Path(), Value: v}}
}

// chunkID is the same for the same range of the same collection, in every proxy.
func chunkID(uuid bson.Binary, rg shardkey.Range) (id bson.ObjectID) {
	b := append([]byte(nil), uuid.Data...)
	b = binary.BigEndian.AppendUint64(b, uint64(rg.Lo))
	b = binary.BigEndian.AppendUint64(b, uint64(rg.Hi))
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id
}

// maxChangelog bounds what is read of the history.
const maxChangelog = 2000

func (r *Router) changelog(ctx context.Context) ([]bson.Raw, error) {
	cur, err := r.cfg.Catalog.DB().Collection("changelog").Find(ctx, bson.D{},
		options.Find().SetSort(bson.D{{Key: "time", Value: -1}}).SetLimit(maxChangelog))
	if err != nil {
		return nil, err
	}
	var all []bson.Raw
	for cur.Next(ctx) {
		all = append(all, append(bson.Raw(nil), cur.Current...))
	}
	return all, cur.Err()
}
