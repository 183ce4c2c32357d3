package router

import (
	"context"
	"errors"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

var _ = register(readCommands)

func readCommands(r *Router) []Command {
	return []Command{
		{Name: "find", API1: true, Help: "queries for documents", Run: r.find},
		{Name: "getMore", API1: true, Help: "fetches a cursor's next batch", Run: r.getMore},
		{Name: "killCursors", API1: true, Help: "ends cursors", Run: r.killCursors},
		{Name: "count", API1: true, Help: "counts documents", Run: r.count},
		{Name: "distinct", Help: "lists a field's distinct values", Run: r.distinct},
	}
}

// findArgs are the fields of a find that the router must understand; all others are passed on.
type findArgs struct {
	filter, sort, projection bson.Raw
	skip, limit              int64
	batchSize                int64
	hasBatchSize             bool
	singleBatch              bool
	partial                  bool // allowPartialResults
	forever                  bool // noCursorTimeout
	tailable                 bool
	collation                bool // another than the simple one
	returnKey                bool
}

func parseFind(body bson.Raw) (a findArgs, err error) {
	elems, err := bsoncore.Document(body).Elements()
	if err != nil {
		return a, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	for _, e := range elems[1:] {
		v := e.Value()
		switch e.Key() {
		case "filter":
			a.filter, err = documentOrNull("filter", v)
		case "sort":
			a.sort, err = documentOrNull("sort", v)
		case "projection":
			if a.projection, err = documentOrNull("projection", v); err == nil {
				err = checkProjection(a.projection)
			}
		case "skip":
			a.skip, err = wholeNumber("skip", v, 51024)
		case "limit":
			a.limit, err = wholeNumber("limit", v, 51024)
		case "batchSize":
			a.hasBatchSize = v.Type != bsoncore.TypeNull
			a.batchSize, err = wholeNumber("batchSize", v, 51024)
		case "singleBatch":
			a.singleBatch = isTrue(v)
		case "allowPartialResults":
			a.partial = isTrue(v)
		case "noCursorTimeout":
			a.forever = isTrue(v)
		case "returnKey":
			a.returnKey = isTrue(v)
		case "tailable":
			a.tailable = isTrue(v)
		case "collation":
			a.collation, err = notSimple(v)
		case "$_requestResumeToken", "$_resumeAfter":
			err = wire.Errorf(wire.BadValue, "%s is not supported through a router", e.Key())
		case "runtimeConstants", "legacyRuntimeConstants":
			err = wire.Errorf(51202, "Cannot specify runtime constants option to a mongos")
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// sortKeyField is what a router asks shards for; clients may not (mongos-behaviour §3.4).
const sortKeyField = "$sortKey"

func checkProjection(p bson.Raw) error {
	if len(p) > 5 {
		if _, found := element.Lookup(p, sortKeyField); found {
			return wire.Errorf(wire.BadValue, "Projection contains illegal field '%s'", sortKeyField)
		}
	}
	return nil
}

func documentOrNull(field string, v bsoncore.Value) (bson.Raw, error) {
	if v.Type == bsoncore.TypeNull {
		return nil, nil
	}
	return documentField(field, v)
}

// notSimple reports whether a collation is another than the simple one, binary comparison.
func notSimple(v bsoncore.Value) (bool, error) {
	doc, err := documentOrNull("collation", v)
	if err != nil || doc == nil {
		return false, err
	}
	locale, ok := bsoncore.Document(doc).Lookup("locale").StringValueOK()
	return len(doc) > 5 && !(ok && locale == "simple"), nil
}

// planFilter plans for the partitions that a filter can concern.
func planFilter(filter bson.Raw, collation bool) func(*partition.Collection) ([]*partition.Part, error) {
	return func(c *partition.Collection) ([]*partition.Part, error) {
		if c == nil || c.Dropped() {
			return nil, errUnknownDB
		}
		if !c.Sharded() {
			return c.Parts, nil
		}
		var t shardkey.Target
		if len(filter) > 5 {
			c.Key.TargetInto(&t, filter, !collation)
		}
		return c.Targets(nil, &t), nil
	}
}

// find answers the command of that name.
func (r *Router) find(ctx context.Context, q *Request) (reply Reply, err error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	a, err := parseFind(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	err = r.within(ctx, ns, partition.Read, planFilter(a.filter, a.collation), func(c *partition.Collection, parts []*partition.Part) error {
		r.stats.toFind.count(c, parts)
		if len(parts) == 1 {
			reply, err = r.findOne(ctx, q, c, parts[0], &a)
		} else {
			reply, err = r.findMany(ctx, q, c, parts, &a)
		}
		return err
	})
	if errors.Is(err, errUnknownDB) {
		return Reply{Body: cursorReply("firstBatch", &batch{}, 0, ns, false)}, nil
	}
	if v := onView(err); v != nil {
		return r.findView(ctx, q, v, &a)
	}
	return reply, err
}

// findOne passes a find to the one partition that it concerns; everything is pushed down.
func (r *Router) findOne(ctx context.Context, q *Request, c *partition.Collection, p *partition.Part, a *findArgs) (Reply, error) {
	var drop func([]byte) bool
	var more func([]byte) []byte
	if a.batchSize > maxBatch {
		drop = func(key []byte) bool { return string(key) == "batchSize" }
		more = func(d []byte) []byte { return bsoncore.AppendInt64Element(d, "batchSize", maxBatch) }
	}
	reply, err := r.openOne(ctx, q, c, []*partition.Part{p}, q.appendFor(nil, p, true, drop, more), shortFind(q, c, a), a.forever)
	if a.partial && err != nil && unreachable(err) {
		// Nothing can be read, and the client has said that it takes what there is.
		return Reply{Body: cursorReply("firstBatch", &batch{}, 0, c.NS, true)}, nil
	}
	return reply, err
}

// openOne sends a command that opens a cursor to one partition, parts[0], and relays the reply under a cursor id of our own. The
// cursor holds all parts.
func (r *Router) openOne(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, body []byte, shape backend.Shape, forever bool) (Reply, error) {
	to := q.target(parts[0])
	to.Shape = shape
	got, err := r.do(ctx, to, wire.AppendMsg(nil, 0, 0, 0, body))
	if err != nil {
		return Reply{}, err
	}
	defer got.Release()
	return r.relayOpen(q, c, parts, got, forever)
}

// relayOpen relays the reply to a command that may have opened a cursor on parts[0]. It must be called within the gates.
func (r *Router) relayOpen(q *Request, c *partition.Collection, parts []*partition.Part, got backend.Reply, forever bool) (Reply, error) {
	p := parts[0]
	if err := commandError(got.Body); err != nil {
		return Reply{}, err
	}
	id, ok := bsoncore.Document(got.Body).Lookup("cursor", "id").AsInt64OK()
	if !ok {
		return Reply{Body: relay(got.Body)}, nil
	}
	if id == 0 {
		return Reply{Body: relayCursor(got.Body, 0, c.NS)}, nil
	}
	src := &single{r: r, branch: branch{part: p, host: got.Host, id: id}, session: append(bson.Raw(nil), q.Session...)}
	if len(src.session) == 0 {
		src.session = nil
	}
	cur, err := r.cursors.open(q, c.NS, src, parts, forever)
	if err != nil {
		src.close()
		return Reply{}, err
	}
	reply := relayCursor(got.Body, cur.id, c.NS)
	r.cursors.release(cur, false)
	return Reply{Body: reply}, nil
}

// target is where a request for a part goes, by the client's read preference.
func (q *Request) target(p *partition.Part) target {
	return target{Backend: p.Backend, ReadPref: q.ReadPref, Part: p}
}

// findMany sends a find to several partitions and merges.
func (r *Router) findMany(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, a *findArgs) (Reply, error) {
	var s order.Sort
	if len(a.sort) > 5 {
		var err error
		if s, err = order.ParseSort(a.sort); err != nil {
			return Reply{}, err
		}
	}
	if err := checkMerge(q, s, a); err != nil {
		return Reply{}, err
	}
	if s.Empty() {
		if near, err := merge.FindNear(a.filter); near != nil || err != nil {
			if err != nil {
				return Reply{}, err
			}
			return r.findNear(ctx, q, c, parts, a, near)
		}
	}
	proj, err := merge.PlanProjection(a.projection, s)
	if err != nil {
		return Reply{}, err
	}
	f := newFanout(r, q, c.Name, s, proj)
	f.skip = a.skip
	if a.limit > 0 {
		f.limit = a.limit
	}
	f.batchSize = min(a.batchSize, maxBatch)
	f.plain = !a.tailable
	msgs, err := findMessages(q, parts, a, &proj)
	if err != nil {
		return Reply{}, err
	}
	return r.openFind(ctx, q, c, f, parts, msgs, a)
}

// openFind sends a find over several partitions and answers with the first batch.
func (r *Router) openFind(ctx context.Context, q *Request, c *partition.Collection, f *fanout, parts []*partition.Part, msgs [][]byte, a *findArgs) (Reply, error) {
	partial, err := r.openBranches(ctx, q, f, parts, msgs, a.partial)
	if err != nil {
		f.close()
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, math.MaxInt32))
	}
	return r.firstBatch(ctx, q, c, f, parts, limit, a.hasBatchSize && a.batchSize == 0, a.singleBatch, partial, a.forever)
}

// checkMerge refuses what cannot be merged exactly.
func checkMerge(q *Request, s order.Sort, a *findArgs) error {
	if level, _ := bsoncore.Document(q.ReadConcern).Lookup("level").StringValueOK(); level == "snapshot" && q.txn == nil {
		return wire.Errorf(wire.InvalidOptions, "readConcern snapshot is not supported over several partitions: they have no common time; give a filter on the shard key")
	}
	if s.Special() != order.ByFields && !s.Empty() && s.Special() != order.ByNatural {
		return wire.Errorf(wire.CommandNotSupported, "sorting by $meta is not supported across partitions; give a filter on the shard key")
	}
	if a.returnKey && !s.Empty() {
		return wire.Errorf(wire.CommandNotSupported, "a sort with returnKey is not supported across partitions: the documents to sort are not returned; give a filter on the shard key")
	}
	if a.collation && !s.Empty() && s.Special() == order.ByFields {
		return wire.Errorf(wire.NotImplemented, "a sort under a collation is not supported across partitions; give a filter on the shard key")
	}
	return nil
}

// findMessages builds what each partition is sent: no skip, limit+skip, never a single batch.
func findMessages(q *Request, parts []*partition.Part, a *findArgs, proj *merge.Projection) ([][]byte, error) {
	limit := int64(0)
	if a.limit > 0 {
		if a.limit > math.MaxInt64-a.skip {
			return nil, wire.Errorf(wire.Overflow, "sum of limit and skip cannot be represented as a 64-bit integer, limit: %d, skip: %d", a.limit, a.skip)
		}
		limit = a.limit + a.skip
	}
	drop := func(key []byte) bool {
		switch string(key) {
		case "skip", "limit", "singleBatch", "batchSize", "allowPartialResults":
			return true
		case "projection":
			return proj.Sent != nil
		}
		return false
	}
	more := func(d []byte) []byte {
		if limit > 0 {
			d = bsoncore.AppendInt64Element(d, "limit", limit)
		}
		if n := firstOf(a.batchSize, len(parts)); n > 0 {
			d = bsoncore.AppendInt64Element(d, "batchSize", n)
		}
		if proj.Sent != nil {
			d = bsoncore.AppendDocumentElement(d, "projection", bsoncore.Document(proj.Sent))
		}
		return d
	}
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, q.appendFor(nil, p, true, drop, more))
	}
	return msgs, nil
}

// firstOf is the batchSize for the command that opens a cursor on each of n partitions; 0 leaves it out.
func firstOf(asked int64, n int) int64 {
	if asked > 0 {
		return min(asked, maxBatch)
	}
	return openBatch(n)
}

// openBranches opens a cursor on every part. With partial, parts that cannot be reached are left out, all of them if need be, as mongos does.
func (r *Router) openBranches(ctx context.Context, q *Request, f *fanout, parts []*partition.Part, msgs [][]byte, partial bool) (left bool, err error) {
	targets := make([]target, len(parts))
	for i, p := range parts {
		targets[i] = q.target(p)
		f.branches = append(f.branches, &branch{part: p})
	}
	ask := r.scatter
	if partial = partial && q.txn == nil; partial {
		ask = r.scatterApart
	}
	replies, errs := ask(ctx, targets, msgs)
	if partial {
		for i, e := range errs {
			if e == nil {
				if e = commandError(replies[i].Body); e != nil && unreachable(e) {
					replies[i].Release()
				}
			}
			if e != nil && unreachable(e) {
				errs[i], left = nil, true
				f.branches[i] = nil
			}
		}
		var who []*branch
		j := 0
		for i, br := range f.branches {
			if br != nil {
				who = append(who, br)
				replies[j], errs[j] = replies[i], errs[i]
				j++
			}
		}
		f.branches = who
	}
	return left, settle(f.branches, replies, errs, "firstBatch")
}

// unreachable reports an error that allowPartialResults overlooks (mongos-behaviour §5.4).
func unreachable(err error) bool {
	e := wire.AsError(err)
	return e.Code.Retriable() || e.Code == wire.FailedToSatisfyReadPreference || e.Code == wire.MaxTimeMSExpired
}

// firstBatch fills the first batch of a merged cursor and registers it unless it is done.
func (r *Router) firstBatch(ctx context.Context, q *Request, c *partition.Collection, src source, parts []*partition.Part,
	limit int, none, singleBatch, partial, forever bool) (Reply, error) {
	b := &batch{}
	var done bool
	var err error
	if !none {
		done, err = src.fill(ctx, q, b, limit)
	}
	if err != nil || done || singleBatch {
		src.close()
		if err != nil {
			return Reply{}, err
		}
		return Reply{Body: cursorReply("firstBatch", b, 0, c.NS, partial)}, nil
	}
	cur, err := r.cursors.open(q, c.NS, src, parts, forever)
	if err != nil {
		src.close()
		return Reply{}, err
	}
	r.cursors.release(cur, false)
	return Reply{Body: cursorReply("firstBatch", b, cur.id, c.NS, partial)}, nil
}
