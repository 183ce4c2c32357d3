package router

import (
	"context"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	write := func(kind *writeKind) Handler {
		return func(ctx context.Context, q *Request) (Reply, error) { return r.write(ctx, q, kind) }
	}
	return []Command{
		{Name: "insert", Sequence: inserts.list, Writes: true, Txn: true, API1: true, Help: "inserts documents", Run: write(&inserts)},
		{Name: "update", Sequence: updates.list, Writes: true, Txn: true, API1: true, Help: "updates documents", Run: write(&updates)},
		{Name: "delete", Sequence: deletes.list, Writes: true, Txn: true, API1: true, Help: "deletes documents", Run: write(&deletes)},
		{Name: "findAndModify", Aliases: []string{"findandmodify"}, Writes: true, Txn: true, API1: true,
			Help: "changes or deletes one document and returns it", Run: r.findAndModify},
	}
})

// Limits of a write command (mongos-behaviour §1.1).
const (
	maxStatements   = 100_000
	maxMessageBytes = 48_000_000
)

// writeKind is what the three batch commands differ in.
type writeKind struct {
	list string // the name of the statements' array
	// targeted are the counters of where statements went.
	targeted func(*stats) *targeted
	// more counts a batch's statements beyond the first.
	more func(*stats) *atomic.Int64
}

var (
	inserts = writeKind{list: "documents", targeted: func(s *stats) *targeted { return &s.toInsert },
		more: func(s *stats) *atomic.Int64 { return &s.moreInserts }}
	updates = writeKind{list: "updates", targeted: func(s *stats) *targeted { return &s.toUpdate },
		more: func(s *stats) *atomic.Int64 { return &s.moreUpdates }}
	deletes = writeKind{list: "deletes", targeted: func(s *stats) *targeted { return &s.toDelete },
		more: func(s *stats) *atomic.Int64 { return &s.moreDeletes }}
)

// statement is one of a batch's writes.
type statement struct {
	// index is its place in the client's batch.
	index int
	// id is its statement id; index unless the client sent others.
	id int32
	// raw is the document to insert, or the statement as a backend gets it.
	raw bson.Raw
	// timed says that the document's shard key is a time of our making (write_emptyts.go).
	timed bool
	// op is what an update or delete does; nil for inserts and, since nothing needs to be known of them, in unsharded collections.
	op *operation
}

// writeBatch is one insert, update or delete command on its way.
type writeBatch struct {
	r    *Router
	q    *Request
	kind *writeKind
	ns   string

	ordered        bool
	unacknowledged bool
	ownIDs         bool // the client sent statement ids
	keepsEmptyTs   bool // bypassEmptyTsReplacement
	let            bsoncore.Value
	uuid           bsoncore.Value
	stmts          []statement

	key     *shardkey.Pattern // under which the statements were read
	next    int               // the first statement that is not done
	stopped bool              // by an error of an ordered batch
	result  writeResult
}

// write answers insert, update and delete.
func (r *Router) write(ctx context.Context, q *Request, kind *writeKind) (Reply, error) {
	b, err := r.parseBatch(q, kind)
	if err != nil {
		return Reply{}, err
	}
	if b.creates() {
		if err := r.ensureCollection(ctx, q.DB, b.ns); err != nil {
			return Reply{}, err
		}
	}
	for b.next < len(b.stmts) && !b.stopped {
		if err := b.step(ctx); err != nil {
			if b.result.nothing() || q.InTxn {
				return Reply{}, err
			}
			b.failRest(err)
		}
	}
	if b.unacknowledged {
		if b.result.failed() {
			r.stats.swallowed.Add(1)
		}
		return Reply{Body: okBody}, nil
	}
	return Reply{Body: b.result.reply(q, kind == &updates)}, nil
}

// creates reports whether the batch makes the collection that it writes to.
func (b *writeBatch) creates() bool {
	if b.kind == &inserts {
		return true
	}
	if b.kind == &updates {
		for i := range b.stmts {
			if v, err := bsoncore.Document(b.stmts[i].raw).LookupErr("upsert"); err == nil && isTrue(v) {
				return true
			}
		}
	}
	return false
}

// failRest records an error that kept the rest of the batch from being run, when something had been done before.
func (b *writeBatch) failRest(err error) {
	rest := b.stmts[b.next:]
	if b.ordered {
		rest = rest[:1]
	}
	for i := range rest {
		b.result.fail(rest[i].index, err)
	}
	b.stopped = true
}

// parseBatch reads a write command. Its errors are the command's, before anything is done.
func (r *Router) parseBatch(q *Request, kind *writeKind) (*writeBatch, error) {
	ns, err := q.NS()
	if err != nil {
		return nil, err
	}
	if err := checkWritable(q.DB); err != nil {
		return nil, err
	}
	b := &writeBatch{r: r, q: q, kind: kind, ns: ns, ordered: true, unacknowledged: unacknowledged(q.WriteConcern)}
	var array, ids bsoncore.Value
	for it := q.Msg.Body[4:]; len(it) > 1; {
		e, rest, ok := bsoncore.ReadElement(it)
		if !ok {
			return nil, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
		}
		it = rest
		switch key := string(e.KeyBytes()); key {
		case "ordered":
			b.ordered = isTrue(e.Value())
		case kind.list:
			array = e.Value()
		case "stmtIds", "stmtId":
			ids = e.Value()
		case "let":
			b.let = e.Value()
		case bypassEmptyTs:
			b.keepsEmptyTs = isTrue(e.Value())
		case "collectionUUID":
			b.uuid = e.Value()
		}
	}
	b.ordered = b.ordered || q.InTxn // an error ends the transaction
	if b.stmts, err = readStatements(q.Msg, kind.list, array); err != nil {
		return nil, err
	}
	if n := len(b.stmts); n == 0 || n > maxStatements {
		return nil, wire.Errorf(wire.InvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", maxStatements, n)
	}
	kind.more(&r.stats).Add(int64(len(b.stmts) - 1))
	if kind == &inserts {
		for i := range b.stmts {
			b.stmts[i].raw = withID(b.stmts[i].raw)
		}
	}
	return b, b.takeIDs(ids)
}

// readStatements takes the statements from their section, or from the array in the body.
func readStatements(msg *wire.Msg, list string, array bsoncore.Value) ([]statement, error) {
	if seq, ok := msg.Sequence(list); ok {
		stmts := make([]statement, 0, seq.Len())
		for doc := range seq.All {
			stmts = append(stmts, statement{index: len(stmts), raw: doc})
		}
		return stmts, nil
	}
	if array.Type == 0 {
		return nil, wire.Errorf(40414, "BSON field '%s' is missing but a required field", list)
	}
	arr, ok := array.ArrayOK()
	if !ok {
		return nil, typeMismatch(list, array, "array")
	}
	var stmts []statement
	for rem := []byte(arr[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return nil, wire.Errorf(wire.InvalidBSON, "'%s' is not a valid BSON array", list)
		}
		rem = rest
		doc, ok := e.Value().DocumentOK()
		if !ok {
			return nil, typeMismatch(list+"."+e.Key(), e.Value(), "object")
		}
		stmts = append(stmts, statement{index: len(stmts), raw: bson.Raw(doc)})
	}
	return stmts, nil
}

// takeIDs gives each statement its id: its place in the batch, or what the client says.
func (b *writeBatch) takeIDs(ids bsoncore.Value) error {
	first := int64(0)
	switch ids.Type {
	case 0:
	case bsoncore.TypeArray:
		values, err := ids.Array().Values()
		if err != nil || len(values) != len(b.stmts) {
			return wire.Errorf(wire.InvalidOptions, "Number of statement ids must match the number of batch entries. Got %d statement ids and %d operations",
				len(values), len(b.stmts))
		}
		b.ownIDs = true
		for i, v := range values {
			id, ok := v.Int32OK()
			if !ok {
				return typeMismatch("stmtIds", v, "int")
			}
			b.stmts[i].id = id
		}
		return nil
	default:
		id, ok := ids.Int32OK()
		if !ok {
			return typeMismatch("stmtId", ids, "int")
		}
		b.ownIDs, first = id != 0, int64(id)
	}
	for i := range b.stmts {
		b.stmts[i].id = int32(first) + int32(i)
	}
	return nil
}

// checkWritable refuses databases that no client writes to. Not with IllegalOperation: of a write that fails so, drivers say that the
// deployment does not support retryable writes.
func checkWritable(db string) error {
	if db == "config" {
		return wire.Errorf(wire.CommandNotSupported, "the config database shows what the proxy knows and cannot be written to; use the commands for sharding and balancing")
	}
	return nil
}

// unacknowledged reports whether a write concern is {w: 0}. Backends get such writes acknowledged all the same: a backend was seen to answer
// what must not be answered, and a failure would go unseen.
func unacknowledged(wc bson.Raw) bool {
	if wc == nil {
		return false
	}
	w, err := bsoncore.Document(wc).LookupErr("w")
	if err != nil {
		return false
	}
	n, ok := w.AsInt64OK()
	return ok && n == 0
}

// withID returns a document to insert with an _id: its own, or a new ObjectId as first field, so that the document has its key, and every repetition of
// the statement the same _id, before it is placed.
func withID(doc bson.Raw) bson.Raw {
	if _, found := element.Lookup(doc, "_id"); found || len(doc) < 5 {
		return doc
	}
	return appendWithID(make([]byte, 0, len(doc)+idSize), doc)
}

// idSize is what an _id adds to a document.
const idSize = 1 + len("_id") + 1 + 12

// appendWithID appends a document that has no _id with a new one.
func appendWithID(dst []byte, doc bson.Raw) []byte {
	start := len(dst)
	dst = bsoncore.AppendObjectIDElement(append(dst, 0, 0, 0, 0), "_id", bson.NewObjectID())
	return closeDocument(append(dst, doc[4:len(doc)-1]...), start)
}
