package backend

import (
	"sync/atomic"
	"time"
)

// counters are the backend's meters; one atomic add each on their paths.
type counters struct {
	created, closed, cleared, dialFailures atomic.Int64
	waited, waiting, waitNanos             atomic.Int64
	lost, stateChanges                     atomic.Int64
}

// Stats is what the pools of a backend have done since Open.
type Stats struct {
	// Open is the connections open now, Idle those of them nobody uses.
	Open, Idle int
	// Created and Closed count connections; Cleared counts how often a host was lost; DialFailures
	// counts connections that could not be made.
	Created, Closed, Cleared, DialFailures int64
	// Waiting is the requests waiting for a connection now, Waited all that ever did, and WaitTime
	// the sum of their waiting.
	Waiting, Waited int64
	WaitTime        time.Duration
	// Lost counts requests whose connection ended before their reply; StateChanges counts replies
	// that said the server is not primary or shuts down.
	Lost, StateChanges int64
}

// Stats returns the meters at this moment.
func (b *Backend) Stats() Stats {
	s := Stats{
		Created: b.stats.created.Load(), Closed: b.stats.closed.Load(),
		Cleared: b.stats.cleared.Load(), DialFailures: b.stats.dialFailures.Load(),
		Waiting: b.stats.waiting.Load(), Waited: b.stats.waited.Load(),
		WaitTime: time.Duration(b.stats.waitNanos.Load()),
		Lost:     b.stats.lost.Load(), StateChanges: b.stats.stateChanges.Load(),
	}
	for _, p := range *b.pools.Load() {
		p.mu.Lock()
		s.Open += len(p.all)
		s.Idle += len(p.idle)
		p.mu.Unlock()
	}
	return s
}

// ShortReplies counts the replies to requests that had a shape: clients' short ones.
func (b *Backend) ShortReplies() (n uint64) {
	for _, p := range *b.pools.Load() {
		n += p.replies.Load()
	}
	return n
}
