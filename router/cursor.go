package router

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

const (
	// cursorTimeout is how long a cursor may lie idle (mongod's cursorTimeoutMillis).
	cursorTimeout = 10 * time.Minute
	// cursorSweep is how often idle cursors are looked for.
	cursorSweep = 4 * time.Second
	// maxCursors bounds the cursors of one proxy.
	maxCursors = 100000
	// firstBatch is how many documents a first batch has unless the client says otherwise.
	firstBatch = 101
)

// batch is what a cursor returns at once: documents as the elements of a BSON array.
type batch struct {
	docs []byte
	n    int
	// full is from how many bytes on the batch has enough when the number of documents is not limited; 0 is what a reply holds.
	full int
	// buf, if not nil, is what docs lies in as far as it fits, behind headroom.
	buf *wire.Buffer
}

const (
	// enough is how many bytes a reply has when the client does not say how many documents it wants. A server would fill 16 MB; what the client has early it
	// can work on while the rest comes, and buffers of this size are used again.
	enough = 1 << 20
	// nextBatchStart is what precedes the documents in the reply to a getMore: headers of the message, of the reply, of its cursor and of the array.
	nextBatchStart = wire.MsgBodyStart + 4 + len("_cursor_") + 4 + len("_nextBatch_") + 4
	// cursorReplyRest is the most that follows the documents, but for the namespace.
	cursorReplyRest = 64
)

// largeBatch makes a batch that has enough with that, for the reply to a getMore: documents are put where they are sent from. Release it unless a reply owns it.
func largeBatch() *batch { return &batch{full: enough} }

// room has the batch's documents in a buffer with room for size bytes of them.
func (b *batch) room(size int) {
	b.buf.Release()
	b.buf = wire.GetBuffer(nextBatchStart + size + cursorReplyRest)
	b.docs = b.buf.B[nextBatchStart:nextBatchStart]
}

// takeWhole takes all documents of a branch, about n, into an empty batch, which then is full. They stay where they are when the reply can be made around them.
func (b *batch) takeWhole(br *branch, n int) {
	docs, buf := br.docs, br.reply.Detach()
	br.docs, br.batch, b.n = nil, nil, max(1, n)
	if buf != nil && len(buf.B) >= nextBatchStart+len(docs) && &buf.B[nextBatchStart] == &docs[0] {
		b.buf.Release()
		b.buf, b.docs = buf, buf.B[nextBatchStart:][:len(docs)]
		return
	}
	b.room(len(docs))
	b.docs = append(b.docs, docs...)
	buf.Release()
}

// wants reports whether a batch of at most limit documents, 0 for any number, is to have one more.
func (b *batch) wants(limit int) bool {
	if limit > 0 {
		return b.n < limit
	}
	return b.full == 0 || len(b.docs) < b.full
}

func (b *batch) release() {
	b.buf.Release()
	b.buf, b.docs = nil, nil
}

func (b *batch) add(doc bson.Raw) {
	if b.full > 0 && b.docs == nil {
		b.room(b.full + b.full/2)
	}
	b.docs = bsoncore.AppendDocumentElement(b.docs, arrayIndex(b.n), bsoncore.Document(doc))
	b.n++
}

// fits reports whether one more document keeps the reply within 16 MB; one document always fits.
func (b *batch) fits(doc bson.Raw) bool {
	return b.n == 0 || len(b.docs)+len(doc)+16 <= wire.MaxDocumentSize
}

// source is where a cursor's documents come from.
type source interface {
	// fill adds documents to b until it has limit of them (0: as many as fit) or the source is exhausted, which it reports.
	fill(ctx context.Context, q *Request, b *batch, limit int) (done bool, err error)
	// close ends what is open at backends. It is called once.
	close()
}

// cursor is one client cursor.
type cursor struct {
	// static
	id      int64
	ns      string
	session []byte
	src     source
	held    []*partition.Part
	forever bool         // noCursorTimeout
	txn     *transaction // that it belongs to
	api     apiParams    // which every getMore must repeat
	conn    *Conn        // that it is pinned to; nil unless its client is behind a load balancer

	// guarded by cursors.mu
	busy     bool
	lastUsed time.Time
	killed   bool
}

// cursors are a router's open cursors.
type cursors struct {
	mu   sync.Mutex
	byID map[int64]*cursor
	// condemned are the ids of cursors that this proxy has killed of itself.
	condemned map[int64]bool
}

// hold counts the parts' gates for the drain while a cursor lives.
func hold(parts []*partition.Part) []*partition.Part {
	held := append([]*partition.Part(nil), parts...)
	for _, p := range held {
		p.Gate().Hold()
	}
	return held
}

// open registers a cursor; it must be called inside the gates of parts. The cursor is busy until release.
func (cs *cursors) open(q *Request, ns string, src source, parts []*partition.Part, forever bool) (*cursor, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byID == nil {
		cs.byID = map[int64]*cursor{}
	}
	if len(cs.byID) >= maxCursors {
		return nil, wire.Errorf(wire.ExceededMemoryLimit, "this proxy has %d open cursors, which is its limit", maxCursors)
	}
	c := &cursor{ns: ns, session: bytes.Clone(q.Session), src: src, forever: forever, txn: q.txn, api: q.api.params(), busy: true, lastUsed: time.Now()}
	for c.id == 0 || cs.byID[c.id] != nil {
		c.id = randomID()
	}
	if q.Conn != nil && q.Conn.loadBalanced {
		c.conn = q.Conn
	}
	c.held = hold(parts)
	cs.byID[c.id] = c
	return c, nil
}

// randomID returns a random positive 63-bit number.
func randomID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:]) >> 1)
}

// take finds a cursor for a getMore and marks it busy (codes of mongos-behaviour §5.3).
func (cs *cursors) take(q *Request, id int64, ns string) (*cursor, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.byID[id]
	switch {
	case c == nil && cs.condemned[id], c != nil && c.killed && cs.condemned[id]:
		return nil, wire.Errorf(wire.CursorKilled, "cursor id %d was killed: its partition was replaced long ago, or this proxy was cut off from its backend", id)
	case c == nil:
		return nil, wire.Errorf(wire.CursorNotFound, "cursor id %d not found", id)
	case c.ns != ns:
		return nil, wire.Errorf(wire.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", ns, c.ns)
	case c.busy:
		return nil, wire.Errorf(wire.CursorInUse, "cursor id %d is already in use", id)
	case c.session == nil && q.Session != nil:
		return nil, wire.Errorf(50799, "Cannot run getMore on cursor %d, which was not created in a session, in session", id)
	case c.session != nil && q.Session == nil:
		return nil, wire.Errorf(50800, "Cannot run getMore on cursor %d, which was created in a session, without an lsid", id)
	case !sameSession(c.session, q.Session):
		return nil, wire.Errorf(50801, "Cannot run getMore on cursor %d, which was created in another session", id)
	}
	if err := c.checkTransaction(q); err != nil {
		return nil, err
	}
	if got := q.api.params(); got != c.api {
		return nil, wire.Errorf(wire.APIMismatchError, "API parameter mismatch: getMore used params %v, the cursor-creating command used %v", got, c.api)
	}
	c.busy = true
	return c, nil
}

// checkTransaction refuses a getMore from inside a transaction for a cursor from outside, and the other way round.
func (c *cursor) checkTransaction(q *Request) error {
	switch {
	case c.txn == nil && q.InTxn:
		return wire.Errorf(50803, "Cannot run getMore on cursor %d, which was not created in a transaction, in transaction %d", c.id, q.TxnNumber)
	case c.txn != nil && !q.InTxn:
		return wire.Errorf(50804, "Cannot run getMore on cursor %d, which was created in transaction %d, without a txnNumber", c.id, c.txn.number)
	case c.txn != nil && c.txn != q.txn:
		return wire.Errorf(50802, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.id, c.txn.number, q.TxnNumber)
	}
	return nil
}

func sameSession(a, b bson.Raw) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return bytes.Equal(sessionID(a), sessionID(b))
}

// sessionID returns the 16 bytes of an lsid; parseShared has checked that they are there.
func sessionID(lsid bson.Raw) []byte {
	_, id, _ := bsoncore.Document(lsid).Lookup("id").BinaryOK()
	return id
}

// release ends a use of a cursor; a cursor that is done, or was killed meanwhile, is closed.
func (cs *cursors) release(c *cursor, done bool) {
	cs.mu.Lock()
	c.busy = false
	c.lastUsed = time.Now()
	drop := done || c.killed
	if drop {
		delete(cs.byID, c.id)
	}
	cs.mu.Unlock()
	if drop {
		c.end()
	}
}

func (c *cursor) end() {
	c.src.close()
	for _, p := range c.held {
		p.Gate().Unhold()
	}
	c.held = nil
}

// kill ends a cursor, at once or when its getMore has ended; it reports whether there was one.
func (cs *cursors) kill(id int64, ns string) bool {
	cs.mu.Lock()
	c := cs.byID[id]
	if c == nil || ns != "" && c.ns != ns {
		cs.mu.Unlock()
		return false
	}
	now := !c.busy
	c.killed = true
	if now {
		delete(cs.byID, id)
	}
	cs.mu.Unlock()
	if now {
		c.end()
	}
	return true
}

// killWhere kills the cursors that match accepts.
func (cs *cursors) killWhere(match func(*cursor) bool) {
	cs.mu.Lock()
	var ids []int64
	for id, c := range cs.byID {
		if match(c) {
			ids = append(ids, id)
		}
	}
	cs.mu.Unlock()
	for _, id := range ids {
		cs.kill(id, "")
	}
}

// each calls f with every open cursor, under the lock.
func (cs *cursors) each(f func(*cursor)) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byID {
		f(c)
	}
}

// sweep kills idle cursors every few seconds until ctx ends, and then all of them.
func (cs *cursors) sweep(ctx context.Context) {
	t := time.NewTicker(cursorSweep)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			cs.killWhere(func(*cursor) bool { return true })
			return
		case <-t.C:
			old := time.Now().Add(-cursorTimeout)
			cs.killWhere(func(c *cursor) bool { return !c.busy && !c.forever && c.lastUsed.Before(old) })
		}
	}
}

// count is the number of open cursors.
func (cs *cursors) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.byID)
}

// nextBatchReply is the reply to a getMore, made where the documents of a largeBatch are as long as they fit there.
func nextBatchReply(b *batch, id int64, ns string) Reply {
	if b.buf == nil || len(b.docs) == 0 || &b.docs[0] != &b.buf.B[nextBatchStart] || cap(b.docs)-len(b.docs) < len(ns)+cursorReplyRest {
		defer b.release()
		return Reply{Body: cursorReply("nextBatch", b, id, ns, false)}
	}
	d := wire.AppendMsgStart(b.buf.B[:0])
	start, d := bsoncore.AppendDocumentStart(d)
	at, d := bsoncore.AppendDocumentElementStart(d, "cursor")
	arr, d := bsoncore.AppendArrayElementStart(d, "nextBatch")
	d = endCursorReply(d[:len(d)+len(b.docs)], start, at, arr, id, ns, false)
	b.buf.B = d
	return Reply{Body: bson.Raw(d[start:]), Message: b.buf, Owner: b.buf}
}

// cursorReply builds {cursor: {firstBatch|nextBatch, id, ns}, ok: 1}.
func cursorReply(field string, b *batch, id int64, ns string, partial bool) bson.Raw {
	start, d := bsoncore.AppendDocumentStart(make([]byte, 0, len(b.docs)+len(ns)+96))
	at, d := bsoncore.AppendDocumentElementStart(d, "cursor")
	arr, d := bsoncore.AppendArrayElementStart(d, field)
	return endCursorReply(append(d, b.docs...), start, at, arr, id, ns, partial)
}

// endCursorReply appends what follows the documents; start, at and arr are where the reply, its cursor and the array begin.
func endCursorReply(d []byte, start, at, arr int32, id int64, ns string, partial bool) []byte {
	d, _ = bsoncore.AppendArrayEnd(d, arr)
	if partial {
		d = bsoncore.AppendBooleanElement(d, "partialResultsReturned", true)
	}
	d = bsoncore.AppendInt64Element(d, "id", id)
	d = bsoncore.AppendStringElement(d, "ns", ns)
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	d = bsoncore.AppendDoubleElement(d, "ok", 1)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return d
}
