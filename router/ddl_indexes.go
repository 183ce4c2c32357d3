package router

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

var _ = register(indexCommands)

func indexCommands(r *Router) []Command {
	return []Command{
		{Name: "createIndexes", Writes: true, API1: true, Help: "makes indexes on every partition", Run: r.createIndexes},
		{Name: "dropIndexes", Aliases: []string{"deleteIndexes"}, Writes: true, API1: true, Help: "drops indexes on every partition", Run: r.dropIndexes},
		{Name: "listIndexes", API1: true, Help: "lists a collection's indexes", Run: r.listIndexes},
	}
}

// createIndexes makes the indexes on every partition, and the collection if it does not exist.
func (r *Router) createIndexes(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	specs, err := indexSpecs(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	if err := r.ensureCollection(ctx, q.DB, ns); err != nil {
		return Reply{}, err
	}
	return r.onAll(ctx, q, ns, func(c *partition.Collection, _ []*partition.Part) error {
		for _, spec := range specs {
			if !boolField(spec, "unique") && !boolField(spec, "prepareUnique") {
				continue
			}
			key, _ := spec.Lookup("key").DocumentOK()
			if err := checkUnique(c, key, plainStrings(spec)); err != nil {
				return err
			}
		}
		return nil
	}, 0)
}

func indexSpecs(body bson.Raw) ([]bson.Raw, error) {
	v, err := body.LookupErr("indexes")
	if err != nil {
		return nil, wire.Errorf(40414, "BSON field 'createIndexes.indexes' is missing but a required field")
	}
	arr, ok := v.ArrayOK()
	if !ok {
		return nil, typeMismatch("createIndexes.indexes", bsoncore.Value{Type: bsoncore.Type(v.Type)}, "array")
	}
	values, err := arr.Values()
	if err != nil || len(values) == 0 {
		return nil, wire.Errorf(wire.BadValue, "Must specify at least one index to create")
	}
	specs := make([]bson.Raw, len(values))
	for i, v := range values {
		if specs[i], ok = v.DocumentOK(); !ok {
			return nil, wire.Errorf(wire.TypeMismatch, "The elements of the 'indexes' array must be objects, but got %s", v.Type)
		}
	}
	return specs, nil
}

// checkUnique refuses (67) a unique index on a sharded collection that one partition alone could not uphold: it must
// contain every field of the shard key and compare strings as the hash does, byte by byte.
func checkUnique(c *partition.Collection, key bson.Raw, simple bool) error {
	if !c.Sharded() {
		return nil
	}
	elems, err := key.Elements()
	if err != nil {
		return wire.Errorf(wire.CannotCreateIndex, "an index's key must be a document")
	}
	if len(elems) == 1 && elems[0].Key() == "_id" {
		return nil // every collection has it; it is unique within a partition
	}
	has := map[string]bool{}
	for _, e := range elems {
		has[e.Key()] = true
	}
	for _, field := range c.Key.Fields() {
		if !has[field] {
			return wire.Errorf(wire.CannotCreateIndex, "cannot create unique index over %s with shard key %s: it does not contain '%s', so documents that it must keep apart may be in different partitions",
				shellKey(elems), c.Key, field)
		}
	}
	if !simple {
		return wire.Errorf(wire.CannotCreateIndex, "cannot create unique index over %s with shard key %s: its collation is not simple", shellKey(elems), c.Key)
	}
	return nil
}

// shellKey returns an index's key as shells show it.
func shellKey(elems []bson.RawElement) string {
	var b strings.Builder
	for i, e := range elems {
		if i > 0 {
			b.WriteString(", ")
		}
		v := e.Value()
		if n, ok := v.AsFloat64OK(); ok {
			fmt.Fprintf(&b, "%q : %v", e.Key(), n)
		} else {
			fmt.Fprintf(&b, "%q : %v", e.Key(), v)
		}
	}
	return "{ " + b.String() + " }"
}

// plainStrings reports whether an index's specification asks for the simple collation. A collection's default is not
// looked at: sharded collections have the simple one.
func plainStrings(spec bson.Raw) bool {
	d, ok := spec.Lookup("collation").DocumentOK()
	if !ok {
		return true
	}
	locale, _ := d.Lookup("locale").StringValueOK()
	return locale == "simple"
}

// dropIndexes drops indexes on every partition; that one of them has it is enough. The last index on the shard key stays:
// 370 by name, left alone by "*".
func (r *Router) dropIndexes(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	if q.DB == "config" {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "cannot drop indexes of database 'config' through this proxy")
	}
	which, err := bsoncore.Document(q.Msg.Body).LookupErr("index")
	if err != nil {
		return Reply{}, wire.Errorf(40414, "BSON field 'dropIndexes.index' is missing but a required field")
	}
	var reply Reply
	err = r.withinAny(ctx, ns, partition.Write, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errNoCollection(ns)
		}
		keep, more, err := r.keepKeyIndex(ctx, c, parts, which)
		if err != nil {
			return err
		}
		if keep && more == nil { // "*" with nothing to drop
			reply.Body = okBody
			return nil
		}
		drop := func(key []byte) bool { return keep && string(key) == "index" }
		command := withElement(q.Msg.Body, drop, more)
		return r.everywhere(ctx, q, c, parts, command, &reply, wire.IndexNotFound, drop, func(_ *partition.Part, dst []byte) []byte { return append(dst, more...) })
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

// withElement is a command without the elements that drop names and with another one.
func withElement(body bson.Raw, drop func(key []byte) bool, element []byte) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(body)+len(element)))
	elems, _ := bsoncore.Document(body).Elements()
	for _, e := range elems {
		if !drop(e.KeyBytes()) {
			dst = append(dst, e...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(append(dst, element...), start)
	return dst
}

// keepKeyIndex looks whether dropping which would leave a sharded collection without an index on its key. For "*" it
// returns replace and, unless nothing would be dropped, an element "index" that names what may go.
func (r *Router) keepKeyIndex(ctx context.Context, c *partition.Collection, parts []*partition.Part, which bsoncore.Value) (replace bool, element []byte, err error) {
	if !c.Sharded() {
		return false, nil, nil
	}
	indexes, err := r.indexesOf(ctx, parts[0].Home)
	if err != nil {
		return false, nil, err
	}
	all, isName := which.StringValueOK()
	var left, others []string
	for _, ix := range indexes {
		name, _ := ix.Lookup("name").StringValueOK()
		onKey := supportsKey(c, ix)
		if onKey && !named(which, ix) {
			left = append(left, name)
		}
		if !onKey && name != "_id_" {
			others = append(others, name)
		}
	}
	if isName && all == "*" {
		if len(others) == 0 {
			return true, nil, nil
		}
		at, dst := bsoncore.AppendArrayElementStart(nil, "index")
		for i, name := range others {
			dst = bsoncore.AppendStringElement(dst, arrayIndex(i), name)
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return true, dst, nil
	}
	if len(left) == 0 && anyNamed(c, which, indexes) {
		return false, nil, wire.Errorf(wire.CannotDropShardKeyIndex, "cannot drop the last index on the shard key %s of '%s'", c.Key, c.NS)
	}
	return false, nil, nil
}

func anyNamed(c *partition.Collection, which bsoncore.Value, indexes []bson.Raw) bool {
	for _, ix := range indexes {
		if supportsKey(c, ix) && named(which, ix) {
			return true
		}
	}
	return false
}

// named reports whether dropIndexes' argument – a name, several, or a key pattern – means the index.
func named(which bsoncore.Value, ix bson.Raw) bool {
	name, _ := ix.Lookup("name").StringValueOK()
	if s, ok := which.StringValueOK(); ok {
		return s == name
	}
	if key, ok := which.DocumentOK(); ok {
		have, _ := ix.Lookup("key").DocumentOK()
		return bson.Raw(key).String() == have.String()
	}
	arr, ok := which.ArrayOK()
	if !ok {
		return false
	}
	values, _ := arr.Values()
	for _, v := range values {
		if s, ok := v.StringValueOK(); ok && s == name {
			return true
		}
	}
	return false
}

// supportsKey reports whether an index begins with the collection's shard key, and has every document.
func supportsKey(c *partition.Collection, ix bson.Raw) bool {
	elems, err := ix.Lookup("key").Document().Elements()
	fields := c.Key.Fields()
	if err != nil || len(elems) < len(fields) || boolField(ix, "sparse") || boolField(ix, "hidden") || !plainStrings(ix) {
		return false
	}
	if _, err := ix.LookupErr("partialFilterExpression"); err == nil {
		return false
	}
	for i, f := range fields {
		if elems[i].Key() != f {
			return false
		}
	}
	return true
}

// indexesOf returns a physical collection's indexes; none when it does not exist.
func (r *Router) indexesOf(ctx context.Context, h partition.Home) ([]bson.Raw, error) {
	docs, err := r.askAll(ctx, h.Backend, h.DB, bson.D{{Key: "listIndexes", Value: h.Physical}, {Key: "cursor", Value: bson.D{}}})
	if err != nil && wire.AsError(err).Code == wire.NamespaceNotFound {
		return nil, nil
	}
	return docs, err
}

// listIndexes asks the partition with the lowest positions.
func (r *Router) listIndexes(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	var docs []bson.Raw
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(_ *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errNoCollection(ns)
		}
		h := parts[0].Home
		docs, err = r.askAll(ctx, h.Backend, h.DB, bson.D{{Key: "listIndexes", Value: h.Physical}, {Key: "cursor", Value: bson.D{}}})
		return err
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	if err != nil {
		return Reply{}, err
	}
	for i, d := range docs {
		if old, ok := d.Lookup("ns").StringValueOK(); ok && !strings.EqualFold(old, ns) {
			docs[i] = withNS(d, ns)
		}
	}
	return r.listReply(ctx, q, ns, docs)
}
