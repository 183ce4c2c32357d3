package member

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardway/shardway/partition"
)

// Lease is an instance's right to use one backend. It is made anew with each instance; a request keeps the one that it began under.
type Lease struct {
	length, margin time.Duration
	// sent is when the last renewal that was confirmed in time was sent; nil when there is none, or the instance has ended.
	sent atomic.Pointer[time.Time]

	// mark writes that the instance may leave a transaction open; marked says that it is written.
	mark   func(context.Context) error
	mu     sync.Mutex
	marked bool

	// closed are the gates that the instance closed while it joined. Static once it has joined.
	closed []closedGate
}

// closedGate is a gate that waits for a version.
type closedGate struct {
	gate *partition.Gate
	ends int64
}

func (l *Lease) joinedBehind(gates []*partition.Gate, ends int64) {
	for _, g := range gates {
		l.closed = append(l.closed, closedGate{g, ends})
	}
}

// Admits reports whether a request that is inside p's gate may be sent under this lease, which must have been taken before. The request may have entered under
// an earlier instance of this process, which others may have ended since, so that nobody waits for its answer any more. What it may still use is what
// cannot have been closed without this instance's answer:
//
//   - The map has not changed: a closing that has ended before this instance joined has left a version or a floor, which was applied before.
//   - The gate is not closed by a closing that this instance met while it joined. Its owner may have counted the answers before the instance registered, and may
//     flip at any moment. Requests that entered under this instance are not behind such a gate: it was closed before the lease could be had.
//
// A closing that comes later waits for this instance's answer, which waits for the request.
func (l *Lease) Admits(p *partition.Part) bool {
	for _, c := range l.closed {
		if c.gate == p.Gate() && c.gate.Awaits(c.ends) {
			return false
		}
	}
	return p.Current()
}

// BeforeTransaction is called before the instance's first transaction begins at the backend, and may be called before each: the registration says from then
// on that the instance may leave one open, so that whoever ends it waits for what it left. With an error no transaction may begin.
func (l *Lease) BeforeTransaction(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.marked || l.mark == nil {
		return nil
	}
	if err := l.mark(ctx); err != nil {
		return err
	}
	l.marked = true
	return nil
}

// Valid reports whether the lease has not ended. It runs through a suspended machine: when the wall clock and the monotonic one
// disagree about the time since the renewal by more than the margin, the lease counts as lost.
func (l *Lease) Valid() bool { return l.ValidAt(time.Now()) }

// ValidAt is Valid at a time that has just been read.
func (l *Lease) ValidAt(now time.Time) bool {
	sent := l.sent.Load()
	if sent == nil {
		return false
	}
	return l.holds(now.Sub(*sent), now.Round(0).Sub(sent.Round(0)))
}

// holds reports whether the lease is good so long after the renewal, by the monotonic and by the wall clock. The first stands still while a machine is suspended.
func (l *Lease) holds(mono, wall time.Duration) bool {
	return mono < l.length && (wall-mono).Abs() <= l.margin
}

// renewed notes a renewal that was sent at that time and has just been confirmed; one that comes after the end is worthless.
func (l *Lease) renewed(sent time.Time, first bool) bool {
	if !first && !l.Valid() {
		return false
	}
	if time.Since(sent) >= l.length {
		return false
	}
	l.sent.Store(&sent)
	return true
}

// end ends the lease for good.
func (l *Lease) end() { l.sent.Store(nil) }
