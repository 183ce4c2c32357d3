package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

const (
	// writeTimeout is how long a client may take to accept a reply before its connection is cut; writeRate, in bytes
	// per second, gives a large reply more.
	writeTimeout = 30 * time.Second
	writeRate    = 1 << 20
	// maxConns bounds the clients' connections; one more is closed at once.
	maxConns = 100_000
	// handshakeTimeout is how long a client may take for its TLS handshake.
	handshakeTimeout = 30 * time.Second
)

// endReason says why a connection ended; one log line and one counter each.
type endReason string

const (
	endClient   endReason = "client closed"
	endShutdown endReason = "shutdown"
	endProtocol endReason = "protocol error"
	endNetwork  endReason = "network error"
	endNoReply  endReason = "unacknowledged write failed"
	endGone     endReason = "client vanished during a request"
	// endResting is no end: another goroutine goes on.
	endResting endReason = "resting"
)

// Conn is one client's connection, whose requests are answered in lockstep: by the goroutine that reads them, or after it has given one away (hot.go), by the
// one that reads the backend's reply, while the first is on its way to read the next.
type Conn struct {
	// static after construction
	r  *Router
	id int64
	nc net.Conn
	// socket is nc if that is plain TCP, else nil.
	socket *wire.Socket
	// base is what the connection's contexts are made of.
	base context.Context

	began time.Time

	// owned by serve
	reader   *wire.Reader
	requests int64
	// nextID belongs to whoever answers.
	nextID int32
	// who tells whose connection it is, as far as can be told: the client's host and its description of itself. Everybody may read it.
	who atomic.Pointer[string]
	// loadBalanced says that its client reaches the proxy through a load balancer, and keeps cursors and transactions to this one connection.
	loadBalanced bool

	// guarded by mu
	mu   sync.Mutex
	busy bool // a request is being answered
	stop bool // close as soon as it is not
	// idle is signalled when busy ends. lost is why the answer to a request that was given away did not reach the client.
	idle sync.Cond
	lost error
	// rest is how it is told to go on with another goroutine while it is idle (conn_rest.go).
	rest resting
	// ctx ends when the connection does; killing a request ends it too, and serve makes a new one.
	ctx    *backend.Line
	cancel context.CancelCauseFunc
	// op is the request that a handler is running, for currentOp; number counts them.
	op     *Request
	number int64
	// metadata is the document by which the client described itself, nil before it did.
	metadata bson.Raw
}

var connIDs atomic.Int64

func (r *Router) acceptLoop(ctx context.Context, l net.Listener) error {
	var pause time.Duration
	for {
		nc, err := l.Accept()
		if err != nil {
			r.mu.Lock()
			closing := r.closing
			r.mu.Unlock()
			if closing || ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return ErrClosed
			}
			// Out of descriptors, most likely: wait rather than spin.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			r.log.Warn().Err(err).Dur("pause", pause).Msg("accept failed")
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ErrClosed
			}
			continue
		}
		pause = 0
		r.start(ctx, nc)
	}
}

func (r *Router) start(ctx context.Context, nc net.Conn) {
	nc = wire.NewSocket(nc)
	c := &Conn{r: r, id: connIDs.Add(1), nc: nc, base: ctx, began: time.Now(), reader: wire.NewReader(nc)}
	c.socket, _ = nc.(*wire.Socket)
	c.idle.L = &c.mu
	c.renew()
	c.isFrom(nil)
	r.mu.Lock()
	if r.closing || len(r.conns) >= maxConns {
		r.mu.Unlock()
		r.stats.rejected.Add(1)
		_ = nc.Close()
		return
	}
	r.conns[c] = struct{}{}
	r.wg.Add(1)
	r.mu.Unlock()
	r.stats.connections.Add(1)
	r.stats.created.Add(1)
	go func() {
		if err := c.handshake(ctx); err != nil {
			c.finish(c.over(err))
			return
		}
		c.run()
	}()
}

// handshake makes the TLS handshake of a connection that has one: with a deadline, which the first read would not give it.
func (c *Conn) handshake(ctx context.Context) error {
	secured, ok := c.nc.(interface {
		HandshakeContext(context.Context) error
	})
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return secured.HandshakeContext(ctx)
}

func (c *Conn) run() {
	reason, err := c.serve()
	if reason == endResting {
		go c.run()
		return
	}
	c.finish(reason, err)
}

// finish ends the connection and tells why.
func (c *Conn) finish(reason endReason, err error) {
	defer c.r.wg.Done()
	c.mu.Lock()
	c.ctx.Close()
	c.cancel(context.Canceled)
	metadata := c.metadata
	c.mu.Unlock()
	_ = c.nc.Close()
	c.reader.Release()
	if c.loadBalanced {
		c.r.cursors.killWhere(func(cur *cursor) bool { return cur.conn == c })
	}
	c.r.mu.Lock()
	delete(c.r.conns, c)
	c.r.mu.Unlock()
	c.r.clientGone(c)
	c.r.stats.connections.Add(-1)
	ev := c.r.log.Info()
	if reason != endClient && reason != endShutdown {
		ev = c.r.log.Warn().AnErr("error", err)
	}
	if ev.Enabled() && metadata != nil {
		ev = ev.Str("driver", metadataText(metadata, "driver", "name")).Str("app", metadataText(metadata, "application", "name"))
	}
	ev.Int64("conn", c.id).Stringer("client", c.nc.RemoteAddr()).Str("reason", string(reason)).
		Int64("requests", c.requests).Dur("open", time.Since(c.began)).Msg("connection ended")
}

// stopWhenIdle closes the connection now if no request is being answered, or right after its reply.
func (c *Conn) stopWhenIdle() {
	c.mu.Lock()
	c.stop = true
	idle := !c.busy
	c.mu.Unlock()
	if idle {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut ends the connection at once, whatever it is doing.
func (c *Conn) cut() {
	c.mu.Lock()
	c.stop = true
	c.cancel(wire.Errorf(wire.InterruptedAtShutdown, "the proxy is shutting down"))
	c.mu.Unlock()
	_ = c.nc.Close()
}

// interruptOp ends op with cause if it is still the request that a handler is running; the connection goes on.
func (c *Conn) interruptOp(op *Request, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.op == op {
		c.cancel(cause)
	}
}

// renew makes the connection's context.
func (c *Conn) renew() {
	ctx, cancel := context.WithCancelCause(c.base)
	c.ctx, c.cancel = backend.NewLine(ctx), cancel
}

// begin and end mark the time in which a request is being answered. begin waits for the answer to the one before and returns the context for the next; false when the
// connection has come to its end instead. end reports whether the connection is to end with the request.
func (c *Conn) begin() (context.Context, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		c.await()
		if c.stop {
			return nil, false
		}
	}
	if c.lost != nil {
		return nil, false
	}
	c.busy = true
	c.rest.answering()
	if c.ctx.Err() != nil && !c.stop { // the last request was killed
		c.renew()
	}
	return c.ctx, true
}

// await waits for the end of an answer that was given away; mu is held.
func (c *Conn) await() {
	for c.busy {
		c.idle.Wait()
	}
}

func (c *Conn) end() (stop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	return c.stop
}

// endGiven is end for an answer that was given away, and ends show: serve reads meanwhile, or waits for this. lost ends the connection.
func (c *Conn) endGiven(lost error) {
	c.mu.Lock()
	c.op, c.busy, c.lost = nil, false, lost
	over := c.stop || lost != nil
	c.mu.Unlock()
	c.idle.Signal()
	if over {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// show lets currentOp see a request, and with nil ends that: nothing of it may change or be released between.
// A request without a connection is not shown.
func (c *Conn) show(q *Request) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.op = q
	if q != nil {
		c.number++
	}
}

func (c *Conn) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stop
}

func (c *Conn) serve() (endReason, error) {
	for {
		m, err := c.reader.ReadMessage()
		if err != nil {
			if c.mayRest(err) {
				return endResting, nil
			}
			return c.over(err)
		}
		c.r.stats.bytesIn.Add(int64(len(m.Buf.B)))
		ctx, ok := c.begin()
		if !ok {
			m.Release()
			return c.over(nil)
		}
		c.requests++
		given, err := c.handle(ctx, m)
		if given {
			continue
		}
		m.Release()
		switch {
		case err != nil:
			return c.reasonOf(ctx, err), err
		case c.end():
			return endShutdown, nil
		}
	}
}

// over returns why the connection ends when the next request was not read, or is not to be answered.
func (c *Conn) over(err error) (endReason, error) {
	c.mu.Lock()
	c.await()
	ctx, stop, lost := c.ctx, c.stop, c.lost
	c.mu.Unlock()
	switch {
	case lost != nil:
		return c.reasonOf(ctx, lost), lost
	case stop:
		return endShutdown, nil
	case errors.Is(err, io.EOF):
		return endClient, nil
	}
	return reasonOf(err), err
}

// reasonOf names the end of a connection that an answer's error ends.
func (c *Conn) reasonOf(ctx context.Context, err error) endReason {
	switch {
	case errors.Is(context.Cause(ctx), errClientGone):
		return endGone
	case c.stopping():
		return endShutdown
	}
	return reasonOf(err)
}

// isFatal reports an error after which the connection must be closed.
func isFatal(err error) bool {
	var fatal *wire.FatalError
	return errors.As(err, &fatal)
}

func reasonOf(err error) endReason {
	switch {
	case isFatal(err):
		return endProtocol
	case errors.Is(err, errNoReply):
		return endNoReply
	}
	return endNetwork
}

// errNoReply ends a connection on which a write without acknowledgement met a state change: closing is the only
// signal there is (mongos-behaviour §1.2).
var errNoReply = errors.New("an unacknowledged write met a state change")

// handle answers one message. Its error ends the connection. given says that somebody else does it, who ends with endGiven, and to whom m belongs then.
func (c *Conn) handle(ctx context.Context, m wire.Message) (given bool, err error) {
	switch m.Header.OpCode {
	case wire.OpMsg:
		if kind := c.r.pointKind(m.Buf.B); kind != nil {
			if how, err := c.answerPoint(ctx, m, kind); how != pointRefused {
				return how == pointGiven, err
			}
		}
		return false, c.handleMsg(ctx, m, wire.NoCompression)
	case wire.OpCompressed:
		inner, how, err := wire.Decompress(m)
		if err != nil {
			return false, err
		}
		defer inner.Release()
		switch inner.Header.OpCode {
		case wire.OpMsg:
			return false, c.handleMsg(ctx, inner, how)
		case wire.OpQuery:
			return false, c.handleQuery(ctx, inner)
		}
		return false, wire.Fatalf(wire.ProtocolError, "unknown opcode %d", inner.Header.OpCode)
	case wire.OpQuery:
		return false, c.handleQuery(ctx, m)
	}
	return false, wire.Fatalf(wire.ProtocolError, "unknown opcode %d", m.Header.OpCode)
}

func (c *Conn) handleMsg(ctx context.Context, m wire.Message, how wire.Compressor) error {
	var msg wire.Msg
	var reply Reply
	q := &Request{Conn: c, Msg: &msg, Started: time.Now()}
	err := wire.ParseMsg(m, &msg)
	if err != nil && isFatal(err) {
		return err
	}
	if err == nil {
		err = msg.CheckDepth()
	}
	if err == nil {
		reply, err = c.r.dispatch(ctx, q)
	}
	flags := msg.Flags & wire.ChecksumPresent
	switch {
	case msg.Flags&wire.MoreToCome != 0:
		return c.swallow(reply, err)
	case q.streams && err == nil:
		return c.stream(ctx, q, m.Header.RequestID, flags, how, reply)
	}
	return c.writeReply(m.Header.RequestID, flags, how, reply, err)
}

// swallow ends a request that wants no reply, whatever became of it.
func (c *Conn) swallow(reply Reply, err error) error {
	if reply.Owner != nil {
		reply.Owner.Release()
	}
	if err == nil {
		return nil
	}
	c.r.stats.swallowed.Add(1)
	if wire.AsError(err).Code.NotPrimary() {
		return errNoReply
	}
	return nil
}

// writeReply sends a reply or an error, with a checksum and compressed as the request was.
func (c *Conn) writeReply(responseTo int32, flags wire.Flags, how wire.Compressor, reply Reply, err error) error {
	if err == nil && flags == 0 && reply.framed() {
		defer reply.Owner.Release()
		c.nextID++
		msg := wire.Seal(reply.Message.B[:wire.MsgBodyStart+len(reply.Body)], 0)
		wire.SetRequestID(msg, c.nextID)
		wire.SetResponseTo(msg, responseTo)
		return c.write(msg, how)
	}
	buf := wire.GetBuffer(512)
	defer buf.Release()
	body := []byte(reply.Body)
	if err != nil {
		body = wire.AppendErrorReply(nil, err)
	}
	c.nextID++
	buf.B = buf.B[:0]
	buf.Grow(len(body) + 32)
	buf.B = wire.AppendMsg(buf.B, c.nextID, responseTo, flags, body)
	if reply.Owner != nil {
		reply.Owner.Release()
	}
	return c.write(buf.B, how)
}

// framed reports whether Body still lies in Message where it was made.
func (r *Reply) framed() bool {
	return r.Message != nil && len(r.Body) > 0 && cap(r.Message.B) >= wire.MsgBodyStart+len(r.Body) &&
		&r.Body[0] == &r.Message.B[:wire.MsgBodyStart+1][wire.MsgBodyStart]
}

func (c *Conn) write(msg []byte, how wire.Compressor) error {
	if how != wire.NoCompression {
		buf := wire.GetBuffer(len(msg))
		defer buf.Release()
		buf.B = wire.AppendCompressed(buf.B[:0], msg, how)
		msg = buf.B
	}
	rest, err := c.writeNow(msg)
	if err != nil || len(rest) == 0 {
		return err
	}
	return c.writeRest(rest)
}

// writeNow begins to write msg: as much as leaves without waiting. It returns the rest, for writeRest.
func (c *Conn) writeNow(msg []byte) ([]byte, error) {
	c.r.stats.bytesOut.Add(int64(len(msg)))
	if c.socket == nil {
		return msg, nil
	}
	n, err := c.socket.WriteNow(msg)
	return msg[n:], err
}

// writeRest writes what the client has had no room for, and gives it a time to make some.
func (c *Conn) writeRest(rest []byte) error {
	_ = c.nc.SetWriteDeadline(time.Now().Add(writeTimeout + time.Duration(len(rest))*time.Second/writeRate))
	_, err := c.nc.Write(rest)
	_ = c.nc.SetWriteDeadline(time.Time{})
	return err
}

// handleQuery answers the few commands that may still come as OP_QUERY (mongos-behaviour §1.3).
func (c *Conn) handleQuery(ctx context.Context, m wire.Message) error {
	query, err := wire.ParseQuery(m)
	if err != nil {
		return err
	}
	body, failed := c.r.answerQuery(ctx, c, query)
	c.nextID++
	return c.write(wire.AppendReply(nil, c.nextID, m.Header.RequestID, failed, body), wire.NoCompression)
}

// dispatch finds the command and runs it.
func (r *Router) dispatch(ctx context.Context, q *Request) (reply Reply, err error) {
	name, first, db, err := q.Msg.Command()
	q.Name, q.First, q.DB = name, first, db
	if err != nil {
		return Reply{}, err
	}
	return r.run(ctx, q)
}

// run runs a command whose name, first value and database are known.
func (r *Router) run(ctx context.Context, q *Request) (reply Reply, err error) {
	q.Command = r.commands[q.Name]
	if q.Command == nil {
		return Reply{}, wire.Errorf(wire.CommandNotFound, "no such command: '%s'", strings.ToValidUTF8(q.Name, "?"))
	}
	if err := checkDB(q.DB); err != nil {
		return Reply{}, err
	}
	if q.Command.Admin && q.DB != "admin" {
		return Reply{}, wire.Errorf(wire.Unauthorized, "%s may only be run against the admin database.", q.Command.Name)
	}
	if err := q.parseShared(); err != nil {
		return Reply{}, err
	}
	if err := q.checkSequences(); err != nil {
		return Reply{}, err
	}
	if err := r.checkGeneric(q); err != nil {
		return Reply{}, err
	}
	if q.help {
		return helpReply(q.Command)
	}
	r.stats.count(q.Command)
	ctx, cancel := withDeadline(ctx, q)
	defer cancel()
	q.Conn.show(q)
	defer q.Conn.show(nil)
	reply, err = r.handle(ctx, q)
	if err != nil {
		r.stats.failed.Add(1)
		err = q.labelled(interruption(ctx, err))
	}
	r.logSlow(q, err, time.Now())
	return reply, err
}

// handle runs a command's handler, as a statement of a transaction if it is one.
func (r *Router) handle(ctx context.Context, q *Request) (Reply, error) {
	switch {
	case q.InTxn:
		return r.inTransaction(ctx, q, r.handlerOf(q))
	case q.HasTxn && r.txns.open.Load() > 0:
		r.outrun(q)
	}
	return r.handlerOf(q)(ctx, q)
}

// interruption names what ended ctx where err only says that something did: a killed request is 11601, one whose client
// is gone 279. Of a write's error only the code is left to say so.
func interruption(ctx context.Context, err error) error {
	var cause *wire.Error
	ended := ctx.Err()
	if ended == nil || !errors.As(context.Cause(ctx), &cause) {
		return err
	}
	switch code := wire.AsError(err).Code; {
	case errors.Is(err, ended), code == wire.ClientDisconnect, code == wire.MaxTimeMSExpired && cause.Code == wire.MaxTimeMSExpired:
		return cause
	}
	return err
}

// handlerOf returns what answers a command: the table's handler, except for reads and updates of config.
func (r *Router) handlerOf(q *Request) Handler {
	if q.DB == "config" {
		switch q.Command.Name {
		case "find", "count", "distinct":
			return r.configRead
		case "update":
			return r.configUpdate
		case "aggregate":
			if _, named := q.First.StringValueOK(); named {
				return r.configRead
			}
		}
	}
	return q.Command.Run
}

// logSlow logs a request that took longer than it should; it has ended now.
func (r *Router) logSlow(q *Request, err error, now time.Time) {
	if r.cfg.SlowRequest <= 0 {
		return
	}
	if took := now.Sub(q.Started); took >= r.cfg.SlowRequest && !q.waits {
		ev := r.log.Warn().Str("command", q.Name).Str("db", q.DB).Dur("took", took).Int64("conn", q.Conn.id)
		if q.note != "" {
			ev = ev.Str("note", q.note)
		}
		if err != nil {
			ev = ev.Str("error", fmt.Sprint(err))
		}
		ev.Msg("slow request")
	}
}
