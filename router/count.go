package router

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// readAll sends q to every part and returns the replies, which the caller releases; the first error ends it.
func (r *Router) readAll(ctx context.Context, q *Request, parts []*partition.Part, drop func([]byte) bool, more func([]byte) []byte) ([]backend.Reply, error) {
	targets := make([]target, len(parts))
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		targets[i] = q.target(p)
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, q.appendFor(nil, p, true, drop, more))
	}
	replies, errs := r.scatter(ctx, targets, msgs)
	var first error
	for i := range replies {
		if errs[i] == nil {
			errs[i] = commandError(replies[i].Body)
		}
		if first == nil {
			first = errs[i]
		}
	}
	if first != nil {
		releaseAll(replies)
		return nil, first
	}
	return replies, nil
}

func releaseAll(replies []backend.Reply) {
	for i := range replies {
		replies[i].Release()
	}
}

// filterArgs are a filter and a collation, wherever a command has them.
func filterArgs(body bson.Raw) (filter bson.Raw, collation bool, err error) {
	if v, e := bsoncore.Document(body).LookupErr("query"); e == nil {
		if filter, err = documentOrNull("query", v); err != nil {
			return nil, false, err
		}
	}
	if v, e := bsoncore.Document(body).LookupErr("collation"); e == nil {
		collation, err = notSimple(v)
	}
	return filter, collation, err
}

// count answers the command of that name: the partitions' counts are added, skip and limit applied once.
func (r *Router) count(ctx context.Context, q *Request) (reply Reply, err error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	filter, collation, err := filterArgs(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	skip, limit, err := countBounds(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	var n int64
	shards := emptyDocument
	err = r.within(ctx, ns, partition.Read, planFilter(filter, collation), func(_ *partition.Collection, parts []*partition.Part) error {
		n, shards, err = r.countParts(ctx, q, parts, skip, limit)
		return err
	})
	if v := onView(err); v != nil {
		n, err = r.countView(ctx, q, v, filter, skip, limit)
		shards = nil
	}
	if err != nil && !errors.Is(err, errUnknownDB) {
		return Reply{}, err
	}
	return Reply{Body: countReply(shards, n)}, nil
}

// countReply is the answer to count; shards, what each backend has counted before skip and limit (mongos-behaviour §3.13), is nil where no backend was
// asked for a count of its own.
func countReply(shards bson.Raw, n int64) bson.Raw {
	d := make([]byte, 4, 64+len(shards))
	if shards != nil {
		d = bsoncore.AppendDocumentElement(d, "shards", bsoncore.Document(shards))
	}
	d = appendCount(d, "n", n)
	return bson.Raw(closeDocument(bsoncore.AppendDoubleElement(d, "ok", 1), 0))
}

// countBounds reads skip and limit; a negative limit means its absolute value, 0 none.
func countBounds(body bson.Raw) (skip, limit int64, err error) {
	if v, e := bsoncore.Document(body).LookupErr("skip"); e == nil {
		if skip, err = wholeNumber("skip", v, 51024); err != nil {
			return 0, 0, err
		}
	}
	if v, e := bsoncore.Document(body).LookupErr("limit"); e == nil && v.Type != bsoncore.TypeNull {
		f, ok := v.AsFloat64OK()
		if !ok {
			return 0, 0, typeMismatch("limit", v, "number")
		}
		limit = int64(math.Abs(f))
	}
	return skip, limit, nil
}

// countParts adds the parts' counts; shards has them by backend.
func (r *Router) countParts(ctx context.Context, q *Request, parts []*partition.Part, skip, limit int64) (n int64, shards bson.Raw, err error) {
	drop := func(key []byte) bool { return string(key) == "skip" || string(key) == "limit" }
	more := func(d []byte) []byte {
		if limit > 0 && limit <= math.MaxInt64-skip {
			d = bsoncore.AppendInt64Element(d, "limit", limit+skip)
		}
		return d
	}
	replies, err := r.readAll(ctx, q, parts, drop, more)
	if err != nil {
		return 0, nil, err
	}
	defer releaseAll(replies)
	by := map[string]int64{}
	for i, reply := range replies {
		part, _ := bsoncore.Document(reply.Body).Lookup("n").AsInt64OK()
		n += part
		by[parts[i].Backend] += part
	}
	d := make([]byte, 4, 32*len(by)+8)
	for _, id := range slices.Sorted(maps.Keys(by)) {
		d = appendCount(d, id, by[id])
	}
	n = max(0, n-skip)
	if limit > 0 {
		n = min(n, limit)
	}
	return n, bson.Raw(closeDocument(d, 0)), nil
}

// distinct answers the command of that name: the partitions' values, each once, in MongoDB's order.
func (r *Router) distinct(ctx context.Context, q *Request) (reply Reply, err error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	filter, collation, err := filterArgs(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	err = r.within(ctx, ns, partition.Read, planFilter(filter, collation), func(_ *partition.Collection, parts []*partition.Part) error {
		if collation && len(parts) > 1 {
			return wire.Errorf(wire.NotImplemented, "distinct under a collation is not supported across partitions; give a filter on the shard key")
		}
		replies, err := r.readAll(ctx, q, parts, nil, nil)
		if err != nil {
			return err
		}
		defer releaseAll(replies)
		reply, err = distinctReply(replies)
		return err
	})
	if errors.Is(err, errUnknownDB) {
		return distinctReply(nil)
	}
	if v := onView(err); v != nil {
		return r.distinctView(ctx, q, v, filter)
	}
	return reply, err
}

func distinctReply(replies []backend.Reply) (Reply, error) {
	if len(replies) == 1 {
		return Reply{Body: relay(replies[0].Body)}, nil
	}
	seen := map[string]struct{}{}
	var values []bsoncore.Value
	var key []byte
	for _, reply := range replies {
		arr, _ := bsoncore.Document(reply.Body).Lookup("values").ArrayOK()
		vs, err := arr.Values()
		if err != nil && len(arr) > 0 {
			return Reply{}, wire.Errorf(wire.InternalError, "a backend's distinct reply is malformed")
		}
		for _, v := range vs {
			key = order.AppendEqualityKey(key[:0], v)
			if _, twice := seen[string(key)]; !twice {
				seen[string(key)] = struct{}{}
				values = append(values, v)
			}
		}
	}
	slices.SortStableFunc(values, order.Compare)
	return distinctValues(values)
}

func distinctValues(values []bsoncore.Value) (Reply, error) {
	start, d := bsoncore.AppendDocumentStart(nil)
	at, d := bsoncore.AppendArrayElementStart(d, "values")
	for i, v := range values {
		d = bsoncore.AppendValueElement(d, arrayIndex(i), v)
	}
	d, _ = bsoncore.AppendArrayEnd(d, at)
	if len(d) > wire.MaxDocumentSize {
		return Reply{}, wire.Errorf(17217, "distinct too big, 16mb cap")
	}
	d = bsoncore.AppendDoubleElement(d, "ok", 1)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return Reply{Body: d}, nil
}
