package splitter

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// collectionInfo is what a physical collection is: its options and indexes.
type collectionInfo struct {
	exists    bool
	documents bool
	view      bool
	// uuid is the collection's; a fresh one where the server tells none, which hasUUID says.
	uuid    bson.Binary
	hasUUID bool
	options bson.D
	indexes []bson.D
}

// inspect looks at an unsharded collection on its backend.
func (s *Splitter) inspect(ctx context.Context, c *partition.Collection) (collectionInfo, error) {
	if len(c.Parts) == 0 {
		return collectionInfo{uuid: catalog.NewUUID()}, nil
	}
	info, err := s.inspectHome(ctx, c.Parts[0].Home)
	if err != nil || !info.exists || info.view {
		return info, err
	}
	info.documents, err = s.any(ctx, c.Parts[0].Home, bson.D{})
	return info, err
}

func (s *Splitter) inspectHome(ctx context.Context, h partition.Home) (collectionInfo, error) {
	info := collectionInfo{uuid: catalog.NewUUID()}
	body, err := s.run(ctx, h, bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: h.Physical}}}})
	if err != nil {
		return info, err
	}
	var list struct {
		Cursor struct {
			Batch []struct {
				Type    string `bson:"type"`
				Options bson.D `bson:"options"`
				Info    struct {
					UUID bson.Binary `bson:"uuid"`
				} `bson:"info"`
			} `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	if err := bson.Unmarshal(body, &list); err != nil {
		return info, err
	}
	if len(list.Cursor.Batch) == 0 {
		return info, nil
	}
	row := list.Cursor.Batch[0]
	info.exists, info.view, info.options = true, row.Type == "view", row.Options
	if len(row.Info.UUID.Data) == 16 {
		info.uuid, info.hasUUID = row.Info.UUID, true
	}
	if info.view {
		return info, nil
	}
	info.indexes, err = s.indexes(ctx, h)
	if info.collation() != nil {
		info.indexes = explicitlySimple(info.indexes)
	}
	return info, err
}

// collation is the default collation; nil for the simple one.
func (i *collectionInfo) collation() bson.D {
	coll, _ := field(i.options, "collation").(bson.D)
	if field(coll, "locale") == "simple" {
		return nil
	}
	return coll
}

// timeseries are a time-series collection's options as create takes them: the span that goes with a granularity follows from it.
func timeseries(options any) any {
	d, _ := options.(bson.D)
	if field(d, "granularity") == nil {
		return options
	}
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return e.Key == "bucketMaxSpanSeconds" || e.Key == "bucketRoundingSeconds" })
}

// explicitlySimple says of the indexes that compare simply that they do: made without a word, they would take the collection's default.
func explicitlySimple(indexes []bson.D) []bson.D {
	out := make([]bson.D, len(indexes))
	for i, ix := range indexes {
		out[i] = ix
		if field(ix, "collation") == nil {
			out[i] = append(ix[:len(ix):len(ix)], bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})
		}
	}
	return out
}

// indexes lists a collection's indexes but the one on _id, whatever it is called.
func (s *Splitter) indexes(ctx context.Context, h partition.Home) ([]bson.D, error) {
	body, err := s.run(ctx, h, bson.D{{Key: "listIndexes", Value: h.Physical}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 1000}}}})
	if err != nil {
		return nil, err
	}
	var list struct {
		Cursor struct {
			Batch []bson.D `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	if err := bson.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	var out []bson.D
	for _, ix := range list.Cursor.Batch {
		if field(ix, "name") != "_id_" && field(ix, "clustered") != true {
			out = append(out, ix)
		}
	}
	return out, nil
}

func field(d bson.D, name string) any {
	for _, e := range d {
		if e.Key == name {
			return e.Value
		}
	}
	return nil
}

// run runs a command on a home's backend and database.
func (s *Splitter) run(ctx context.Context, h partition.Home, cmd bson.D) (bson.Raw, error) {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", h.Backend)
	}
	return b.Run(ctx, h.DB, cmd)
}

// any reports whether a document matches a filter.
func (s *Splitter) any(ctx context.Context, h partition.Home, filter bson.D) (bool, error) {
	body, err := s.run(ctx, h, bson.D{{Key: "find", Value: h.Physical}, {Key: "filter", Value: filter}, {Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}})
	if err != nil {
		return false, err
	}
	_, err = body.LookupErr("cursor", "firstBatch", "0")
	return err == nil, nil
}

// shardable refuses what cannot be sharded (mongos-behaviour §4.4).
func (i *collectionInfo) shardable(ns string, key shardkey.Pattern) error {
	switch {
	case i.view:
		return wire.Errorf(wire.CommandNotSupportedOnView, "Namespace %s is a view: views cannot be sharded", ns)
	case field(i.options, "capped") == true:
		return wire.Errorf(wire.InvalidOptions, "can't shard a capped collection: %s", ns)
	case field(i.options, "timeseries") != nil:
		return wire.Errorf(wire.CommandNotSupported, "time-series collections cannot be sharded yet: %s", ns)
	}
	if i.collation() != nil {
		return wire.Errorf(wire.BadValue, "the default collation of %s is not the simple one; Shardway shards collections with simple collation only", ns)
	}
	for _, ix := range i.indexes {
		if field(ix, "unique") == true && !UniqueAllowed(ix, key) {
			return wire.Errorf(wire.InvalidOptions, "can't shard collection '%s' with unique index %v: it does not contain the shard key %s", ns, field(ix, "name"), key)
		}
	}
	return nil
}

// differs reports whether indexes, but for when documents expire, or options are not the same.
func (i *collectionInfo) differs(o collectionInfo) bool {
	return !reflect.DeepEqual(byName(i.indexes), byName(o.indexes)) || !reflect.DeepEqual(i.options, o.options)
}

// byName are indexes by name, without when documents expire.
func byName(indexes []bson.D) map[string]bson.D {
	m := make(map[string]bson.D, len(indexes))
	for _, ix := range withoutExpiry(indexes) {
		name, _ := field(ix, "name").(string)
		m[name] = ix
	}
	return m
}

// UniqueAllowed reports whether a unique index (a document as listIndexes gives it) can be kept unique across partitions: it
// contains every field of the shard key and compares simply, so that equal entries always meet in one partition.
func UniqueAllowed(index bson.D, key shardkey.Pattern) bool {
	if coll, ok := field(index, "collation").(bson.D); ok && field(coll, "locale") != "simple" {
		return false
	}
	keys, _ := field(index, "key").(bson.D)
	for _, f := range key.Fields() {
		if field(keys, f) == nil {
			return false
		}
	}
	return true
}

// indexed reports whether an index begins with the key's field, hashed or not, so that documents are found by it.
func (i *collectionInfo) indexed(key shardkey.Pattern) bool {
	if key.Path() == "_id" {
		return true
	}
	for _, ix := range i.indexes {
		keys, _ := field(ix, "key").(bson.D)
		partial := field(ix, "partialFilterExpression") != nil || field(ix, "sparse") == true || field(ix, "hidden") == true
		if len(keys) > 0 && keys[0].Key == key.Path() && !partial {
			return true
		}
	}
	return false
}

// noArrays refuses documents with an array on the key's path (61 ShardKeyNotFound).
func (s *Splitter) noArrays(ctx context.Context, h partition.Home, key shardkey.Pattern) error {
	path := ""
	for _, part := range strings.Split(key.Path(), ".") {
		if path != "" {
			path += "."
		}
		path += part
		found, err := s.any(ctx, h, bson.D{{Key: path, Value: bson.D{{Key: "$type", Value: "array"}}}})
		if err != nil {
			return err
		}
		if found {
			return wire.Errorf(wire.ShardKeyNotFound, "a document has an array at '%s', on the path of the shard key %s", path, key)
		}
	}
	return nil
}

// create makes a physical collection with the options and indexes of another, and with an index on
// the shard key if there is one. It returns when a majority has the collection as it is to be, with
// how a server lists it. It does not repeat the making: whoever meets an error that passes begins
// anew under another name.
func (s *Splitter) create(ctx context.Context, h partition.Home, like collectionInfo, key *shardkey.Pattern) (made collectionInfo, err error) {
	cmd := bson.D{{Key: "create", Value: h.Physical}}
	for _, o := range like.options {
		switch o.Key {
		case "uuid", "autoIndexId", "writeConcern", "$db", "lsid", "comment", "maxTimeMS":
		case "timeseries":
			cmd = append(cmd, bson.E{Key: o.Key, Value: timeseries(o.Value)})
		default:
			cmd = append(cmd, o)
		}
	}
	if _, err := s.run(ctx, h, append(cmd, majority)); err != nil {
		return made, err
	}
	// Only now: making an index of a collection that a change of the primary has undone would make
	// it anew, without its options.
	if err := s.createIndexes(ctx, h, like.indexes); err != nil {
		return made, err
	}
	if key != nil && key.Path() != "_id" && !like.indexed(*key) {
		if err := s.createKeyIndex(ctx, h, *key); err != nil {
			return made, err
		}
	}
	if made, err = s.inspectHome(ctx, h); err != nil {
		return made, err
	}
	if !like.exists { // options that a client gave are listed as the server understands them
		like = collectionInfo{view: made.view, options: made.options, indexes: like.indexes}
	}
	if what := made.lacks(like, key); what != "" {
		return made, wire.Errorf(wire.OperationFailed, "backend '%s' has made '%s.%s' otherwise than it was told: %s", h.Backend, h.DB, h.Physical, what)
	}
	return made, nil
}

func (s *Splitter) createIndexes(ctx context.Context, h partition.Home, indexes []bson.D) error {
	if len(indexes) == 0 {
		return nil
	}
	var clean bson.A
	for _, ix := range indexes {
		var d bson.D
		for _, e := range ix {
			if e.Key != "ns" && e.Key != "background" {
				d = append(d, e)
			}
		}
		clean = append(clean, d)
	}
	return s.changeHome(ctx, h, bson.D{{Key: "createIndexes", Value: h.Physical}, {Key: "indexes", Value: clean}}, 0)
}

// createKeyIndex makes the hashed index on the shard key, or an ascending one where the server has
// no hashed indexes. That one has _id behind the key, descending: a pattern that clients do not make,
// so that they may make indexes on the key, or on the key and _id, with options of their own.
func (s *Splitter) createKeyIndex(ctx context.Context, h partition.Home, key shardkey.Pattern) error {
	err := s.createIndexes(ctx, h, []bson.D{{{Key: "key", Value: bson.D{{Key: key.Path(), Value: "hashed"}}}, {Key: "name", Value: key.Path() + "_hashed"}}})
	var we *wire.Error
	if errors.As(err, &we) && (we.Code == wire.CannotCreateIndex || we.Code == wire.BadValue) {
		return s.createIndexes(ctx, h, []bson.D{{{Key: "key", Value: bson.D{{Key: key.Path(), Value: 1}, {Key: "_id", Value: -1}}}, {Key: "name", Value: key.Path() + "_1__id_-1"}}})
	}
	return err
}
