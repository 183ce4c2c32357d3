package backend

import (
	"slices"
	"time"
)

// Which connection a short request gets. A server that computes answers many requests of one connection as fast as it would those of many
// connections, or faster: few are best. A server that waits (for other members of its set, or for a disk) serves a connection's requests one after the
// other all the same, so each needs a connection of its own. Which of the two it seems to be is learned for each shape of request (shapes.go);
// whether more connections pay is tried (tuner.go).

const (
	// maxShared is the largest message that shares a connection.
	maxShared = 64 << 10
	// A connection more is shared for every perConn requests in flight, from fewest to enough; and for every perConnMost beyond, to most. A server that takes less
	// than quickTo for each has one for every perConnMost, and quickest at least: the more requests meet on each the better.
	perConn, fewest, enough = 32, 4, 16
	quickest                = 2
	quickTo                 = waitsFrom / 5
	perConnMost, most       = 64, 64
	// stalledAfter is how long a connection may go without a reply while others have some, before new requests avoid it.
	stalledAfter = 10 * time.Millisecond
	// probeEvery is which part of the requests of a shape that waits is put behind another one, to learn whether it still does.
	probeEvery = 64
)

// lane is how a request comes to a connection.
type lane uint8

const (
	// single: one of its own.
	single lane = iota
	// quick: it shares, the fewest connections are best.
	quick
	// few: it shares, few connections are best.
	few
	// many: it would have one of its own if there were no more than pay (tuner.go), and shares these.
	many
)

// lane decides how a request comes to a connection.
func (p *pool) lane(shape Shape, at time.Duration) lane {
	if shape == 0 {
		return single
	}
	switch kept := p.shapes.kept(shape); {
	case kept < quickTo:
		return quick
	case kept < waitsFrom:
		return few
	case kept >= ownFrom:
		return single
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	inFlight := p.inFlight + p.singles + p.waiters.Len() // those that wait will have a connection too
	p.waiting.step(at, p.replies.Load(), inFlight, p.b.cfg.MaxConns, len(p.sharing) >= min(p.waiting.cap, inFlight))
	if inFlight < p.waiting.cap {
		return single
	}
	p.waiting.short = true
	return many
}

// choose returns a connection for a request that may start at once: an idle one, or one that others use. nil says to get one.
func (p *pool) choose(shape Shape, l lane, at time.Duration) *conn {
	if l != single {
		if c := p.join(l, at, false); c != nil {
			return c
		}
		if c := p.take(); c != nil {
			p.mark(c, shape, l)
			return c
		}
		return p.join(l, at, true)
	}
	if shape != 0 {
		if c := p.probe(shape); c != nil {
			return c
		}
	}
	c := p.take()
	if c != nil {
		p.mark(c, shape, l)
	}
	return c
}

// join returns a shared connection: one whose writer waits for others to join it, so that one write brings all of them, unless it has half as many requests again as
// its share; otherwise the one with the fewest. It returns nil when another one should be shared too; with must only when that one may be made at once.
func (p *pool) join(l lane, at time.Duration, must bool) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l != many && !must && p.inFlight >= 2*fewest {
		n := p.width(l)
		p.boost.short = p.boost.short || p.inFlight >= 2*n && n < most
		p.boost.step(at, p.replies.Load(), p.inFlight, mostBoost, len(p.sharing) >= p.width(l))
	}
	var newest int64 // when any of them had a reply
	for _, c := range p.sharing {
		newest = max(newest, c.progress.Load())
	}
	width := p.width(l)
	fair := p.inFlight / max(1, min(width, len(p.sharing)))
	var best, stalled, gathering *conn
	// There is one more for each that is stalled, but few: on a busy server all of many are silent for longer now and then, and more would be so for longer.
	spare, live := 1+width/4, 0
	for _, c := range p.sharing {
		if c.dying.Load() {
			continue
		}
		if live == width { // more are shared than should be: those at the end are left to run out
			break
		}
		if newest-c.progress.Load() > int64(stalledAfter) {
			if stalled == nil || c.users < stalled.users {
				stalled = c
			}
			if spare > 0 {
				spare--
			} else {
				live++
			}
			continue
		}
		live++
		if best == nil || c.users < best.users {
			best = c
		}
		if c.gathering.Load() && c.users <= fair+fair/2 {
			gathering = c
		}
	}
	full := len(p.all)+p.dialing >= p.b.cfg.MaxConns
	mayGrow := len(p.idle) > 0 || p.mayDialLocked(l)
	switch {
	case full && p.waiters.Len() > 0 && 2*len(p.sharing) > p.b.cfg.MaxConns:
		return nil // those that wait for a connection of their own would wait for ever
	case live < width && mayGrow && (!must || p.dialing == 0 || l == many):
		return nil
	case best == nil:
		best = stalled
	case gathering != nil:
		best = gathering
	}
	if best != nil {
		best.users++
		p.inFlight++
	}
	return best
}

// width is how many connections the requests of a lane should share.
func (p *pool) width(l lane) int {
	n := p.inFlight + 1
	// While it has not been shown that more connections pay, what seems to wait is taken for what a busy server has too much of.
	if l == many && (n <= 2*leastCap || p.waiting.cap > leastCap) {
		return min(n, p.waiting.cap)
	}
	if l == quick {
		return min(p.boost.cap*max(quickest, n/perConnMost), most)
	}
	return min(p.boost.cap*max(fewest, min(n/perConn, enough), n/perConnMost), most)
}

// mark notes for what a connection was taken; with a lane that shares, others may join it.
func (p *pool) mark(c *conn, shape Shape, l lane) {
	if shape == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.gen != p.gen || c.shared:
	case l == single:
		c.slow, p.lastSlow = shape, c
		p.singles++
	default:
		c.shared = true
		c.progress.Store(int64(now()))
		p.sharing = append(p.sharing, c)
		p.inFlight++
		p.admitLocked(c)
	}
}

// admitLocked lets short requests that wait for a connection share c.
func (p *pool) admitLocked(c *conn) {
	for e := p.waiters.Front(); e != nil && c.users < perConnMost; {
		w, next := e.Value.(*waiter), e.Next()
		if w.lane != single {
			p.waiters.Remove(e)
			c.users++
			p.inFlight++
			w.ready <- grant{c: c}
		}
		e = next
	}
}

// probe returns, now and then, a connection that has one request of the same shape: what waits longer would hold it up for as long.
func (p *pool) probe(shape Shape) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	c := p.lastSlow
	if p.asked%probeEvery != 0 || c == nil || c.users != 1 || c.slow != shape {
		return nil
	}
	c.users++
	return c
}

// unshareLocked takes n users off a connection, and ends its being shared with the last.
func (p *pool) unshareLocked(c *conn, n int) {
	c.users -= n
	if c.shared {
		p.inFlight -= n
	}
	if c.users == 0 {
		p.expelLocked(c)
	}
}

// expelLocked ends a connection's being shared.
func (p *pool) expelLocked(c *conn) {
	if c.shared {
		p.inFlight -= c.users
		if i := slices.Index(p.sharing, c); i >= 0 {
			last := len(p.sharing) - 1
			p.sharing[i], p.sharing[last] = p.sharing[last], nil
			p.sharing = p.sharing[:last]
		}
	}
	if c.slow != 0 {
		p.singles--
	}
	c.shared, c.slow = false, 0
	if p.lastSlow == c {
		p.lastSlow = nil
	}
}
