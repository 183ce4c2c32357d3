package router

import (
	"errors"
	"os"
	"time"
)

// A goroutine keeps the stack on which it answered its deepest request. A connection that has been idle for a while therefore goes on with a new one, which
// costs thousands of idle clients half of their memory and a busy one nothing.

// restAfter is for how many looks a connection must have been idle.
const restAfter = 2

// resting is what a connection knows of that; it is guarded by Conn.mu.
type resting struct {
	used bool // the goroutine has answered a request
	idle int  // looks since
	told bool // it has been told to rest
}

// answering notes that a request came.
func (s *resting) answering() { s.used, s.idle = true, 0 }

// restWhenIdle is a look: it tells a connection that has been idle to rest.
func (c *Conn) restWhenIdle() {
	if c.socket == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.rest
	if c.busy || c.stop || !s.used || s.told {
		return
	}
	if s.idle++; s.idle < restAfter {
		return
	}
	s.told = true
	_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // whatever was read of a request stays
}

// mayRest reports whether reading ended only because the connection is to rest, and has the next read wait again.
func (c *Conn) mayRest(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop || c.lost != nil || !c.rest.told {
		return false
	}
	c.rest = resting{}
	_ = c.nc.SetReadDeadline(time.Time{})
	return true
}
