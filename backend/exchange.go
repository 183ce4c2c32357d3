package backend

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/shardway/shardway/wire"
)

// How a connection is shared. Who sends puts its call at the end of the queue and either writes, or leaves its bytes to whoever is writing. Of those that wait
// for replies one leads: it reads for all and hands each its reply; when it has its own, the next leads. So a connection with one request in flight costs
// what it would cost if there were no sharing, and one with many a fraction of the system calls. For calls whose replies nobody waits for see pump.go.

// send puts msg on the wire as the call's request. With an error, sent reports whether any byte may have left.
func (c *conn) send(k *Call, msg []byte) (sent bool, err error) {
	c.mu.Lock()
	if c.failure == nil && c.dying.Load() { // it was cut since it was chosen: whoever reads has not heard of that yet
		c.failLocked(os.ErrDeadlineExceeded)
	}
	if err := c.failure; err != nil {
		c.mu.Unlock()
		return false, err
	}
	if c.nextID++; c.nextID < 0 {
		c.nextID = 1
	}
	k.id = c.nextID
	wire.SetRequestID(msg, k.id)
	if c.queue.n == 0 {
		c.progress.Store(int64(k.sent))
		// A deadline on the socket is of the request that has the connection for itself; shared ones end by their contexts.
		var deadline time.Time
		if k.shape == 0 {
			deadline = k.deadline
		}
		err := c.arm(deadline)
		if err == nil && c.dying.Load() { // arm may have undone what cut has set
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			c.mu.Unlock()
			return false, err
		}
	}
	c.queue.push(k)
	k.queued = true
	switch {
	case c.writing: // the writer takes it along
		c.append(msg)
		c.mu.Unlock()
		return true, nil
	case c.queue.n > 1:
		// Others are served here. Let whoever is about to send do so first: one write for all.
		c.append(msg)
		c.writing = true
		c.mu.Unlock()
		c.gathering.Store(true)
		runtime.Gosched()
		c.gathering.Store(false)
		c.mu.Lock()
		sent = true // the writes of flush tell those that wait
	default:
		c.writing = true
		c.mu.Unlock()
		var n int
		n, err = c.nc.Write(msg)
		sent = n > 0 || c.nc != c.raw // TLS does not say what left
		c.mu.Lock()
		if err != nil {
			c.failLocked(err)
		}
	}
	c.flushLocked()
	c.writing = false
	c.mu.Unlock()
	return sent, err
}

func (c *conn) append(msg []byte) {
	if c.out == nil {
		c.out = wire.GetBuffer(max(readAtOnce, len(msg)))
		c.out.B = c.out.B[:0]
	}
	c.out.Grow(len(msg))
	c.out.B = append(c.out.B, msg...)
}

// flushLocked writes what others have left, until they leave nothing.
func (c *conn) flushLocked() {
	for c.out != nil && c.failure == nil {
		out := c.out
		c.out = nil
		c.mu.Unlock()
		_, err := c.nc.Write(out.B)
		out.Release()
		c.mu.Lock()
		if err != nil {
			c.failLocked(err)
		}
	}
}

// receive waits for the call's reply, leading where nobody else does. It returns true when k is done, and false when k was given up while others
// wait on the connection: then its reply is dropped when it comes, and only k's static fields may be looked at. orphans counts such replies
// that have come.
func (c *conn) receive(k *Call) (orphans int, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !k.done {
		switch {
		case k.interrupted && c.others(k) > 0:
			k.abandoned = true
			c.queue.abandoned++
			return 0, false
		case k.interrupted: // those that were with it when it was interrupted have given up since
			c.cut()
			c.failLocked(os.ErrDeadlineExceeded)
		case !c.reading:
			c.reading, k.leads = true, true
			c.leadLocked(k)
			c.handOutLocked()
			c.reading, k.leads = false, false
			c.nextLeader()
		default:
			k.waits = true
			c.mu.Unlock()
			<-k.wake
			c.mu.Lock()
			k.waits = false
		}
	}
	orphans, c.orphans = c.orphans, 0
	return orphans, true
}

// others is how many calls beside k are still waited for.
func (c *conn) others(k *Call) int {
	n := c.queue.n - c.queue.abandoned
	if k.queued {
		n--
	}
	return n
}

// leadLocked reads and hands out replies until k has its own and no whole one is left, or is interrupted; without k, for the pump, until nothing is in flight.
// There may be takers to be told afterwards.
func (c *conn) leadLocked(k *Call) {
	for c.failure == nil {
		if c.queue.n == 0 && (k == nil || k.done) {
			if !c.in.empty() {
				c.failLocked(c.refuseLast(k, fmt.Errorf("%w: bytes after the reply", errGarbage)))
			}
			if k != nil || len(c.ended) == 0 {
				return
			}
		}
		m, ok, err := c.in.next()
		switch {
		case ok:
			err = c.deliverLocked(m, k)
		case err == nil && k != nil && (k.done || k.interrupted):
			return
		case err == nil && len(c.ended) > 0:
			c.handOutLocked()
		case err == nil:
			want := readAtOnce
			if c.queue.n > 2 {
				want = readMany
			}
			c.mu.Unlock()
			err = c.in.read(c.nc, want)
			came := time.Now()
			c.mu.Lock()
			c.read, c.came = true, came
		}
		if err != nil && !c.wokenLocked(err) {
			c.failLocked(err)
		}
	}
}

// refuseLast gives the call that has had the last reply an error instead, if that is the reader's, or was given away and its taker was not told yet.
func (c *conn) refuseLast(k *Call, err error) error {
	if n := len(c.ended); n > 0 && c.ended[n-1].k == c.last {
		k = c.last
	}
	if k != nil && k == c.last {
		k.buf.Release()
		k.buf, k.body, k.err = nil, nil, err
	}
	return err
}

// wokenLocked reports whether a read ended only because a leader was to look up, and has the next one wait again.
func (c *conn) wokenLocked(err error) bool {
	if !isTimeout(err) || c.deadline || c.dying.Load() || errors.Is(err, errGarbage) {
		return false
	}
	_ = c.nc.SetReadDeadline(time.Time{})
	return !c.dying.Load() // cut at this moment, which the line above may have undone
}

// deliverLocked hands a reply to the call at the head of the queue.
func (c *conn) deliverLocked(m wire.Message, leader *Call) error {
	if c.queue.n == 0 {
		m.Release()
		return fmt.Errorf("%w: a reply that nobody waits for", errGarbage)
	}
	k := c.queue.at(0)
	body, err := replyBody(m, k.id)
	if err != nil {
		m.Release()
		return err
	}
	c.queue.pop()
	at := c.came.Sub(began)
	last := time.Duration(c.progress.Swap(int64(at)))
	if k.shape != 0 {
		how := alone
		switch {
		case k.sent < last && c.read:
			how = queued
		case k.sent < last:
			how = together
		}
		c.pool.replies.Add(1)
		c.pool.shapes.learn(k.shape, at-max(last, k.sent), how)
	}
	c.read = false
	if k.abandoned {
		m.Release()
		c.queue.abandoned--
		c.orphans++
		return nil
	}
	k.buf, k.body, k.came, k.done = m.Buf, body, c.came, true
	c.last = k
	switch {
	case k.to != nil:
		c.endLocked(k)
	case k != leader:
		k.wakeLocked()
	}
	return nil
}

// nextLeader has the pump read where a call was given away, and where all were given up, whose replies must come before the connection can be used
// again; otherwise one of those that wait.
func (c *conn) nextLeader() {
	if c.queue.handed > 0 || len(c.ended) > 0 || c.queue.n > 0 && c.queue.n == c.queue.abandoned {
		if c.pumpLocked() {
			return
		}
		// The backend is being closed, which cuts the connection.
		c.failLocked(errClosed)
		c.handOutLocked()
	}
	for i := range c.queue.n {
		if k := c.queue.at(i); k.waits {
			k.wakeLocked()
			return
		}
	}
}

// failLocked ends the connection: every call on it that has no reply yet fails with err.
func (c *conn) failLocked(err error) {
	if c.failure == nil {
		c.failure = err
		c.cut() // for whoever reads: there may be nobody else who closes it
	}
	for c.queue.n > 0 {
		k := c.queue.pop()
		k.err, k.done = err, true
		if k.to != nil {
			c.endLocked(k)
		} else {
			k.wakeLocked()
		}
	}
	c.queue.abandoned = 0
	c.out.Release()
	c.out = nil
}

// wakeLocked ends the call's wait, if it waits.
func (k *Call) wakeLocked() {
	if !k.waits {
		return
	}
	k.waits = false
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// interrupt gives the call up: its context has ended. A connection of its own is cut, so that the server hears of it; on a shared one
// the others go on.
func (k *Call) interrupt() {
	c := k.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case k.done || k.interrupted:
		return
	case c.others(k) <= 0:
		c.cut()
	case k.to != nil:
		if !c.giveUpLocked(k) {
			c.cut()
		}
	case k.leads:
		_ = c.nc.SetReadDeadline(past)
	}
	k.interrupted = true
	k.wakeLocked()
}
