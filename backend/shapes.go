package backend

import (
	"sync/atomic"
	"time"
)

// Shape identifies a kind of request: a hash of all in it that tells how long it takes (the command, the collection, the fields of its filter) and
// nothing that does not (values). 0 is none.
type Shape uint64

const (
	// waitsFrom is the time to serve a request from which its shape counts as one that waits.
	waitsFrom = 500 * time.Microsecond
	// ownFrom is the time from which a connection costs nothing beside it: each such request has its own, however many they are.
	ownFrom = 50 * time.Millisecond
	// What is kept of a shape stays within these, and below soonKept from the first request that did not wait, so that a change is noticed soon.
	leastKept, soonKept, mostKept = 20 * time.Microsecond, 4 * waitsFrom, ownFrom * 5 / 4

	shapeSlots = 1024
)

// shapes remembers, for each shape, about how long a server takes for a request: not its mean, which grows with the load of a server that computes,
// but about its median as seen between the replies to two requests of which the second was waiting when the first was done. A server that computes answers
// those in quick succession, unless its other connections keep it busy; one that waits does not. The zero value knows nothing and takes every shape for short.
type shapes struct {
	// slots has for each shape the upper half of its hash and the nanoseconds. Shapes that meet in a slot forget each other.
	slots [shapeSlots]atomic.Uint64
}

func (s *shapes) slot(k Shape) *atomic.Uint64 { return &s.slots[k%shapeSlots] }

// kept is the time to serve a request of a shape; from waitsFrom on it waits, and should not be waited for by others.
func (s *shapes) kept(k Shape) time.Duration {
	v := s.slot(k).Load()
	if v>>32 != uint64(k)>>32 {
		return leastKept
	}
	return time.Duration(v & (1<<32 - 1))
}

// evidence is how the time of a request was seen.
type evidence uint8

const (
	// alone: nothing was in flight before it. The time has in it what it takes to wake the server.
	alone evidence = iota
	// queued: it had been waiting for its turn, and the reader for its reply.
	queued
	// together: its reply came with that of the one before it. Either the server computes, or the reader was late.
	together
)

// learn notes that a request took so long. One that is seen to have waited counts more than one that came together with another, so that a reader that is
// late for every second reply, as on a machine with too much to do, does not hide it; before a server that computes, most replies come together.
func (s *shapes) learn(k Shape, took time.Duration, how evidence) {
	slot := s.slot(k)
	kept := s.kept(k)
	if took < waitsFrom && how != together {
		kept = min(kept, soonKept)
	}
	switch {
	case how == together:
		kept -= kept / 12
	case took < kept:
		kept -= kept / 8
	case how == alone: // it may only lower what is kept
		return
	default:
		kept += kept / 4
	}
	kept = min(max(kept, leastKept), mostKept)
	slot.Store(uint64(k)>>32<<32 | uint64(kept)) // a note that is lost does not matter
}
