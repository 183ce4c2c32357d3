package router

import (
	"context"
	"time"

	"github.com/shardway/shardway/wire"
)

const (
	// goneEvery is how often clients of long requests are looked at, and goneAfter how long a request is before its is.
	goneEvery = time.Second
	goneAfter = time.Second
)

// errClientGone ends a request whose client closed its connection.
var errClientGone error = wire.Errorf(wire.ClientDisconnect, "operation was interrupted because the client disconnected")

// watchClients ends long reads whose clients are gone, until ctx ends: while a request is being answered nobody reads from
// its connection, so nobody else would notice. Writes go on: nobody may wait for an unacknowledged one. Connections that are idle it has rest.
func (r *Router) watchClients(ctx context.Context) {
	t := time.NewTicker(goneEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			r.eachConn(func(c *Conn) {
				c.restWhenIdle()
				c.mu.Lock()
				op := c.op
				long := op != nil && !op.Command.Writes && now.Sub(op.Started) > goneAfter
				c.mu.Unlock()
				if long && hungUp(c.nc) {
					c.interruptOp(op, errClientGone)
				}
			})
		}
	}
}
