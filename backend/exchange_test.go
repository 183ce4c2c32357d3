package backend

import (
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"

	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/wire"
)

// exchange is a connection and what its server reads and writes.
func exchange(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	client, server := pair(t)
	b := &Backend{}
	b.life = t.Context()
	return newConn(&pool{b: b, all: map[*conn]struct{}{}}, client), server
}

func call(c *conn) *Call {
	return &Call{c: c, shape: 1 << 40, sent: now(), wake: make(chan struct{}, 1)}
}

func send(t *testing.T, k *Call) {
	t.Helper()
	if _, err := k.c.send(k, wire.AppendMsg(nil, 0, 0, 0, []byte{5, 0, 0, 0, 0})); err != nil {
		t.Fatal(err)
	}
}

// ended waits for what must not take long, whatever the server does.
func ended(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	waits.For(t, what, done)
}

// All requests of a connection are interrupted before any of them has given up: none was the last when it was interrupted, yet one of
// them is, and must not wait for a server that says nothing.
func TestAllInterruptedAtOnce(t *testing.T) {
	for _, leading := range []bool{false, true} {
		c, _ := exchange(t)
		one, two := call(c), call(c)
		send(t, one)
		send(t, two)
		results := make(chan bool, 2)
		wait := func(k *Call) { _, done := c.receive(k); results <- done }
		if leading {
			go wait(one)
			for led := false; !led; {
				c.mu.Lock()
				led = one.leads
				c.mu.Unlock()
			}
		}
		// As one step: interrupt locks for each.
		c.mu.Lock()
		one.interrupted, two.interrupted = true, true
		if leading {
			_ = c.nc.SetReadDeadline(past)
		}
		c.mu.Unlock()
		ended(t, "an interrupted request", func() {
			if !leading {
				go wait(one)
			}
			first := <-results
			go wait(two)
			if second := <-results; first || !second {
				t.Errorf("the first was the last: %v, the second: %v", first, second)
			}
		})
		if !c.dying.Load() || two.err == nil {
			t.Errorf("the connection that nobody waits on was not cut (%v)", two.err)
		}
	}
}

// A request that is interrupted before it stands in the queue does not cut off the one that does.
func TestInterruptedBeforeItIsQueued(t *testing.T) {
	c, server := exchange(t)
	one, two := call(c), call(c)
	send(t, one)
	two.interrupt()
	send(t, two)
	if _, done := c.receive(two); done || c.dying.Load() {
		t.Fatalf("the other's connection was cut: %v", c.dying.Load())
	}
	reply := wire.AppendMsg(nil, 0, 0, 0, []byte{5, 0, 0, 0, 0})
	binary.LittleEndian.PutUint32(reply[8:], uint32(one.id))
	if _, err := server.Write(reply); err != nil {
		t.Fatal(err)
	}
	ended(t, "the other request", func() {
		if _, done := c.receive(one); !done || one.err != nil {
			t.Errorf("the other request: %v, %v", done, one.err)
		}
	})
}

// What cuts a connection stands, whenever a request is about to be sent.
func TestCutBeforeSend(t *testing.T) {
	c, _ := exchange(t)
	c.deadline = true // arm will undo what cut sets
	c.cut()
	if _, err := c.send(call(c), wire.AppendMsg(nil, 0, 0, 0, []byte{5, 0, 0, 0, 0})); err == nil || !isTimeout(err) {
		t.Errorf("a request was sent on a connection that is cut: %v", err)
	}
}

// A request that comes to a connection which the interruption of another one has cut, before anybody has read of that, has not been sent: it may be tried again.
func TestSendBehindInterrupted(t *testing.T) {
	c, _ := exchange(t)
	one, two := call(c), call(c)
	send(t, one)
	one.interrupt()
	if sent, err := c.send(two, wire.AppendMsg(nil, 0, 0, 0, []byte{5, 0, 0, 0, 0})); sent || err == nil || !isTimeout(err) {
		t.Errorf("a request on a connection that was cut: sent %v, %v", sent, err)
	}
	ended(t, "the interrupted request", func() {
		if _, done := c.receive(one); !done || !isTimeout(one.err) {
			t.Errorf("the interrupted request: %v, %v", done, one.err)
		}
	})
}

// told is a Taker that does nothing but say that it was told.
type told chan error

func (k told) Take(r Reply, err error) {
	r.Release()
	k <- err
}

// The pump leaves a connection on which somebody reads alone: it neither reads nor begins again.
func TestPumpLeavesTheLeaderAlone(t *testing.T) {
	client, server := pair(t)
	b := &Backend{}
	b.life = t.Context()
	c := newConn(&pool{b: b, all: map[*conn]struct{}{}}, client)
	var runs atomic.Int32
	leads := make(chan struct{})
	c.runPump = func() {
		<-leads
		if runs.Add(1) < 100 { // or this would never end
			c.pump()
		} else {
			b.tasks.end()
		}
	}
	one, two := call(c), call(c)
	one.ctx, two.ctx = t.Context(), t.Context()
	send(t, one)
	send(t, two)
	taker := make(told, 1)
	if !two.Hand(taker) {
		t.Fatal("not taken")
	}
	ended(t, "a shared connection", func() {
		done := make(chan struct{})
		go func() { defer close(done); c.receive(one) }()
		for led := false; !led; {
			c.mu.Lock()
			led = one.leads
			c.mu.Unlock()
		}
		close(leads)
		b.tasks.wg.Wait() // the pump, which leaves
		if n := runs.Load(); n != 1 {
			t.Errorf("the pump ran %d times beside a leader", n)
		}
		for _, id := range []int32{one.id, two.id} {
			reply := wire.AppendMsg(nil, 0, id, 0, []byte{5, 0, 0, 0, 0})
			if _, err := server.Write(reply); err != nil {
				t.Error(err)
			}
		}
		<-done
		if err := <-taker; err != nil {
			t.Error(err)
		}
	})
}
