package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// writeTimeout is how long a client may take to accept a reply before its connection is cut.
const writeTimeout = 30 * time.Second

// endReason says why a connection ended; one log line and one counter each.
type endReason string

const (
	endClient   endReason = "client closed"
	endShutdown endReason = "shutdown"
	endProtocol endReason = "protocol error"
	endNetwork  endReason = "network error"
	endNoReply  endReason = "unacknowledged write failed"
)

// Conn is one client's connection, served by one goroutine in lockstep.
type Conn struct {
	// static after construction
	r  *Router
	id int64
	nc net.Conn
	// ctx ends when the connection does.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// owned by serve
	reader   *wire.Reader
	out      *wire.Buffer
	greeted  bool // client metadata has been sent
	metadata bson.Raw
	requests int64
	nextID   int32

	mu   sync.Mutex
	busy bool // a request is being answered
	stop bool // close as soon as it is not
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
	c := &Conn{r: r, id: connIDs.Add(1), nc: nc, reader: wire.NewReader(nc)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		_ = nc.Close()
		return
	}
	r.conns[c] = struct{}{}
	r.wg.Add(1)
	r.mu.Unlock()
	r.stats.connections.Add(1)
	go c.run()
}

func (c *Conn) run() {
	defer c.r.wg.Done()
	began := time.Now()
	reason, err := c.serve()
	c.cancel(context.Canceled)
	_ = c.nc.Close()
	c.reader.Release()
	c.r.mu.Lock()
	delete(c.r.conns, c)
	c.r.mu.Unlock()
	c.r.stats.connections.Add(-1)
	ev := c.r.log.Info()
	if reason != endClient && reason != endShutdown {
		ev = c.r.log.Warn().AnErr("error", err)
	}
	ev.Int64("conn", c.id).Stringer("client", c.nc.RemoteAddr()).Str("reason", string(reason)).
		Int64("requests", c.requests).Dur("open", time.Since(began)).Msg("connection ended")
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
	c.cancel(wire.Errorf(wire.InterruptedAtShutdown, "the proxy is shutting down"))
	_ = c.nc.Close()
}

// begin and end mark the time in which a request is being answered; begin reports whether to go on.
func (c *Conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = true
	return true
}

func (c *Conn) end() (stop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	return c.stop
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
			return c.readFailed(err)
		}
		c.begin()
		c.requests++
		err = c.handle(m)
		m.Release()
		if err != nil {
			return reasonOf(err), err
		}
		if c.end() {
			return endShutdown, nil
		}
	}
}

func (c *Conn) readFailed(err error) (endReason, error) {
	switch {
	case c.stopping():
		return endShutdown, nil
	case errors.Is(err, io.EOF):
		return endClient, nil
	}
	return reasonOf(err), err
}

func reasonOf(err error) endReason {
	var fatal *wire.FatalError
	switch {
	case errors.As(err, &fatal):
		return endProtocol
	case errors.Is(err, errNoReply):
		return endNoReply
	}
	return endNetwork
}

// errNoReply ends a connection on which a write without acknowledgement met a state change: closing is the only
// signal there is (mongos-behaviour §1.2).
var errNoReply = errors.New("an unacknowledged write met a state change")

// handle answers one message. Its error ends the connection.
func (c *Conn) handle(m wire.Message) error {
	switch m.Header.OpCode {
	case wire.OpMsg:
		return c.handleMsg(m, wire.NoCompression)
	case wire.OpCompressed:
		inner, how, err := wire.Decompress(m)
		if err != nil {
			return err
		}
		defer inner.Release()
		switch inner.Header.OpCode {
		case wire.OpMsg:
			return c.handleMsg(inner, how)
		case wire.OpQuery:
			return c.handleQuery(inner)
		}
		return wire.Fatalf(wire.ProtocolError, "unknown opcode %d", inner.Header.OpCode)
	case wire.OpQuery:
		return c.handleQuery(m)
	}
	return wire.Fatalf(wire.ProtocolError, "unknown opcode %d", m.Header.OpCode)
}

func (c *Conn) handleMsg(m wire.Message, how wire.Compressor) error {
	var msg wire.Msg
	var reply Reply
	q := &Request{Conn: c, Msg: &msg, Started: time.Now()}
	err := wire.ParseMsg(m, &msg)
	var fatal *wire.FatalError
	if errors.As(err, &fatal) {
		return err
	}
	if err == nil {
		reply, err = c.r.dispatch(c.ctx, q)
	}
	if msg.Flags&wire.MoreToCome != 0 {
		if reply.Owner != nil {
			reply.Owner.Release()
		}
		if e := wire.AsError(err); e != nil && e.Code.NotPrimary() {
			return errNoReply
		}
		return nil
	}
	return c.writeReply(m.Header.RequestID, msg.Flags&wire.ChecksumPresent, how, reply, err)
}

// writeReply sends a reply or an error, with a checksum and compressed as the request was.
func (c *Conn) writeReply(responseTo int32, flags wire.Flags, how wire.Compressor, reply Reply, err error) error {
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

func (c *Conn) write(msg []byte, how wire.Compressor) error {
	if how != wire.NoCompression {
		msg = wire.AppendCompressed(nil, msg, how)
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.nc.Write(msg)
	return err
}

// handleQuery answers the few commands that may still come as OP_QUERY (mongos-behaviour §1.3).
func (c *Conn) handleQuery(m wire.Message) error {
	query, err := wire.ParseQuery(m)
	if err != nil {
		return err
	}
	body, failed := c.r.answerQuery(c.ctx, c, query)
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
		return Reply{}, wire.Errorf(wire.CommandNotFound, "no such command: '%s'", q.Name)
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
	r.stats.count(q.Command)
	ctx, cancel := withDeadline(ctx, q)
	defer cancel()
	reply, err = q.Command.Run(ctx, q)
	r.logSlow(q, err)
	return reply, err
}

// logSlow logs a request that took longer than it should.
func (r *Router) logSlow(q *Request, err error) {
	if r.cfg.SlowRequest <= 0 {
		return
	}
	if took := time.Since(q.Started); took >= r.cfg.SlowRequest {
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
