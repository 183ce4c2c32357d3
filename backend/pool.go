package backend

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
)

// livenessAfter is for how many seconds a connection may lie idle before it is looked at when it is
// taken out: a server that was restarted meanwhile has closed it.
const livenessAfter = 2

var (
	errCrowded = errors.New("too many requests wait for a connection to it already")
	errNoConn  = errors.New("no connection became free in time")
)

// pool keeps the connections to one host. The newest returned is the first taken, so that a load that
// falls lets the oldest run out; waiters are served in order.
type pool struct {
	// Static.
	b    *Backend
	addr address.Address

	// silentFor counts watch's ticks during which the host's monitor got no answer. Owned by watch.
	silentFor int

	mu sync.Mutex // guards what follows; never held over a system call but a close
	// idle has the connections nobody uses, the newest returned last.
	idle []*conn
	// all has every open connection, used or not.
	all map[*conn]struct{}
	// dialing counts connections being made; with len(all) it is bounded by Config.MaxConns.
	dialing int
	// waiters has *waiter, the longest waiting first.
	waiters list.List
	// gen is raised when the host was lost; connections of an older generation are not used again.
	gen    uint64
	closed bool

	// sharing has the connections that short requests share, as long as they have any (share.go); inFlight counts those requests.
	sharing  []*conn
	inFlight int
	// singles counts the connections that requests of shapes that wait have for themselves, waiting says how many those may have together.
	singles        int
	waiting, boost tuner
	// lastSlow is the last connection that was given to a request of a shape that waits, asked counts such requests.
	lastSlow *conn
	asked    uint

	// shapes is what is known of how long requests take; it guards itself.
	shapes shapes
	// replies counts those to requests that have a shape.
	replies atomic.Uint64
}

// waiter is a request that waits for a connection or for the permission to make one.
type waiter struct {
	// lane says whether a connection that others share will do.
	lane lane
	// ready gets exactly one grant, when the waiter has been taken off the list. Buffered.
	ready chan grant
}

// grant is a connection, or with none the permission to dial (already counted in dialing), or an error.
type grant struct {
	c   *conn
	err error
}

func newPool(b *Backend, addr address.Address) *pool {
	return &pool{b: b, addr: addr, all: make(map[*conn]struct{}), waiting: tunerOfWaiting(), boost: tunerOfBoost()}
}

// dialError is a failure to make a connection: nothing of a request was sent.
type dialError struct {
	err error
	// gen is the pool's generation when dialling began.
	gen uint64
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// take returns an idle connection that looks alive, nil when there is none.
func (p *pool) take() *conn {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		c.users = 1
		p.mu.Unlock()
		if p.b.tick.Load()-c.idleSince < livenessAfter || c.alive() {
			return c
		}
		p.discard(c)
	}
}

// get returns a connection for the caller's use: an idle one, or a new one, or the first that
// is returned. It waits until ctx ends or until passes.
func (p *pool) get(ctx context.Context, until time.Time, l lane) (*conn, error) {
	if c := p.take(); c != nil {
		return c, nil
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.mayDialLocked(l) {
		p.dialing++
		p.mu.Unlock()
		return p.dial(ctx, until)
	}
	if p.waiters.Len() >= p.b.cfg.MaxWaiters {
		p.mu.Unlock()
		return nil, errCrowded
	}
	w := &waiter{lane: l, ready: make(chan grant, 1)}
	e := p.waiters.PushBack(w)
	p.mu.Unlock()
	return p.await(ctx, until, w, e)
}

// await waits for w's grant.
func (p *pool) await(ctx context.Context, until time.Time, w *waiter, e *list.Element) (*conn, error) {
	began := time.Now()
	p.b.stats.waited.Add(1)
	p.b.stats.waiting.Add(1)
	defer func() {
		p.b.stats.waiting.Add(-1)
		p.b.stats.waitNanos.Add(int64(time.Since(began)))
	}()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	var err error
	select {
	case g := <-w.ready:
		return p.accept(ctx, until, g)
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = errNoConn
	}
	p.mu.Lock()
	select {
	case g := <-w.ready: // granted at the same moment: pass it on
		p.mu.Unlock()
		p.refuse(g)
	default:
		p.waiters.Remove(e)
		p.mu.Unlock()
	}
	return nil, err
}

func (p *pool) accept(ctx context.Context, until time.Time, g grant) (*conn, error) {
	if g.err != nil || g.c != nil {
		return g.c, g.err
	}
	return p.dial(ctx, until)
}

func (p *pool) refuse(g grant) {
	switch {
	case g.c != nil:
		p.release(g.c, 1)
	case g.err == nil:
		p.mu.Lock()
		p.dialing--
		p.grantLocked()
		p.mu.Unlock()
	}
}

// mayDialLocked reports whether one more connection may be made now. Requests that share make no more than they share.
func (p *pool) mayDialLocked(l lane) bool {
	return p.dialing < maxDialing && len(p.all)+p.dialing < p.b.cfg.MaxConns && (l == single || len(p.sharing)+p.dialing < p.width(l))
}

// grantLocked lets waiters dial as far as the bounds allow.
func (p *pool) grantLocked() {
	for e := p.waiters.Front(); e != nil && !p.closed; {
		w, next := e.Value.(*waiter), e.Next()
		if p.mayDialLocked(w.lane) {
			p.waiters.Remove(e)
			p.dialing++
			w.ready <- grant{}
		}
		e = next
	}
}

func (p *pool) popLocked() *waiter {
	e := p.waiters.Front()
	p.waiters.Remove(e)
	return e.Value.(*waiter)
}

// dial makes a connection with a permission already counted.
func (p *pool) dial(ctx context.Context, until time.Time) (*conn, error) {
	p.mu.Lock()
	gen := p.gen
	p.mu.Unlock()
	c, err := p.b.dial(ctx, p, until)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	defer p.grantLocked()
	if err != nil {
		p.b.stats.dialFailures.Add(1)
		return nil, &dialError{err: err, gen: gen}
	}
	if p.closed || p.gen != gen {
		c.close()
		if p.closed {
			return nil, errClosed
		}
		return nil, &dialError{err: errors.New("the server was lost while a connection was made"), gen: gen}
	}
	c.gen, c.users = gen, 1
	p.all[c] = struct{}{}
	p.b.stats.created.Add(1)
	return c, nil
}

// release gives a connection that is in order back for n of its users. When they were the last it goes to the first waiter, or to the idle ones.
func (p *pool) release(c *conn, n int) {
	p.mu.Lock()
	p.releaseLocked(c, n)
	p.mu.Unlock()
}

func (p *pool) releaseLocked(c *conn, n int) {
	p.unshareLocked(c, n)
	switch {
	case c.users > 0:
	case p.closed || c.gen != p.gen || c.dying.Load():
		p.dropLocked(c)
	case p.waiters.Len() > 0:
		c.users = 1
		p.popLocked().ready <- grant{c: c} // buffered; under mu, so that who gives up waiting sees it
	default:
		c.idleSince = p.b.tick.Load()
		p.idle = append(p.idle, c)
	}
}

// discard closes a connection in the caller's use that is not in order, and lets a waiter make another.
func (p *pool) discard(c *conn) {
	p.mu.Lock()
	p.dropLocked(c)
	p.mu.Unlock()
}

func (p *pool) dropLocked(c *conn) {
	p.expelLocked(c)
	if _, open := p.all[c]; open {
		delete(p.all, c)
		p.b.stats.closed.Add(1)
	}
	c.close()
	p.grantLocked()
}

// clear forgets the connections made so far: the host was lost. Idle ones are closed, used ones when
// they are returned; with cut, the used ones' readers and writers end now.
func (p *pool) clear(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gen++
	p.sharing, p.lastSlow = nil, nil
	p.b.stats.cleared.Add(1)
	p.dropIdleLocked()
	if cut {
		for c := range p.all {
			c.cut()
		}
	}
	p.grantLocked()
}

func (p *pool) dropIdleLocked() {
	for i, c := range p.idle {
		delete(p.all, c)
		p.b.stats.closed.Add(1)
		c.close()
		p.idle[i] = nil
	}
	p.idle = p.idle[:0]
}

// stale reports whether a connection of generation gen belongs to a host lost since.
func (p *pool) stale(gen uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed || p.gen != gen
}

// reap closes the connections that were idle too long, oldest first.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := p.b.tick.Load() - int64(p.b.cfg.IdleTimeout/time.Second)
	n := 0
	for n < len(p.idle) && p.idle[n].idleSince < limit {
		n++
	}
	if n == 0 {
		return
	}
	for _, c := range p.idle[:n] {
		delete(p.all, c)
		p.b.stats.closed.Add(1)
		c.close()
	}
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
}

// empty reports whether the pool has no connection, and none is being made.
func (p *pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)+p.dialing == 0
}

// retire ends the pool of a host that is no longer of the backend: nobody waits any more, idle
// connections close, used ones close when they are returned.
func (p *pool) retire() { p.shut(false, fmt.Errorf("%s left the replica set", p.addr)) }

// close ends the pool and cuts what is in use.
func (p *pool) close() { p.shut(true, errClosed) }

func (p *pool) shut(cut bool, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.dropIdleLocked()
	if cut {
		for c := range p.all {
			c.cut()
		}
	}
	for p.waiters.Len() > 0 {
		p.popLocked().ready <- grant{err: why}
	}
}
