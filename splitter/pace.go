package splitter

import (
	"context"
	"sync"
	"time"
)

const (
	// copyRest is the part of a batch's time that the copy rests after it beside clients, when nothing is in its way.
	copyRest = 4
	// alike is how much longer a batch may take than at best and still seem to be alone on its servers.
	alike = 1.25
	// maxSlowdown bounds how many times longer it rests when others use the servers too, maxRest the rest itself, so that every copy ends.
	maxSlowdown = 16
	maxRest     = 2 * time.Second
	// perDocument is what a document costs a server beside its bytes, in bytes.
	perDocument = 256
	// forgets is how fast the best time is forgotten: servers that are slower for good are what there is.
	forgets = 1.01
)

// pace says how long one copy rests after a batch. What the foreground feels, the copy's own writes feel: when they take longer than they have taken at
// best, somebody else wants the servers, and the copy rests longer. It does not rest while it is alone there, as far as can be seen.
type pace struct {
	// best is the time that a unit of work has taken at best, in seconds; 0 before the first batch.
	best float64
}

// rest returns the rest after a batch that took so long; served says that clients' requests were served meanwhile.
func (p *pace) rest(docs int, bytes int64, took time.Duration, served bool) time.Duration {
	work := float64(bytes) + float64(docs)*perDocument
	if work == 0 || took <= 0 {
		return 0
	}
	each := took.Seconds() / work
	if p.best *= forgets; p.best == 0 || each < p.best {
		p.best = each
	}
	slowdown := min(each/p.best, maxSlowdown)
	if !served && slowdown < alike {
		return 0
	}
	return min(time.Duration(float64(took/copyRest)*slowdown), maxRest)
}

// rate bounds the bytes that all copies of this process write in a second. The zero value bounds nothing.
type rate struct {
	// perSecond is the bound; 0 for none.
	perSecond int64

	mu   sync.Mutex
	next time.Time // when the next batch may be written
}

// wait waits until bytes may be written. A batch is written at once when none was for as long as it is worth.
func (r *rate) wait(ctx context.Context, bytes int64) error {
	if r.perSecond <= 0 {
		return nil
	}
	r.mu.Lock()
	now := time.Now()
	at := r.next
	if at.Before(now) {
		at = now
	}
	r.next = at.Add(time.Duration(float64(bytes) / float64(r.perSecond) * float64(time.Second)))
	r.mu.Unlock()
	if at == now {
		return nil
	}
	return pause(ctx, at.Sub(now))
}
