package router

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// within runs f inside the gates of the parts that plan chose for ns, planning again whenever the map has
// changed before they were entered. The collection is nil for an unknown database: plan and f get it as it is, with no parts.
// A view that reads what has a map is a viewError.
func (r *Router) within(ctx context.Context, ns string, mode partition.Mode,
	plan func(*partition.Collection) ([]*partition.Part, error),
	f func(*partition.Collection, []*partition.Part) error) error {
	return r.pass(ctx, ns, mode, true, plan, f)
}

// withinAny is within for what any view may be met with: to describe and to drop it, and for writes, which its backend refuses (166).
func (r *Router) withinAny(ctx context.Context, ns string, mode partition.Mode,
	plan func(*partition.Collection) ([]*partition.Part, error),
	f func(*partition.Collection, []*partition.Part) error) error {
	return r.pass(ctx, ns, mode, false, plan, f)
}

func (r *Router) pass(ctx context.Context, ns string, mode partition.Mode, checkViews bool,
	plan func(*partition.Collection) ([]*partition.Part, error),
	f func(*partition.Collection, []*partition.Part) error) error {
	if t := r.txnOf(ctx); t != nil {
		return r.passInTransaction(ctx, t, ns, mode, checkViews, plan, f)
	}
	for {
		c := r.cfg.Table.View().Collection(ns)
		if c == nil || c.Absent != nil {
			var err error
			if c, err = r.lookup(ctx, ns); err != nil {
				return err
			}
		}
		if checkViews {
			if err := r.checkView(ctx, c); err != nil {
				return err
			}
		}
		parts, err := plan(c)
		if err != nil {
			return err
		}
		err = partition.Enter(ctx, parts, mode)
		if errors.Is(err, partition.ErrReplan) {
			continue
		}
		if err != nil {
			return err
		}
		return inside(c, parts, mode, f)
	}
}

func inside(c *partition.Collection, parts []*partition.Part, mode partition.Mode, f func(*partition.Collection, []*partition.Part) error) error {
	defer partition.Leave(parts, mode)
	return f(c, parts)
}

// target is where one message goes.
type target struct {
	// Backend is the id of the backend.
	Backend string
	// Host pins to one of its hosts (cursors); empty lets ReadPref choose.
	Host string
	// ReadPref is nil for the primary.
	ReadPref *readpref.ReadPref
	// Part is what the message concerns, whose gate the request is inside; nil for a cursor's, which passes gates, and for messages that concern no collection.
	Part *partition.Part
	// Shape, when not 0, lets a short request share a connection.
	Shape backend.Shape
}

// call is a message that was sent and whose reply is still to be read.
type call struct {
	r       *Router
	lease   *member.Lease
	backend string
	pending *backend.Call
}

// send sends one whole OP_MSG, looking at the lease first. The bytes of msg are not needed any more when it has returned. Every call must be waited for, or given away.
func (r *Router) send(ctx context.Context, t target, msg []byte) (call, error) {
	b := r.cfg.Backends.Get(t.Backend)
	if b == nil {
		var err error
		if b, err = r.awaitBackend(ctx, t.Backend); err != nil {
			return call{}, err
		}
	}
	c := call{r: r, backend: t.Backend}
	now := time.Now()
	if r.cfg.Member != nil {
		// In this order: a lease of an instance that joined after the request had entered its gate is good for what is current then.
		c.lease = r.cfg.Member.Lease(t.Backend)
		if !c.lease.ValidAt(now) || t.Part != nil && !t.Part.Current() {
			return call{}, leaseError(t.Backend)
		}
	}
	var err error
	c.pending, err = b.Start(ctx, backend.Request{Message: msg, ReadPref: t.ReadPref, Host: t.Host, Shape: t.Shape, At: now})
	return c, err
}

// wait reads the reply and looks at the lease again: a reply that came after its end proves nothing. An ok:0 reply is returned as a reply, not as an error.
func (c call) wait() (backend.Reply, error) {
	return c.judge(c.pending.Wait())
}

// judge is the part of wait that looks at the lease, for a call that was given away.
func (c call) judge(reply backend.Reply, err error) (backend.Reply, error) {
	came := reply.Came
	if err != nil {
		came = time.Now()
	}
	if c.lease != nil && !c.lease.ValidAt(came) {
		if err == nil {
			reply.Release()
		}
		return backend.Reply{}, leaseError(c.backend)
	}
	if err != nil {
		return backend.Reply{}, err
	}
	return reply, nil
}

func leaseError(backendID string) error {
	return wire.Errorf(wire.HostUnreachable, "this proxy's lease at backend '%s' has ended; the outcome of the operation is unknown, retry it", backendID)
}

// do sends to one target and waits.
func (r *Router) do(ctx context.Context, t target, msg []byte) (backend.Reply, error) {
	c, err := r.send(ctx, t, msg)
	if err != nil {
		return backend.Reply{}, err
	}
	return c.wait()
}

// scatter sends msgs[i] to targets[i], all before the first reply is read, and returns replies and errors by position.
// Replies without an error must be released. A transaction's messages go one after the other, and the first error is that of what follows too.
func (r *Router) scatter(ctx context.Context, targets []target, msgs [][]byte) ([]backend.Reply, []error) {
	calls := make([]call, len(targets))
	replies := make([]backend.Reply, len(targets))
	errs := make([]error, len(targets))
	if r.txnOf(ctx) != nil {
		r.oneByOne(ctx, targets, msgs, replies, errs)
		return replies, errs
	}
	for i, t := range targets {
		calls[i], errs[i] = r.send(ctx, t, msgs[i])
	}
	for i := range calls {
		if errs[i] == nil {
			replies[i], errs[i] = calls[i].wait()
		}
	}
	return replies, errs
}

// oneByOne sends messages one after the other until one fails.
func (r *Router) oneByOne(ctx context.Context, targets []target, msgs [][]byte, replies []backend.Reply, errs []error) {
	var failed error
	for i, t := range targets {
		if failed == nil {
			replies[i], failed = r.do(ctx, t, msgs[i])
		}
		if errs[i] = failed; failed == nil {
			failed = commandError(replies[i].Body) // of the next one
		}
	}
}

// scatterApart is scatter for a read that may leave partitions out: each target is asked by itself, so that one that
// cannot be reached holds up no other, and has half of what is left of ctx's time, so that the rest can go on afterwards.
func (r *Router) scatterApart(ctx context.Context, targets []target, msgs [][]byte) ([]backend.Reply, []error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	replies := make([]backend.Reply, len(targets))
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { replies[i], errs[i] = r.do(ctx, t, msgs[i]) })
	}
	wg.Wait()
	return replies, errs
}

// commandError returns a reply's error with physical names replaced, nil when the reply is ok.
func commandError(body bson.Raw) error {
	e := wire.ErrorFromReply(body)
	if e == nil {
		return nil
	}
	e.Message = cleanNames(e.Message)
	return e
}

// cleanNames replaces the physical names in a text that a backend made ("db.people@1f.2.0" → "db.people").
func cleanNames(s string) string {
	if strings.IndexByte(s, '@') < 0 {
		return s
	}
	return catalog.HidePhysicalNames(s)
}

// awaitGrace is what a getMore's reply may take beyond its maxTimeMS, which says how long the backend is to wait for documents.
const awaitGrace = 10 * time.Second

// replyGrace is what a reply may take beyond maxTimeMS. The backend has been told what is left of that and says itself that it is over; hanging up on it at the same
// moment would cost a connection each time.
const replyGrace = 100 * time.Millisecond

// withDeadline gives ctx the request's maxTimeMS.
func withDeadline(ctx context.Context, q *Request) (context.Context, context.CancelFunc) {
	if q.MaxTime <= 0 {
		return ctx, func() {}
	}
	end := q.Started.Add(q.MaxTime + replyGrace)
	if q.Command.Name == "getMore" {
		end = end.Add(awaitGrace)
	}
	return context.WithDeadlineCause(ctx, end,
		wire.Errorf(wire.MaxTimeMSExpired, "operation exceeded time limit"))
}

// remaining is what is left of maxTimeMS, for a command to a backend; 0 when the request has none.
func (q *Request) remaining() time.Duration {
	if q.MaxTime <= 0 {
		return 0
	}
	return max(time.Millisecond, q.MaxTime-time.Since(q.Started))
}
