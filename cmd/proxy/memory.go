package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	memoryLook = time.Second
	// quietBelow is how much a quiet process allocates between two looks, in bytes.
	quietBelow = 8 << 20
	// leastSpare is how much must lie unused for it to be worth a collection, in bytes; also more than an eighth of what is used.
	leastSpare = 4 << 20
)

// giveBack gives memory that nothing uses back to the system whenever the process has become quiet, until ctx ends. Left alone the runtime would not
// collect then, since nothing is allocated: clients that are idle would keep the stacks on which their last requests were answered, and a rush would be
// paid for until the next one.
func giveBack(ctx context.Context) {
	tick := time.NewTicker(memoryLook)
	defer tick.Stop()
	var last memory
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := readMemory()
		if now.spare(last) {
			debug.FreeOSMemory()
			now = readMemory()
		}
		last = now
	}
}

// memory is what the runtime knows of the process's, in bytes.
type memory struct {
	allocated uint64 // ever
	free      uint64 // kept for later
	used      uint64 // by objects and stacks
}

func readMemory() memory {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return memory{allocated: s[0].Value.Uint64(), free: s[1].Value.Uint64(), used: s[2].Value.Uint64() + s[3].Value.Uint64()}
}

// spare reports whether there is something to give back and, since last, nothing going on.
func (m memory) spare(last memory) bool {
	return m.allocated-last.allocated < quietBelow && m.free > max(leastSpare, m.used/8)
}
