package protocol

import (
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestMourner: who has been seen unchanged for a lease is ended; who has ended is gone at once, or after the lifetime of the transactions that it may have left, which is the largest that
// the backend was seen to have.
func TestMourner(t *testing.T) {
	const lease, linger = 10 * time.Second, 60 * time.Second
	own, quiet, busy := bson.NewObjectID(), bson.NewObjectID(), bson.NewObjectID()
	m := NewMourner(lease, 0)
	m.Linger(linger)
	began := time.Now()
	look := func(at time.Duration, all ...Instance) (end, gone []ID) {
		t.Helper()
		ended, gone := m.Look(began.Add(at), all, func(id ID) bool { return id == own })
		for _, in := range ended {
			end = append(end, in.ID)
		}
		return end, gone
	}
	is := func(what string, got []ID, want ...ID) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	mine, a, b := Instance{ID: own}, Instance{ID: quiet}, Instance{ID: busy, Transactions: true}
	end, gone := look(0, mine, a, b)
	is("first seen", end)
	is("first seen", gone)
	a.Renewals++
	end, _ = look(lease-1, mine, a, b)
	is("before a lease has passed", end)
	end, _ = look(lease, mine, a, b)
	is("one has renewed", end, busy)
	b.Ended = true
	end, gone = look(2*lease, mine, a, b)
	is("the other has not, since then", end, quiet)
	is("its transactions may live", gone)
	a.Ended = true
	_, gone = look(3*lease, mine, a, b)
	is("ended without transactions", gone, quiet)
	_, gone = look(2*lease+linger-1, mine, b)
	is("before their lifetime is over", gone)
	m.Linger(2 * linger)
	m.Linger(linger) // made smaller: those that began before keep what they had
	_, gone = look(2*lease+linger, mine, b)
	is("the lifetime was raised", gone)
	_, gone = look(2*lease+2*linger, mine, b)
	is("their lifetime is over", gone, busy)
}
