package router

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

// What the hot path (hot.go) does for writes: one statement that goes to one partition as it is. Batches, upserts, multi-document writes, pipelines, changes of the
// shard key, repeats that an old home may have executed, and retryable writes at standalones are the general code's (writes.go).

// The fields of a statement that the hot path knows.
const (
	statementQ field = 1 << iota
	statementU
	statementMulti
	statementUpsert
	statementLimit

	statementOfUpdate = statementQ | statementU | statementMulti | statementUpsert
	statementOfDelete = statementQ | statementLimit
)

// readWrite reads the statement; false where the command is not plain.
func (p *point) readWrite() bool {
	if seqs := p.msg.Sequences; len(seqs) > 0 {
		if len(seqs) > 1 || seqs[0].Identifier != p.kind.write.list || p.seen&fieldStatements != 0 {
			return false
		}
		p.stmt = bson.Raw(seqs[0].Docs)
		if len(p.stmt) < 4 || int(binary.LittleEndian.Uint32(p.stmt)) != len(p.stmt) {
			return false
		}
	}
	if len(p.stmt) == 0 || p.q.HasTxn && p.q.Session == nil {
		return false
	}
	h := p.kind.shape.and(p.ns)
	if p.kind.write == &inserts {
		p.shape = backend.Shape(h)
		return p.readDocument()
	}
	if !p.readStatement() {
		return false
	}
	p.shape = backend.Shape(h.filter(bsoncore.Document(p.filter)))
	return true
}

// maxHotID is the largest document that the hot path gives an _id: the room for it stays.
const maxHotID = 16 << 10

// readDocument has the document to insert have an _id, as withID does.
func (p *point) readDocument() bool {
	it := element.In(p.stmt)
	var e element.Element
	for it.Next(&e) {
		if string(e.Key) == "_id" {
			return true
		}
	}
	if it.Malformed() || len(p.stmt) > maxHotID {
		return false
	}
	p.made = appendWithID(p.made[:0], p.stmt)
	p.stmt = p.made
	return true
}

// only returns the document of an array of one.
func only(array []byte) (bson.Raw, bool) {
	it := element.In(array)
	var e element.Element
	if !it.Next(&e) || e.Type != bsoncore.TypeEmbeddedDocument || it.More() {
		return nil, false
	}
	return e.Data, true
}

// readStatement reads an update's or a delete's statement.
func (p *point) readStatement() bool {
	var seen field
	it := element.In(p.stmt)
	var e element.Element
	for it.Next(&e) {
		var f field
		ok := false
		switch string(e.Key) {
		case "q":
			f, ok = statementQ, e.Type == bsoncore.TypeEmbeddedDocument
			p.filter = e.Data
		case "u":
			f, ok = statementU, e.Type == bsoncore.TypeEmbeddedDocument
			p.update = e.Value()
		case "multi":
			f, ok = statementMulti, e.Type == bsoncore.TypeBoolean && e.Data[0] == 0
		case "upsert":
			f, ok = statementUpsert, e.Type == bsoncore.TypeBoolean && e.Data[0] == 0
		case "limit":
			n, number := e.Value().AsInt64OK()
			f, ok = statementLimit, number && n == 1 && e.Type != bsoncore.TypeDouble
		}
		if !ok || seen&f != 0 {
			return false
		}
		seen |= f
	}
	if it.Malformed() || len(p.filter) <= 5 {
		return false
	}
	if p.kind.write == &deletes {
		return seen == statementOfDelete
	}
	return seen&^statementOfUpdate == 0 && seen&(statementQ|statementU) == statementQ|statementU && !mixesOperators(p.update)
}

// plainConcern reports whether a writeConcern asks for an acknowledgement, and says nothing else that the proxy must know.
func plainConcern(doc []byte) bool {
	it := element.In(doc)
	var e element.Element
	for it.Next(&e) {
		switch string(e.Key) {
		case "w":
			if n, number := e.Value().AsInt64OK(); e.Type != bsoncore.TypeString && (!number || n < 1) {
				return false
			}
		case "j", "wtimeout":
		default:
			return false
		}
	}
	return !it.Malformed()
}

// mayWrite reports whether nothing but the partition, which holds pos, need be asked about the write.
func (p *point) mayWrite(r *Router, view *partition.View, pos shardkey.Position) bool {
	if p.q.HasTxn {
		if b := r.cfg.Backends.Get(p.parts[0].Backend); b == nil || b.Kind() != backend.KindReplicaSet {
			return false
		}
		if len(p.coll.Old) > 0 && !r.passed(&p.q, p.coll, pos) {
			return false // an old home may have executed it
		}
	}
	switch p.kind.write {
	case &inserts:
		return view.Catalog.Database(p.coll.DB) != nil
	case &updates:
		op := operation{filter: p.filter, update: p.update}
		op.examine(p.coll.Key)
		if op.effect.Kind == shardkey.Replaces && p.coll.Key.EmptyTimestamp(op.effect.Value) {
			return false
		}
		bound, single := p.target.Single()
		return op.keeps(p.coll.Key, bound, single)
	}
	return true
}

// written makes the client's reply of the backend's to the write, and sends a retryable one again where that may help. Without a body there is nothing to tell but
// what was counted.
func (p *point) written(got backend.Reply, err error) (reply Reply, _ error) {
	r, part := p.q.Conn.r, p.parts[0]
	for n := 1; ; n++ {
		if err == nil {
			reply, err = p.result(got)
		}
		switch {
		case err == nil:
			return reply, nil
		case p.q.HasTxn && mustReplan(err), n == attempts || !p.q.HasTxn || !mayRepeat(p.ctx, err):
			return Reply{}, err
		}
		got, err = r.do(p.ctx, target{Backend: part.Backend, Part: part, Shape: p.shape, Wait: true}, p.out.B)
	}
}

// message makes the command for the statement's home: byte for byte what writeBatch.message makes.
func (p *point) message(part *partition.Part) *wire.Buffer {
	q, list := &p.q, p.kind.write.list
	buf := wire.GetBuffer(512 + len(p.msg.Body) + len(p.stmt))
	dst := wire.AppendMsgStart(buf.B[:0])
	dst = q.appendFor(dst, part, !q.HasTxn, func(key []byte) bool { return string(key) == list }, func(dst []byte) []byte {
		if !q.HasTxn {
			return dst
		}
		return q.appendDerived(dst, p.session)
	})
	at, dst := wire.AppendSequenceStart(dst, list)
	dst = append(dst, p.stmt...)
	wire.EndSequence(dst, at)
	buf.B = wire.Seal(dst, 0)
	return buf
}

// result makes the client's reply of a backend's.
func (p *point) result(got backend.Reply) (Reply, error) {
	defer got.Release()
	if err := commandError(got.Body); err != nil {
		return Reply{}, err
	}
	result := writeResult{}
	result.take(got.Body, &chunk{group: group{p.parts[0], []*statement{{raw: p.stmt}}}}, p.ordered)
	return Reply{Body: result.reply(&p.q, p.kind.write == &updates)}, nil
}

// count takes the counts from a backend's reply; false for one that is not simply ok.
func (p *point) count(body bson.Raw) bool {
	p.n, p.modified = 0, 0
	it := element.In(body)
	var e element.Element
	ok := false
	for it.Next(&e) {
		switch string(e.Key) {
		case "ok":
			f, number := e.Value().AsFloat64OK()
			ok = number && f == 1
		case "n":
			n, _ := e.Value().AsInt64OK()
			p.n += n
		case "nModified":
			n, _ := e.Value().AsInt64OK()
			p.modified += n
		case "upserted", "writeErrors", "writeConcernError", "retriedStmtIds":
			return false
		}
	}
	return ok && !it.Malformed()
}

// appendCounts appends the reply to a write of which there is nothing to tell but counts, as writeResult.reply does.
func (p *point) appendCounts(dst []byte) []byte {
	start := len(dst)
	dst = appendCount(append(dst, 0, 0, 0, 0), "n", p.n)
	if p.kind.write == &updates {
		dst = appendCount(dst, "nModified", p.modified)
	}
	return closeDocument(bsoncore.AppendDoubleElement(dst, "ok", 1), start)
}
