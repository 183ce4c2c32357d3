package router

import (
	"context"
	"slices"

	"github.com/shardway/shardway/partition"
)

// cutOff is why a transaction is aborted whose lease was lost.
const cutOff = "this proxy was cut off from its backend"

// LeaseLost aborts the transactions that this proxy has open at a backend whose lease it has lost: what they began under the old instance is another's to answer
// for. Their cursors end with them: a getMore for one is 237 CursorKilled from then on. All other cursors go on, on secondaries and, if it lives, on the
// primary (target.Cursor says why that is safe); those of a server that is gone end with the next getMore.
func (r *Router) LeaseLost(_ context.Context, backendID string) {
	r.cursors.condemn(func(c *cursor) bool {
		return c.txn != nil && slices.ContainsFunc(c.held, func(p *partition.Part) bool { return p.Backend == backendID })
	})
	r.abortWhere(cutOff, func(t *transaction) bool { return t.backend == backendID })
}

// DrainOverdue ends the cursors on homes that the newest map does not name and that were to be drained by now: 237.
func (r *Router) DrainOverdue(homes []partition.Home) {
	r.cursors.condemn(func(c *cursor) bool {
		return slices.ContainsFunc(c.held, func(p *partition.Part) bool { return slices.Contains(homes, p.Home) })
	})
}

// maxCondemned bounds the ids that are remembered of cursors that this proxy has killed.
const maxCondemned = 10000

// condemn kills the cursors that match accepts, and remembers their ids for those who ask for more.
func (cs *cursors) condemn(match func(*cursor) bool) {
	cs.killWhere(func(c *cursor) bool {
		if !match(c) {
			return false
		}
		if cs.condemned == nil || len(cs.condemned) >= maxCondemned {
			cs.condemned = map[int64]bool{}
		}
		cs.condemned[c.id] = true
		return true
	})
}

// clientGone aborts what nobody is there any more to end, when a connection has ended. A transaction is its session's, not a connection's: as on a mongos a pool may close one while it is
// idle, and the transaction goes on over another. It ends with the last connection of whoever brought its last statement. Behind a load balancer the driver keeps it to one connection, and it
// ends with that.
func (r *Router) clientGone(c *Conn) {
	who := *c.who.Load()
	left := func(t *transaction) bool {
		if t.conn == nil || t.conn.loadBalanced {
			return t.conn == c
		}
		return *t.conn.who.Load() == who
	}
	if len(r.txns.where(left)) > 0 && (c.loadBalanced || !r.isConnected(who)) {
		r.abortWhere("its client has gone", left)
	}
}

// isConnected reports whether a client has a connection.
func (r *Router) isConnected(who string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		if *c.who.Load() == who {
			return true
		}
	}
	return false
}

// abortWhere aborts the open transactions that match accepts. match is called under locks.
func (r *Router) abortWhere(why string, match func(*transaction) bool) {
	for _, t := range r.txns.where(match) {
		t.doom(why)
	}
}
