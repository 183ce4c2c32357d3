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
	began, last, before := time.Now(), time.Duration(0), []Instance(nil)
	look := func(at time.Duration, all ...Instance) (end, gone []ID) {
		t.Helper()
		for last += lease / 4; last < at; last += lease / 4 { // it looks often
			m.Look(began.Add(last), began.Add(last), before, func(id ID) bool { return id == own })
		}
		last, before = at, all
		ended, gone := m.Look(began.Add(at), began.Add(at), all, func(id ID) bool { return id == own })
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

// TestMournerMeasuresWhatItSaw: only the time between two readings during which nothing can have been renewed counts, and only while the backend can be
// read; an instance that says how long its lease is gets that long.
func TestMournerMeasuresWhatItSaw(t *testing.T) {
	const lease = 10 * time.Second
	type reading struct {
		began, ended time.Duration
		renewals     int64
		lease        time.Duration
	}
	// every is readings that find nothing new, one a second.
	every := func(from, to time.Duration) (all []reading) {
		for at := from; at <= to; at += time.Second {
			all = append(all, reading{began: at, ended: at})
		}
		return all
	}
	s := time.Second
	for name, tt := range map[string]struct {
		readings []reading
		ends     bool
	}{
		"unchanged for a lease":                        {every(0, 10*s), true},
		"unchanged for less":                           {every(0, 9*s), false},
		"renewed on the way":                           {append(every(0, 9*s), reading{10 * s, 10 * s, 1, 0}), false},
		"the first reading took long":                  {append([]reading{{0, 4 * s, 0, 0}}, every(5*s, 13*s)...), false},
		"the first reading took long, and a lease":     {append([]reading{{0, 4 * s, 0, 0}}, every(5*s, 14*s)...), true},
		"the last reading took long":                   {append(every(0, 9*s), reading{9500 * time.Millisecond, 14 * s, 0, 0}), false},
		"nothing could be read for more than a lease":  {append(every(0, 2*s), every(14*s, 15*s)...), false},
		"nothing could be read, and a lease since":     {append(every(0, 2*s), every(14*s, 24*s)...), true},
		"a short time without a reading counts":        {append(every(0, 2*s), every(6*s, 10*s)...), true},
		"its own lease is longer":                      {append(every(0, 10*s), reading{11 * s, 11 * s, 0, 12 * s}), false},
		"its own lease is longer, and that has passed": {append(every(0, 11*s), reading{12 * s, 12 * s, 0, 12 * s}), true},
		"its own lease is shorter":                     {append(every(0, 8*s), reading{9 * s, 9 * s, 0, 5 * s}), false},
	} {
		m, id, began := NewMourner(lease, 0), bson.NewObjectID(), time.Now()
		var end []Instance
		for i, r := range tt.readings {
			in := Instance{ID: id, Renewals: r.renewals, Lease: r.lease.Milliseconds()}
			end, _ = m.Look(began.Add(r.began), began.Add(r.ended), []Instance{in}, func(ID) bool { return false })
			if last := i == len(tt.readings)-1; !last && len(end) > 0 && tt.readings[len(tt.readings)-1].lease == 0 {
				t.Errorf("%s: ended at the reading that began at %s", name, r.began)
			}
		}
		if ends := len(end) > 0; ends != tt.ends {
			t.Errorf("%s: ended is %v", name, ends)
		}
	}
}
