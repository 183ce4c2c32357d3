package member

import (
	"testing"
	"time"
)

// TestLeaseAndClocks: a machine that was suspended has lost its lease, though its monotonic clock has not moved.
func TestLeaseAndClocks(t *testing.T) {
	l := &Lease{length: 10 * time.Second, margin: time.Second}
	for name, tt := range map[string]struct {
		mono, wall time.Duration
		want       bool
	}{
		"just renewed":                   {0, 0, true},
		"within":                         {9 * time.Second, 9 * time.Second, true},
		"over":                           {10 * time.Second, 10 * time.Second, false},
		"suspended for an hour":          {2 * time.Second, time.Hour, false},
		"suspended for a moment":         {2 * time.Second, 2*time.Second + 900*time.Millisecond, true},
		"the wall clock was put back":    {2 * time.Second, -5 * time.Second, false},
		"the wall clock was set a bit":   {2 * time.Second, 1500 * time.Millisecond, true},
		"over by the monotonic one only": {11 * time.Second, 10500 * time.Millisecond, false},
	} {
		if got := l.holds(tt.mono, tt.wall); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if l.Valid() {
		t.Error("a lease that was never renewed is valid")
	}
	if now := time.Now(); !l.renewed(now, true) || !l.Valid() {
		t.Error("a lease that has just been renewed is not valid")
	}
}
