package router

import (
	"testing"

	"github.com/shardway/shardway/internal/waits"
)

// TestIdleConnectionsRest: a connection that has been idle goes on with another goroutine, and its client notices nothing.
func TestIdleConnectionsRest(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	resting := func() (n int) {
		e.r.eachConn(func(c *Conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.rest.used && !c.rest.told {
				n++
			}
		})
		return n
	}
	for round := range 3 {
		p.ok(ping())
		if n := resting(); n != 0 {
			t.Fatalf("round %d: a connection that has just answered rests", round)
		}
		waits.Until(t, "an idle connection rests", func() bool {
			e.r.eachConn((*Conn).restWhenIdle)
			return resting() > 0
		})
		if round == 1 { // a request of which half is there
			msg := p.msg(0, ping())
			p.send(msg[:len(msg)/2])
			for range 2 * restAfter {
				e.r.eachConn((*Conn).restWhenIdle)
			}
			p.send(msg[len(msg)/2:])
			p.receive()
		}
	}
}
