package member

import (
	"sync/atomic"
	"time"
)

// Lease is an instance's right to use one backend. It is made anew with each instance; a request keeps the one that it began under.
type Lease struct {
	length, margin time.Duration
	// sent is when the last renewal that was confirmed in time was sent; nil when there is none, or the instance has ended.
	sent atomic.Pointer[time.Time]
}

// Valid reports whether the lease has not ended. It runs through a suspended machine: when the wall clock and the monotonic one
// disagree about the time since the renewal by more than the margin, the lease counts as lost.
func (l *Lease) Valid() bool {
	sent := l.sent.Load()
	if sent == nil {
		return false
	}
	now := time.Now()
	mono := now.Sub(*sent)
	wall := now.Round(0).Sub(sent.Round(0))
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
