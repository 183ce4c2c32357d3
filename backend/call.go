package backend

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/shardway/shardway/wire"
)

// Request is one message for a backend.
type Request struct {
	// Message is one whole OP_MSG without moreToCome. The backend owns the bytes until Start has
	// returned, and writes the request id into them.
	Message []byte
	// ReadPref chooses the server; nil is the primary. The message must say so too ($readPreference).
	ReadPref *readpref.ReadPref
	// Host, when not empty, is the server to use whatever ReadPref says: a cursor's or a transaction's,
	// as Reply.Host gave it.
	Host string
	// Deadline, when not zero, ends the request like ctx's deadline does. It costs less than a context.
	Deadline time.Time
	// At, when not zero, is the time, which the caller has just read.
	At time.Time
	// While, when not nil, is asked again before a request is sent that had to wait for a server: when it does not hold any more nothing is sent, and the error
	// is an *UnsentError with the cause ErrLapsed.
	While Validity
	// Shape, when not zero, says that the request is short as far as can be told (one document, outside of a transaction, no cursor left open) and so
	// may share a connection with others. Requests of one shape do the same kind of thing: how long they take is learned from one another.
	Shape Shape
}

// Validity is what a request is sent under.
type Validity interface{ Valid() bool }

// Reply is what a server answered.
type Reply struct {
	// Body is the reply document, cloaked (see Cloak). It lies in a pooled buffer: it is of no use after Release.
	Body bson.Raw
	// Host is the server that answered, to be given as Request.Host.
	Host string
	// Came is when the reply had been read, or a moment later.
	Came time.Time

	buf *wire.Buffer
}

// Release gives the reply's buffer back. Body must not be used afterwards. A second Release does nothing.
func (r *Reply) Release() {
	if r.buf != nil {
		r.buf.Release()
		r.buf, r.Body = nil, nil
	}
}

// Detach gives the caller the buffer in which Body lies (unless it was cloaked), to be released by the caller; nil when there is none any more. Body stays
// of use until then, and the Reply has nothing left to release.
func (r *Reply) Detach() *wire.Buffer {
	buf := r.buf
	r.buf = nil
	return buf
}

// Call is a request that was sent and whose reply was not read yet. It must be ended by one of Wait, Hand and Abandon, after which it must not be
// touched. For one goroutine.
type Call struct {
	// Static while the call is in flight.
	c        *conn
	id       int32
	shape    Shape         // 0: nothing is learned from it
	sent     time.Duration // when, by now()
	ctx      context.Context
	deadline time.Time
	line     *Line       // what interrupts the call when ctx ends; or
	stop     func() bool // what ends the registration for that; neither when ctx cannot end
	wake     chan struct{}

	// Guarded by c.mu.
	queued       bool  // it is, or was, in c's queue
	waits, leads bool  // its goroutine waits to be woken; reads for all
	interrupted  bool  // ctx has ended
	to           Taker // who hears of its end, if it was given away
	abandoned    bool  // nobody waits for it; whoever gets its reply drops it
	done         bool  // what follows is set
	buf          *wire.Buffer
	body         []byte
	came         time.Time
	err          error
}

var calls = sync.Pool{New: func() any { return &Call{wake: make(chan struct{}, 1)} }}

// Start sends a request and returns when it is written. ctx's end cuts the connection, then and while
// waiting for the reply. What provably did not leave is tried again, on another server if need be,
// until the selection timeout. Errors are *UnsentError and *LostError.
func (b *Backend) Start(ctx context.Context, req Request) (*Call, error) {
	if len(req.Message) < wire.MsgBodyStart+minDocumentSize {
		return nil, b.unsent("", wire.InternalError, errors.New("a request without a body"))
	}
	deadline := req.Deadline
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		deadline = d
	}
	if err := b.whyBarred(ctx); err != nil {
		return nil, err
	}
	var until time.Time // when to give up; set by the first attempt that does not succeed at once
	for {
		addr := address.Address(req.Host)
		if addr == "" {
			var err error
			var waited bool
			if addr, waited, err = b.selectServer(ctx, req.ReadPref, deadline, until); err != nil {
				return nil, err
			}
			if (waited || !until.IsZero()) && req.While != nil && !req.While.Valid() {
				return nil, b.unsent(addr.String(), wire.HostUnreachable, ErrLapsed)
			}
		}
		call, sent, err := b.try(ctx, addr, &req, deadline, &until)
		if err == nil {
			return call, nil
		}
		if sent {
			return nil, b.lost(ctx, addr.String(), deadline, err)
		}
		if ue := b.giveUp(ctx, &req, addr, deadline, until, err); ue != nil {
			return nil, ue
		}
	}
}

// try makes one attempt at one server.
func (b *Backend) try(ctx context.Context, addr address.Address, req *Request, deadline time.Time, until *time.Time) (*Call, bool, error) {
	p := b.poolFor(addr)
	if p == nil {
		return nil, false, errClosed
	}
	shape := req.Shape
	if !req.Deadline.IsZero() || len(req.Message) > maxShared {
		shape = 0
	}
	at := now()
	if !req.At.IsZero() && until.IsZero() {
		at = req.At.Sub(began)
	}
	l := p.lane(shape, at)
	c := p.choose(shape, l, at)
	if c == nil {
		if until.IsZero() {
			*until = time.Now().Add(b.cfg.SelectionTimeout)
		}
		var err error
		if c, err = p.get(ctx, sooner(*until, deadline), l); err != nil {
			return nil, false, err
		}
		p.mark(c, shape, l)
	}
	call, sent, err := c.start(ctx, req.Message, shape, at, deadline)
	if err != nil {
		b.broken(c, err, ctx.Err() == nil)
		if until.IsZero() {
			*until = time.Now().Add(b.cfg.SelectionTimeout)
		}
	}
	return call, sent, err
}

// start writes msg and makes its call.
func (c *conn) start(ctx context.Context, msg []byte, shape Shape, at time.Duration, deadline time.Time) (*Call, bool, error) {
	k := calls.Get().(*Call)
	*k = Call{c: c, ctx: ctx, shape: shape, sent: at, deadline: deadline, wake: k.wake}
	if line, ok := ctx.(*Line); ok && line.watch(k) {
		k.line = line
	} else if ctx.Done() != nil {
		k.stop = context.AfterFunc(ctx, k.interrupt)
	}
	sent, err := c.send(k, msg)
	if err != nil {
		k.release()
		return nil, sent, err
	}
	return k, true, nil
}

// release has ctx's end mean nothing to the call any more; false when it may be being interrupted at this moment.
func (k *Call) release() bool {
	if k.line != nil {
		k.line.unwatch()
		k.line = nil
	}
	stop := k.stop
	k.stop = nil
	return stop == nil || stop()
}

// giveUp decides what follows an attempt that sent nothing: nil to try again, or the error to return.
func (b *Backend) giveUp(ctx context.Context, req *Request, addr address.Address, deadline, until time.Time, err error) error {
	now := time.Now()
	var dial *dialError
	if errors.As(err, &dial) && ctx.Err() == nil && (deadline.IsZero() || now.Before(deadline)) {
		if p := (*b.pools.Load())[addr]; p != nil && !p.stale(dial.gen) {
			p.clear(false)
			b.reportDial(addr, dial.err)
		}
	}
	switch {
	case ctx.Err() != nil || (!deadline.IsZero() && !now.Before(deadline)):
		return b.unsent(addr.String(), ctxCode(ctx), err)
	case errors.Is(err, errClosed), errors.Is(err, errCrowded), errors.Is(err, errNoConn):
		return b.unsent(addr.String(), wire.HostUnreachable, err)
	case dial != nil && (req.Host != "" || !now.Before(until) || isAuth(dial.err)):
		return b.unsent(addr.String(), wire.HostUnreachable, err)
	case !until.IsZero() && !now.Before(until):
		return b.unsent(addr.String(), wire.HostUnreachable, err)
	}
	return nil
}

// Wait waits for the reply. After it the Call is gone. The error is a *LostError.
func (k *Call) Wait() (Reply, error) {
	c, ctx, deadline := k.c, k.ctx, k.deadline
	b := c.pool.b
	orphans, done := c.receive(k)
	if !done { // given up; the call stays in the queue until its reply comes
		k.release()
		b.stats.lost.Add(1)
		return Reply{}, b.lost(ctx, c.pool.addr.String(), deadline, ctx.Err())
	}
	reply, err := k.settle()
	if err == nil {
		c.pool.release(c, 1+orphans)
	}
	return reply, err
}

// settle makes what the caller gets of a call that is done. The call is gone then; without an error it still counts as a user of its connection.
func (k *Call) settle() (Reply, error) {
	c, ctx, deadline := k.c, k.ctx, k.deadline
	b := c.pool.b
	mine := k.release()
	buf, body, came, err := k.buf, k.body, k.came, k.err
	k.free(mine)
	if err != nil {
		b.stats.lost.Add(1)
		b.broken(c, err, ctx.Err() == nil)
		return Reply{}, b.lost(ctx, c.pool.addr.String(), deadline, err)
	}
	reply := Reply{Body: body, Host: string(c.pool.addr), Came: came, buf: buf}
	if stateChanged(body) {
		b.stateChange(c, body)
		reply.Body = Cloak(body)
	}
	return reply, nil
}

// Abandon gives the call up without its reply, which is dropped when it comes. A connection of its own is closed; the request may still run.
func (k *Call) Abandon() {
	k.interrupt()
	c := k.c
	orphans, done := c.receive(k)
	mine := k.release()
	if !done {
		return
	}
	if k.err == nil {
		k.buf.Release()
		c.pool.release(c, 1+orphans)
	} else {
		c.pool.discard(c)
	}
	k.free(mine)
}

// free gives an ended call back for another one. When it is being interrupted at this moment it is left to that.
func (k *Call) free(mine bool) {
	if mine {
		*k = Call{wake: k.wake}
		calls.Put(k)
	}
}

// Do sends a request and reads its reply: Start and Wait.
func (b *Backend) Do(ctx context.Context, req Request) (Reply, error) {
	call, err := b.Start(ctx, req)
	if err != nil {
		return Reply{}, err
	}
	return call.Wait()
}

// broken closes a connection that failed. When the network failed, and not the request's own time or
// ctx (healthy says so), the host's other connections are as good as dead and the monitor shall look.
func (b *Backend) broken(c *conn, err error, healthy bool) {
	if healthy && !isTimeout(err) && !errors.Is(err, errGarbage) && !c.Stale() {
		b.report(c, topology.ConnectionError{Wrapped: err})
		c.pool.clear(false)
	}
	c.pool.discard(c)
}

// lost makes the error of a request that may have run.
func (b *Backend) lost(ctx context.Context, host string, deadline time.Time, err error) *LostError {
	code := wire.HostUnreachable
	switch {
	case ctx.Err() != nil:
		code, err = ctxCode(ctx), ctx.Err()
	case isTimeout(err) && b.life.Err() == nil:
		// Either the request's deadline, or its host was given up by the monitor.
		if code = wire.NetworkTimeout; !deadline.IsZero() && !time.Now().Before(deadline) {
			code = wire.MaxTimeMSExpired
		}
	}
	return &LostError{Backend: b.cfg.ID, Host: host, Code: code, Err: err}
}

// isAuth reports whether a server answered the handshake with an error, as it does to credentials it
// does not take: trying again changes nothing.
func isAuth(err error) bool {
	var de driver.Error
	return errors.As(err, &de) && de.Code != 0 && !de.NotPrimary() && !de.NodeIsRecovering()
}

// sooner returns the earlier of two moments, a zero one being none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
