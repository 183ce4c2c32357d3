package backend

import "sync"

// A call that is given away has nobody who waits for it. So its connection has somebody who reads as long as there is any in flight: a leader, whose own call
// is on the way (exchange.go), or else a goroutine of the connection's, the pump. Either tells the takers.

// Taker is told of a call's end in place of whoever would have waited for it.
type Taker interface {
	// Take gets what Wait would have returned. It must not wait for anybody: the goroutine reads for others too.
	Take(Reply, error)
}

// Hand gives the call away: t.Take hears of its end, once, perhaps before Hand returns, and the caller must not touch the call any more. Where no other
// request is in flight on the connection it does nothing and returns false: then nobody reads the reply faster than the caller, by Wait.
func (k *Call) Hand(t Taker) bool {
	c := k.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.done || k.interrupted || c.others(k) <= 0 || !c.reading && !c.pumpLocked() {
		return false
	}
	k.to = t
	c.queue.handed++
	return true
}

// pumpLocked has the pump run; false when the backend is being closed.
func (c *conn) pumpLocked() bool {
	if !c.pumping && c.pool.b.tasks.begin() {
		c.pumping = true
		go c.runPump()
	}
	return c.pumping
}

// pump reads until nothing is in flight, unless somebody leads, who sees to what is left.
func (c *conn) pump() {
	defer c.pool.b.tasks.end()
	c.mu.Lock()
	c.pumping = false
	if c.reading {
		c.mu.Unlock()
		return
	}
	c.reading = true
	c.leadLocked(nil)
	c.handOutLocked()
	c.reading = false
	orphans, failed := c.orphans, c.failure != nil
	c.orphans = 0
	c.nextLeader()
	c.mu.Unlock()
	switch {
	case failed: // where all calls were given up nobody else gives the connection back
		c.pool.discard(c)
	case orphans > 0:
		c.pool.release(c, orphans)
	}
}

// handOutLocked tells the takers of the calls that have ended. It lets go of the lock meanwhile.
func (c *conn) handOutLocked() {
	for len(c.ended) > 0 {
		ended, users := c.ended, c.orphans
		c.ended, c.spare, c.orphans = c.spare, nil, 0
		c.mu.Unlock()
		for i := range ended {
			if ended[i].settle() {
				users++
			}
		}
		if users > 0 {
			c.pool.release(c, users)
		}
		for i := range ended {
			e := &ended[i]
			e.to.Take(e.reply, e.err)
		}
		clear(ended)
		c.mu.Lock()
		c.spare = ended[:0]
	}
}

// ending is the end of a call that was given away.
type ending struct {
	k     *Call
	to    Taker
	reply Reply
	err   error
}

// endLocked ends a call that was given away; its taker hears of it by handOutLocked.
func (c *conn) endLocked(k *Call) {
	c.queue.handed--
	c.ended = append(c.ended, ending{k: k, to: k.to})
}

// settle makes what the taker gets. It reports whether the call still counts as a user of the connection.
func (e *ending) settle() bool {
	e.reply, e.err = e.k.settle()
	e.k = nil
	return e.err == nil
}

// giveUpLocked ends a call that was given away and is interrupted while others have requests on the connection: its reply is dropped when it comes. False
// when the backend is being closed, which ends all of them.
func (c *conn) giveUpLocked(k *Call) bool {
	to, b, ctx, deadline := k.to, c.pool.b, k.ctx, k.deadline
	if !b.tasks.begin() {
		return false
	}
	k.to, k.abandoned = nil, true
	c.queue.handed--
	c.queue.abandoned++
	// On a goroutine of its own: whoever interrupts holds what the taker may need.
	go func() {
		defer b.tasks.end()
		k.release()
		b.stats.lost.Add(1)
		to.Take(Reply{}, b.lost(ctx, c.pool.addr.String(), deadline, ctx.Err()))
	}()
	return true
}

// tasks are a backend's goroutines that come and go.
type tasks struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// begin says that a goroutine is about to begin, which must call end; false after close: it may not.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.wg.Add(1)
	}
	return !t.closed
}

func (t *tasks) end() { t.wg.Done() }

// close waits for those that run; there will be no others.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}
