package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// The hot path: a find of one document by its shard key, from the client's socket to the backend's and back.
//
//	serve       reads the message                                  (conn.go)
//	answerPoint begins here
//	point.read  takes the command's fields, the partition, a shape
//	point.ask   passes the gate, looks at the lease, sends, waits, looks again
//	point.reply copies the answer under the client's names and writes it
//
// It does nothing that dispatch and find (find.go) do not do, and leaves to them whatever is not plain: a field that it does not know, a field
// twice, a type that is not the usual one, a malformed value. So they alone say what is an error. It allocates nothing; docs/performance.md
// says what each part costs.

// point is such a find on its way. They are pooled: a connection has one only while it answers.
type point struct {
	q      Request
	msg    wire.Msg
	target shardkey.Target
	ns     []byte
	filter bson.Raw

	coll  *partition.Collection
	parts []*partition.Part // the one
	shape backend.Shape
	// lent says that a handler may have kept the request.
	lent bool
}

var points = sync.Pool{New: func() any { return &point{ns: make([]byte, 0, maxNS+1), parts: make([]*partition.Part, 0, 1)} }}

// release gives p back. Nothing may refer to its request any more.
func (p *point) release() {
	if p.lent {
		return
	}
	p.forget()
	points.Put(p)
}

// forget forgets all but the memory that can be used again.
func (p *point) forget() {
	p.q, p.msg, p.filter, p.coll, p.parts = Request{}, wire.Msg{}, nil, nil, p.parts[:0]
	clear(p.target.Values)
}

// looksLikeFind reports whether a message's first section begins with a find.
func looksLikeFind(msg []byte) bool {
	const begin = "\x02find\x00"
	return len(msg) > bodyAt+4+len(begin) && string(msg[bodyAt+4:bodyAt+4+len(begin)]) == begin
}

// bodyAt is where the body of an OP_MSG with one section begins.
const bodyAt = wire.HeaderLen + 4 + 1

// answerPoint answers a find of one document by its key. Others it does not take; an error ends the connection.
func (c *Conn) answerPoint(ctx context.Context, m wire.Message) (taken bool, err error) {
	p := points.Get().(*point)
	defer p.release()
	p.q.Conn, p.q.Msg, p.q.Started = c, &p.msg, time.Now()
	if wire.ParseMsg(m, &p.msg) != nil || !p.read(c.r) {
		return false, nil
	}
	told, lost := p.answer(ctx, c, m)
	if told != nil {
		lost = c.writeReply(m.Header.RequestID, 0, wire.NoCompression, Reply{}, told)
	}
	return true, lost
}

// fields of a find that the hot path knows; each may come once.
const (
	fieldFilter = 1 << iota
	fieldLimit
	fieldSingleBatch
	fieldProjection
	fieldSort
	fieldSession
	fieldDB
	fieldClusterTime
	fieldReadPreference
)

// read reports whether the message in p.msg is a find that the hot path answers, and plans it.
func (p *point) read(r *Router) bool {
	q := &p.q
	if p.msg.Flags != 0 || len(p.msg.Sequences) != 0 || r.params.requireAPIVersion.Load() {
		return false
	}
	var seen int
	var filter bsoncore.Document
	var limit int64
	var db []byte
	shape := shapeOf("find")
	rem := p.msg.Body[4:]
	for first := true; len(rem) > 1; first = false {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || unusual(elem) {
			return false
		}
		rem = rest
		key, v := elem.KeyBytes(), elem.Value()
		if first {
			if string(key) != "find" || v.Type != bsoncore.TypeString {
				return false
			}
			q.First = v
			continue
		}
		var field int
		switch string(key) {
		case "filter":
			field, ok = fieldFilter, v.Type == bsoncore.TypeEmbeddedDocument
			filter = v.Data
		case "limit":
			field = fieldLimit
			limit, ok = v.AsInt64OK()
			ok = ok && v.Type != bsoncore.TypeDouble
		case "singleBatch":
			field, ok = fieldSingleBatch, v.Type == bsoncore.TypeBoolean
		case "projection":
			field, ok = fieldProjection, v.Type == bsoncore.TypeEmbeddedDocument && checkProjection(v.Data) == nil
		case "sort":
			field, ok = fieldSort, v.Type == bsoncore.TypeEmbeddedDocument
			shape = shape.and(key)
		case "lsid":
			field, ok = fieldSession, q.parseSession(v) == nil
		case "$db":
			field, ok = fieldDB, v.Type == bsoncore.TypeString
			db = textOf(v)
		case "$clusterTime":
			field, ok = fieldClusterTime, v.Type == bsoncore.TypeEmbeddedDocument
		case "$readPreference":
			field, ok = fieldReadPreference, isPrimary(v)
		default:
			ok = false
		}
		if !ok || seen&field != 0 {
			return false
		}
		seen |= field
	}
	if len(rem) != 1 || rem[0] != 0 || q.First.Type == 0 || seen&fieldDB == 0 || limit < 1 || limit > shortLimit {
		return false
	}
	return p.plan(r, db, filter, shape)
}

// plan finds the one partition that the filter concerns.
func (p *point) plan(r *Router, db []byte, filter bsoncore.Document, shape shape) bool {
	p.ns = append(append(append(p.ns[:0], db...), '.'), textOf(p.q.First)...)
	p.filter = bson.Raw(filter)
	if len(filter) <= 5 || !p.place(r) {
		return false
	}
	p.shape = backend.Shape(shape.and(p.ns).filter(filter))
	return true
}

// place looks the partition up in the map as it is now.
func (p *point) place(r *Router) bool {
	if p.coll = r.cfg.Table.View().Sharded(p.ns); p.coll == nil {
		return false
	}
	p.coll.Key.TargetInto(&p.target, p.filter, true)
	if !p.target.Bound || len(p.target.Positions) != 1 {
		return false
	}
	p.parts = append(p.parts[:0], p.coll.At(p.target.Positions[0]))
	return true
}

// answer answers the find, or reports an error for the client (told) or of the connection.
func (p *point) answer(ctx context.Context, c *Conn, m wire.Message) (told, lost error) {
	r, q := c.r, &p.q
	q.Command, q.Name, q.DB = r.findCommand, r.findCommand.Name, p.coll.DB
	r.stats.count(q.Command)
	c.show(q)
	got, reply, err := p.ask(ctx, r)
	c.show(nil)
	if err != nil {
		r.stats.failed.Add(1)
		err = interruption(ctx, err)
	}
	r.logSlow(q, err)
	switch {
	case err != nil:
		return err, nil
	case reply.Body != nil:
		return nil, c.writeReply(m.Header.RequestID, 0, wire.NoCompression, reply, nil)
	}
	return nil, p.reply(c, m.Header.RequestID, got)
}

// ask sends the find to its partition and returns what came. Where a cursor was left open reply is the client's instead.
func (p *point) ask(ctx context.Context, r *Router) (got backend.Reply, reply Reply, err error) {
	for {
		err := partition.Enter(ctx, p.parts, partition.Read)
		if err == nil {
			break
		}
		if !errors.Is(err, partition.ErrReplan) {
			return got, reply, err
		}
		if !p.place(r) { // dropped, or another key by now
			p.lent = true
			reply, err = r.find(ctx, &p.q)
			return got, reply, err
		}
	}
	defer partition.Leave(p.parts, partition.Read)

	r.stats.toFind.one.Add(1)
	part := p.parts[0]
	buf := wire.GetBuffer(len(p.msg.Body) + 512)
	buf.B = wire.AppendMsgStart(buf.B[:0])
	buf.B = wire.Seal(p.q.appendFor(buf.B, part, true, nil, nil), 0)
	sent, err := r.send(ctx, target{Backend: part.Backend, Part: part, Shape: p.shape}, buf.B)
	buf.Release()
	if err != nil {
		return got, reply, err
	}
	if got, err = sent.wait(); err != nil {
		return got, reply, err
	}
	id, ok := cursorID(got.Body)
	switch {
	case !ok:
		if err = commandError(got.Body); err == nil {
			reply = Reply{Body: relay(got.Body)}
		}
	case id != 0:
		p.lent = true
		reply, err = r.relayOpen(&p.q, p.coll, p.parts, got, false)
	default:
		return got, reply, nil
	}
	got.Release()
	return backend.Reply{}, reply, err
}

// reply writes a backend's reply to the client, with the client's name of the collection.
func (p *point) reply(c *Conn, to int32, got backend.Reply) error {
	buf := wire.GetBuffer(len(got.Body) + len(p.ns) + 64)
	defer buf.Release()
	c.nextID++
	buf.B = wire.AppendMsgStart(buf.B[:0])
	buf.B = wire.Seal(appendRelayedCursor(buf.B, got.Body, 0, p.coll.NS), 0)
	got.Release()
	wire.SetRequestID(buf.B, c.nextID)
	wire.SetResponseTo(buf.B, to)
	return c.write(buf.B, wire.NoCompression)
}

// cursorID returns the id of the cursor in a reply that says ok: 1; false for any other reply.
func cursorID(body []byte) (id int64, found bool) {
	rem := body[4:]
	var ok bool
	for len(rem) > 1 {
		elem, rest, valid := bsoncore.ReadElement(rem)
		if !valid {
			return 0, false
		}
		rem = rest
		switch string(elem.KeyBytes()) {
		case "ok":
			n, number := elem.Value().AsFloat64OK()
			ok = number && n == 1
		case "cursor":
			id, found = bsoncore.Document(elem.Value().Data).Lookup("id").AsInt64OK()
		}
	}
	return id, found && ok
}

// unusual reports a string without its last zero, which ReadElement lets pass.
func unusual(e bsoncore.Element) bool {
	return bsoncore.Type(e[0]) == bsoncore.TypeString && e[len(e)-1] != 0
}

// textOf returns the bytes of a string value.
func textOf(v bsoncore.Value) []byte {
	if len(v.Data) < 5 {
		return nil
	}
	return v.Data[4 : len(v.Data)-1]
}

// isPrimary reports whether a $readPreference is {mode: "primary"}.
func isPrimary(v bsoncore.Value) bool {
	doc, ok := v.DocumentOK()
	if !ok {
		return false
	}
	e, rest, ok := bsoncore.ReadElement(doc[4:])
	return ok && len(rest) == 1 && string(e.KeyBytes()) == "mode" && string(textOf(e.Value())) == "primary"
}
