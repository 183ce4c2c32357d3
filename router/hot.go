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
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

// The hot path: a find, insert, update or delete of one document by its shard key, from the client's socket to the backend's and back.
//
//	serve        reads the message                                  (conn.go)
//	answerPoint  begins here
//	point.take   takes the command's fields, the partition, a shape
//	point.enter  passes the gate
//	point.send   looks at the lease and sends
//	point.Take   is told of the backend's answer by the goroutine that reads for all who share the connection, looks at the lease again, leaves the gate
//	             and writes; with nobody else on the connection answerPoint waits itself, and point.settle does that
//	point.reply  copies it under the client's names
//
// What is not simply ok and whatever has to wait goes by point.settle, on a goroutine that may: the client's, or one of its own.
//
// It does nothing that dispatch, find (find.go) and write (writes.go) do not do, and leaves to them whatever is not plain: a field that it does not know, a
// field twice, a type that is not the usual one, a malformed value. So they alone say what is an error. It allocates nothing; docs/performance.md
// says what each part costs.

// point is such a command on its way. They are pooled: a connection has one only while it answers.
type point struct {
	kind   *pointKind
	q      Request
	msg    wire.Msg
	seen   field // in the body
	db     []byte
	target shardkey.Target
	ns     []byte
	filter bson.Raw

	// Of a find.
	limit int64
	sorts bool

	// Of a write: its only statement, an update's u, and what the backend counted.
	stmt        bson.Raw
	update      bsoncore.Value
	ordered     bool
	n, modified int64
	// made is room for a document that is given an _id.
	made []byte

	coll  *partition.Collection
	parts []*partition.Part // the one
	shape backend.Shape

	// What is under way: the client's message, the context, the call, and of a write the message to the backend, which may have to go again.
	m    wire.Message
	ctx  context.Context
	sent call
	out  *wire.Buffer
	// session is the derived one of a retryable write.
	session sessionKey
	// lent says that a handler may have kept the request.
	lent bool
}

// pointKind is what the commands that the hot path answers differ in. Static after New.
type pointKind struct {
	command *Command
	// begins is what a body of this command has behind its length.
	begins string
	fields field
	mode   partition.Mode
	// write is nil for a find.
	write *writeKind
	to    *targeted
	shape shape
}

// pointKinds returns the rows of a router's hot path.
func pointKinds(r *Router) []pointKind {
	kinds := []pointKind{
		{command: r.commands["find"], fields: fieldsOfFind, mode: partition.Read, to: &r.stats.toFind},
		{command: r.commands["insert"], fields: fieldsOfWrite, mode: partition.Write, write: &inserts},
		{command: r.commands["update"], fields: fieldsOfWrite, mode: partition.Write, write: &updates},
		{command: r.commands["delete"], fields: fieldsOfWrite, mode: partition.Write, write: &deletes},
	}
	for i := range kinds {
		k := &kinds[i]
		k.begins, k.shape = "\x02"+k.command.Name+"\x00", shapeOf(k.command.Name)
		if k.write != nil {
			k.to = k.write.targeted(&r.stats)
		}
	}
	return kinds
}

// pointKind returns what the hot path may do with a message, nil for nothing.
func (r *Router) pointKind(msg []byte) *pointKind {
	if len(msg) < bodyAt+5 {
		return nil
	}
	for i := range r.points {
		if k := &r.points[i]; len(msg) > bodyAt+4+len(k.begins) && string(msg[bodyAt+4:bodyAt+4+len(k.begins)]) == k.begins {
			return k
		}
	}
	return nil
}

// bodyAt is where the body of an OP_MSG begins, if it is the first section.
const bodyAt = wire.HeaderLen + 4 + 1

var points = sync.Pool{New: func() any { return &point{ns: make([]byte, 0, maxNS+1), parts: make([]*partition.Part, 0, 1)} }}

// release gives p back. Nothing may refer to its request any more.
func (p *point) release() {
	p.out.Release()
	p.out = nil
	if p.lent {
		return
	}
	p.forget()
	points.Put(p)
}

// forget forgets all but the memory that can be used again.
func (p *point) forget() {
	clear(p.target.Values)
	positions, values, ns, parts, made := p.target.Positions[:0], p.target.Values[:0], p.ns[:0], p.parts[:0], p.made[:0]
	*p = point{} // in place: a literal with these would be made beside it and copied
	p.target.Positions, p.target.Values, p.ns, p.parts, p.made = positions, values, ns, parts, made
}

// pointFate is what became of a message that seemed to be one for the hot path.
type pointFate int

const (
	// pointRefused: it is not.
	pointRefused pointFate = iota
	pointAnswered
	// pointGiven: it will be answered by another goroutine, which ends with Conn.endGiven.
	pointGiven
)

// answerPoint answers a command of that kind. An error ends the connection.
func (c *Conn) answerPoint(ctx context.Context, m wire.Message, kind *pointKind) (pointFate, error) {
	p := points.Get().(*point)
	p.q.Conn, p.q.Msg, p.q.Started = c, &p.msg, time.Now()
	if !p.take(c.r, m, kind) {
		p.release()
		return pointRefused, nil
	}
	p.m, p.ctx = m, ctx
	r, q := c.r, &p.q
	q.Command, q.Name, q.DB = p.kind.command, p.kind.command.Name, p.coll.DB
	r.stats.count(q.Command)
	c.show(q)
	if q.HasTxn && r.txns.open.Load() > 0 {
		r.outrun(q)
	}
	reply, within, err := p.enter(r)
	if !within {
		defer p.release()
		return pointAnswered, p.finish(reply, err)
	}
	p.kind.to.one.Add(1)
	var got backend.Reply
	if err = p.send(r); mustReplan(err) {
		partition.Leave(p.parts, p.kind.mode)
		defer p.release()
		return pointAnswered, p.finish(p.again())
	}
	if err == nil {
		if c.socket != nil && p.sent.pending.Hand(p) {
			return pointGiven, nil
		}
		got, err = p.sent.wait()
	}
	defer p.release()
	return pointAnswered, p.settle(got, err)
}

// field is one of a command's fields, or several of them.
type field uint

// The fields that the hot path knows; each may come once.
const (
	fieldSession field = 1 << iota
	fieldDB
	fieldClusterTime
	fieldReadPreference

	fieldFilter
	fieldLimit
	fieldSingleBatch
	fieldProjection
	fieldSort

	fieldTxnNumber
	fieldWriteConcern
	fieldOrdered
	fieldStatements

	fieldsOfAll   = fieldSession | fieldDB | fieldClusterTime | fieldReadPreference
	fieldsOfFind  = fieldsOfAll | fieldFilter | fieldLimit | fieldSingleBatch | fieldProjection | fieldSort
	fieldsOfWrite = fieldsOfAll | fieldTxnNumber | fieldWriteConcern | fieldOrdered | fieldStatements
)

// take reports whether the hot path answers m, which seems to be of that kind, and plans it.
func (p *point) take(r *Router, m wire.Message, kind *pointKind) bool {
	if wire.ParseMsg(m, &p.msg) != nil || p.msg.Flags != 0 || r.params.requireAPIVersion.Load() || p.msg.CheckDepth() != nil {
		return false
	}
	p.kind, p.ordered = kind, true
	it := element.In(p.msg.Body)
	var e element.Element
	if !it.Next(&e) || string(e.Key) != kind.command.Name || !isText(&e) {
		return false
	}
	p.q.First = e.Value()
	for it.Next(&e) {
		f, ok := p.read(&e)
		if !ok || f&kind.fields == 0 || f&p.seen != 0 {
			return false
		}
		p.seen |= f
	}
	if it.Malformed() || p.seen&fieldDB == 0 {
		return false
	}
	p.ns = append(append(append(p.ns[:0], p.db...), '.'), textOf(p.q.First)...)
	if kind.write != nil {
		return p.readWrite() && p.place(r)
	}
	return p.readFind() && p.place(r)
}

// read takes one field of the command; false when it is not plain.
func (p *point) read(e *element.Element) (f field, ok bool) {
	switch q := &p.q; string(e.Key) {
	case "lsid":
		return fieldSession, q.parseSession(e.Value()) == nil
	case "$db":
		p.db = textOf(e.Value())
		return fieldDB, isText(e)
	case "$clusterTime":
		return fieldClusterTime, e.Type == bsoncore.TypeEmbeddedDocument
	case "$readPreference":
		return fieldReadPreference, isPrimary(e.Value())
	case "filter":
		p.filter = e.Data
		return fieldFilter, e.Type == bsoncore.TypeEmbeddedDocument
	case "limit":
		p.limit, ok = e.Value().AsInt64OK()
		return fieldLimit, ok && e.Type != bsoncore.TypeDouble
	case "singleBatch":
		return fieldSingleBatch, e.Type == bsoncore.TypeBoolean
	case "projection":
		return fieldProjection, e.Type == bsoncore.TypeEmbeddedDocument && checkProjection(e.Data) == nil
	case "sort":
		p.sorts = len(e.Data) > 5
		return fieldSort, e.Type == bsoncore.TypeEmbeddedDocument
	case "txnNumber":
		if e.Type != bsoncore.TypeInt64 {
			return 0, false
		}
		q.TxnNumber, q.HasTxn = e.Value().Int64(), true
		return fieldTxnNumber, q.TxnNumber >= 0
	case "writeConcern":
		q.WriteConcern = e.Data
		return fieldWriteConcern, e.Type == bsoncore.TypeEmbeddedDocument && plainConcern(e.Data)
	case "ordered":
		p.ordered = len(e.Data) == 1 && e.Data[0] == 1
		return fieldOrdered, e.Type == bsoncore.TypeBoolean
	case "documents", "updates", "deletes":
		if p.kind.write == nil || string(e.Key) != p.kind.write.list || e.Type != bsoncore.TypeArray {
			return 0, false
		}
		p.stmt, ok = only(e.Data)
		return fieldStatements, ok
	}
	return 0, false
}

// readFind reports whether the rest of a find is plain.
func (p *point) readFind() bool {
	if len(p.msg.Sequences) != 0 || len(p.filter) <= 5 || p.limit < 1 || p.limit > shortLimit {
		return false
	}
	h := p.kind.shape.and(p.ns)
	if p.sorts {
		h = h.name("sort")
	}
	p.shape = backend.Shape(h.filter(bsoncore.Document(p.filter)))
	return true
}

// place looks the partition up in the map as it is now; false when the general code must.
func (p *point) place(r *Router) bool {
	view := r.cfg.Table.View()
	c := view.Sharded(p.ns)
	if c == nil || c.Dropped() || len(c.DB) != len(p.db) {
		return false
	}
	pos, ok := p.position(c.Key)
	if !ok {
		return false
	}
	p.coll, p.parts = c, append(p.parts[:0], c.At(pos))
	return p.kind.write == nil || p.mayWrite(r, view, pos)
}

// position returns where the one document is or goes; false unless that is one position.
func (p *point) position(key *shardkey.Pattern) (shardkey.Position, bool) {
	if p.kind.write == &inserts {
		v, err := key.Value(p.stmt)
		if err != nil || key.EmptyTimestamp(v) {
			return 0, false
		}
		pos, err := shardkey.HashValue(v)
		return pos, err == nil
	}
	key.TargetInto(&p.target, p.filter, true)
	if !p.target.Bound || len(p.target.Positions) != 1 {
		return 0, false
	}
	return p.target.Positions[0], true
}

// enter passes the gate of the command's partition. Where there is none any more, the general code has answered or err says why not.
func (p *point) enter(r *Router) (reply Reply, within bool, err error) {
	for {
		err := partition.Enter(p.ctx, p.parts, p.kind.mode)
		if err == nil {
			return Reply{}, true, nil
		}
		if !errors.Is(err, partition.ErrReplan) {
			return Reply{}, false, err
		}
		if !p.place(r) { // dropped, or another key by now
			reply, err = p.again()
			return reply, false, err
		}
	}
}

// send sends the command to its partition.
func (p *point) send(r *Router) (err error) {
	part := p.parts[0]
	to := target{Backend: part.Backend, Part: part, Shape: p.shape}
	if p.kind.write != nil {
		if p.q.HasTxn {
			if p.session, err = r.derivedFor(&p.q, part.Home); err != nil {
				return err
			}
		}
		p.out = p.message(part)
		p.sent, err = r.send(p.ctx, to, p.out.B)
		return err
	}
	buf := wire.GetBuffer(len(p.msg.Body) + 512)
	buf.B = wire.AppendMsgStart(buf.B[:0])
	buf.B = wire.Seal(p.q.appendFor(buf.B, part, true, nil, nil), 0)
	p.sent, err = r.send(p.ctx, to, buf.B)
	buf.Release()
	return err
}

// Take is told what the backend has answered, as the call's taker.
func (p *point) Take(got backend.Reply, err error) {
	got, err = p.sent.judge(got, err)
	var buf *wire.Buffer
	if err == nil {
		buf = p.reply(got)
	}
	if buf == nil {
		go p.settleGiven(got, err)
		return
	}
	partition.Leave(p.parts, p.kind.mode)
	c := p.q.Conn
	c.r.logSlow(&p.q, nil, got.Came)
	got.Release()
	rest, err := c.writeNow(buf.B)
	if err == nil && len(rest) > 0 {
		go p.writeGiven(buf, rest)
		return
	}
	buf.Release()
	p.end(err)
}

// settleGiven is settle for a command that was given away.
func (p *point) settleGiven(got backend.Reply, err error) { p.end(p.settle(got, err)) }

// writeGiven writes the rest of the reply to a command that was given away.
func (p *point) writeGiven(buf *wire.Buffer, rest []byte) {
	err := p.q.Conn.writeRest(rest)
	buf.Release()
	p.end(err)
}

// end ends a command that was given away. The connection waits for it (Conn.await); what is left after that is to give memory back.
func (p *point) end(lost error) {
	m := p.m
	p.q.Conn.endGiven(lost) // from here on nobody is shown p
	p.release()
	m.Release()
}

// settle does whatever follows the backend's answer, or its failing to come, and tells the client.
func (p *point) settle(got backend.Reply, err error) error {
	var reply Reply
	if err == nil {
		if buf := p.reply(got); buf != nil {
			defer buf.Release()
			partition.Leave(p.parts, p.kind.mode)
			p.over(nil, got.Came)
			got.Release()
			return p.q.Conn.write(buf.B, wire.NoCompression)
		}
	}
	if p.kind.write != nil {
		reply, err = p.written(got, err)
	} else if err == nil {
		reply, err = p.found(got)
	}
	partition.Leave(p.parts, p.kind.mode)
	// A find is run again where that may help, and so is a retryable write that could not be sent again from where it was: the general code does what follows when a
	// client sends them again.
	if p.kind.write == nil && mayRepeat(p.ctx, err) || mustReplan(err) {
		reply, err = p.again()
	}
	return p.finish(reply, err)
}

// again has the general code answer a command whose gate has been left.
func (p *point) again() (Reply, error) {
	p.lent = true
	return p.q.Command.Run(p.ctx, &p.q)
}

// found makes the client's reply of one to a find that is not plain: a cursor was left open, or it is an error.
func (p *point) found(got backend.Reply) (reply Reply, err error) {
	defer got.Release()
	r := p.q.Conn.r
	if id, ok := cursorID(got.Body); ok && id != 0 {
		p.lent = true
		return r.relayOpen(&p.q, p.coll, p.parts, got, false)
	}
	if err = commandError(got.Body); err == nil {
		reply = Reply{Body: relay(got.Body)}
	}
	return reply, err
}

// over ends what is told of the request while it lasts.
func (p *point) over(err error, now time.Time) {
	c := p.q.Conn
	c.show(nil)
	if err != nil {
		c.r.stats.failed.Add(1)
	}
	c.r.logSlow(&p.q, err, now)
}

// finish tells the client the general code's reply or an error.
func (p *point) finish(reply Reply, err error) error {
	if err != nil {
		err = p.q.labelled(interruption(p.ctx, err))
	}
	p.over(err, time.Now())
	return p.q.Conn.writeReply(p.m.Header.RequestID, 0, wire.NoCompression, reply, err)
}

// reply makes the client's reply of a backend's that says no more than the hot path understands: ok, with no cursor left open, which it copies under the client's
// name of the collection, or with nothing to tell of a write but counts. It returns nil for any other.
func (p *point) reply(got backend.Reply) *wire.Buffer {
	buf := wire.GetBuffer(len(got.Body) + len(p.ns) + 64)
	dst := wire.AppendMsgStart(buf.B[:0])
	ok := false
	if p.kind.write == nil {
		dst, ok = appendEndedCursor(dst, got.Body, p.coll.NS)
	} else if ok = p.count(got.Body); ok {
		dst = p.appendCounts(dst)
	}
	if buf.B = dst; !ok {
		buf.Release()
		return nil
	}
	c := p.q.Conn
	c.nextID++
	buf.B = wire.Seal(buf.B, 0)
	wire.SetRequestID(buf.B, c.nextID)
	wire.SetResponseTo(buf.B, p.m.Header.RequestID)
	return buf
}

// cursorID returns the id of the cursor in a reply that says ok: 1; false for any other reply.
func cursorID(body []byte) (id int64, found bool) {
	it := element.In(body)
	var e element.Element
	var ok bool
	for it.Next(&e) {
		switch string(e.Key) {
		case "ok":
			n, number := e.Value().AsFloat64OK()
			ok = number && n == 1
		case "cursor":
			v, _ := element.Lookup(e.Data, "id")
			id, found = v.AsInt64OK()
		}
	}
	return id, found && ok && !it.Malformed()
}

// isText reports whether e is a string that ends as one.
func isText(e *element.Element) bool {
	text, ok := element.Text(e.Data)
	return ok && e.Type == bsoncore.TypeString && e.Data[4+len(text)] == 0
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
