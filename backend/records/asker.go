package records

import (
	"context"
	"sync"

	"github.com/shardway/shardway/backend"
)

// maxTogether bounds the sessions that one question names.
const maxTogether = 10_000

// Asker asks on behalf of many requests. A linearizable answer costs the replica set an oplog entry
// and a majority, so questions that come while one is under way at the same backend go together, as
// the next one. Make one with NewAsker; it is safe for concurrent use.
type Asker struct {
	life context.Context
	run  func(func())

	mu sync.Mutex
	by map[*backend.Backend]*queue
}

// queue is the questions for one backend, guarded by Asker.mu. It is there while one is under way.
type queue struct{ next *round }

// round is one question.
type round struct {
	ids []SessionID
	// over is closed when what follows is set.
	over  chan struct{}
	found map[SessionID]Record
	err   error
}

// NewAsker makes an Asker whose questions end with life. run starts a goroutine that its owner
// waits for.
func NewAsker(life context.Context, run func(func())) *Asker {
	return &Asker{life: life, run: run, by: map[*backend.Backend]*queue{}}
}

// Sessions is the function of that name. The question begins after the call.
func (a *Asker) Sessions(ctx context.Context, b *backend.Backend, ids []SessionID) (map[SessionID]Record, error) {
	rd := a.join(b, ids)
	if rd == nil {
		return Sessions(ctx, b, ids)
	}
	select {
	case <-rd.over:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if rd.err != nil {
		return nil, rd.err
	}
	own := map[SessionID]Record{}
	for _, id := range ids {
		if rec, ok := rd.found[id]; ok {
			own[id] = rec
		}
	}
	return own, nil
}

// join adds sessions to the next question for a backend; nil when that has too many already.
func (a *Asker) join(b *backend.Backend, ids []SessionID) *round {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.by[b]
	if q == nil {
		q = &queue{}
		a.by[b] = q
		defer a.run(func() { a.ask(b, q) })
	}
	if q.next == nil {
		q.next = &round{over: make(chan struct{})}
	}
	if len(q.next.ids)+len(ids) > maxTogether && len(q.next.ids) > 0 {
		return nil
	}
	q.next.ids = append(q.next.ids, ids...)
	return q.next
}

// ask asks one question after the other until nobody has one.
func (a *Asker) ask(b *backend.Backend, q *queue) {
	for {
		a.mu.Lock()
		rd := q.next
		q.next = nil
		if rd == nil {
			delete(a.by, b)
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		rd.found, rd.err = Sessions(a.life, b, rd.ids)
		close(rd.over)
	}
}
