package router

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// How batches are fetched ahead. A client that has sent a getMore scans: from then on a merged cursor asks each backend for the next batch before
// the client wants it, when the last one has been handed out (unsorted) or begun (sorted), so that backends and client work at the same time. A backend
// cursor has one batch ahead at most, an unsorted cursor few, and all cursors together no more than aheadLimit: what is beyond is asked for when the client waits for it.
//
// A fetch is a goroutine that sends one getMore, reads the reply off the connection, and ends; its cursor owns it, waits for it when it closes, and holds
// the partition's gate for it. An error is told in the branch's turn.
// One that could not be sent never was: the branch is asked again by whoever waits for it. Cursors in transactions, tailable ones, and those
// of a single backend are never fetched ahead: there a getMore has a meaning of its own.

const (
	// maxReply is what a server's reply may take: a document's limit and what stands around it.
	maxReply = wire.MaxDocumentSize + 16<<10
	// aheadLimit is about how many bytes all cursors of the proxy have ahead; a fetch under way counts as maxReply.
	aheadLimit = 256 << 20
	// unsortedAhead is how many batches an unsorted cursor has ahead while its client works: enough to go on with, and what is copied soon is still in the
	// processor's cache. When the client waits, all that may be asked are.
	unsortedAhead = 3
)

// aheadBudget counts the bytes that are fetched ahead.
type aheadBudget struct{ used atomic.Int64 }

// take reports whether n more bytes may be ahead. Give them back.
func (a *aheadBudget) take(n int64) bool {
	if a.used.Add(n) <= aheadLimit {
		return true
	}
	a.used.Add(-n)
	return false
}

// fetch is one batch that was asked for ahead.
type fetch struct {
	cancel context.CancelFunc
	over   chan struct{} // closed when what follows is set and nothing is under way any more

	reply  backend.Reply // if err is nil
	err    error
	unsent bool  // it did not leave: err counts for nothing
	bytes  int64 // of the budget
}

// ended reports whether a fetch is over.
func (ft *fetch) ended() bool {
	select {
	case <-ft.over:
		return true
	default:
		return false
	}
}

// startFetch asks for a branch's next batch; false when that is not to be done ahead now. The branch owns the fetch.
func (f *fanout) startFetch(br *branch, q *Request) bool {
	if !f.scanning || !f.r.ahead.take(maxReply) {
		return false
	}
	ctx, cancel := context.WithCancel(f.r.life)
	ft := &fetch{cancel: cancel, over: make(chan struct{}), bytes: maxReply}
	to, msg, gate := br.more(q), f.getMore(br, q), br.part.Gate()
	gate.Hold() // as the cursor does, but until the backend works no longer
	br.ahead = ft
	go func() {
		defer func() {
			cancel()
			gate.Unhold()
			close(ft.over)
			select {
			case f.arrived <- struct{}{}:
			default:
			}
		}()
		ft.run(ctx, f.r, to, msg)
	}()
	return true
}

// run sends the message and reads the reply.
func (ft *fetch) run(ctx context.Context, r *Router, to target, msg []byte) {
	c, err := r.send(ctx, to, msg)
	if err != nil {
		var lost *backend.LostError
		ft.err, ft.unsent = err, !errors.As(err, &lost)
	} else {
		ft.reply, ft.err = c.wait()
	}
	size := int64(cap(ft.reply.Body))
	r.ahead.used.Add(size - ft.bytes)
	ft.bytes = size
}

// good reports whether a fetch that is over has brought a batch that may be handed out.
func (ft *fetch) good() bool {
	return ft.err == nil && commandError(ft.reply.Body) == nil
}

// land gives a branch that has no document left what its fetch, which is over, has brought.
func (f *fanout) land(br *branch) error {
	ft := br.ahead
	br.ahead = nil
	f.r.ahead.used.Add(-ft.bytes)
	if ft.unsent {
		br.unsent = true
		return nil
	}
	return settle([]*branch{br}, []backend.Reply{ft.reply}, []error{ft.err}, "nextBatch")
}

// bare reports whether a branch needs a batch: nothing is left of the last one, not in the heap either.
func (f *fanout) bare(i int) bool {
	if len(f.branches[i].docs) > 0 {
		return false
	}
	if f.heap == nil {
		return true
	}
	for _, v := range f.vacant {
		if v == i {
			return true
		}
	}
	return false
}

// await waits until a fetch of a branch that needs it is over, and lands all that are.
func (f *fanout) await(ctx context.Context) error {
	for {
		landed := false
		for i, br := range f.branches {
			if br.ahead != nil && f.bare(i) && br.ahead.ended() {
				if err := f.land(br); err != nil {
					return err
				}
				landed = true
			}
		}
		if landed {
			return nil
		}
		select {
		case <-f.arrived:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// scan has the cursor fetch ahead from now on, unless its getMores mean something; batchSize is what the client's getMore says.
func (f *fanout) scan(q *Request, batchSize int64) {
	f.batchSize = min(batchSize, maxBatch)
	f.scanning = f.plain && q.txn == nil
	if f.scanning && f.arrived == nil {
		f.arrived = make(chan struct{}, 1)
	}
}

// fetchAhead asks for what the client will want next, when it has been given a batch.
func (f *fanout) fetchAhead(q *Request) error {
	if !f.scanning || f.limit >= 0 && f.buffered() >= f.limit {
		return nil
	}
	free := len(f.branches)
	if f.heap != nil {
		for i, br := range f.branches { // what has come begins to be merged now, so that the next can be asked for
			if br.ahead != nil && f.bare(i) && br.ahead.ended() && br.ahead.good() {
				if err := f.land(br); err != nil {
					return err
				}
			}
		}
	} else {
		free = unsortedAhead
		for _, br := range f.branches {
			if br.ahead != nil {
				free--
			}
		}
	}
	for i := range f.branches {
		br := f.branches[(f.turn+i)%len(f.branches)]
		if br.id == 0 || br.ahead != nil || br.unsent || f.heap == nil && len(br.docs) > 0 {
			continue
		}
		if free--; free < 0 || !f.startFetch(br, q) {
			break
		}
	}
	return nil
}

// buffered is about how many documents the branches have.
func (f *fanout) buffered() int64 {
	if f.seen == 0 {
		return 0
	}
	bytes := int64(0)
	for _, br := range f.branches {
		bytes += int64(len(br.docs))
	}
	return bytes / max(1, f.seenBytes/f.seen)
}

// endFetch ends a closing branch's fetch and its cursor, in the background. The server is told first, so that it ends what it does for the cursor; a server
// that does not answer within killTimeout is cut off.
func (r *Router) endFetch(br *branch, ft *fetch, session bson.Raw) {
	end := branch{part: br.part, host: br.host, id: br.id}
	br.id = 0
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		limit := time.AfterFunc(killTimeout, ft.cancel)
		defer limit.Stop()
		told := !ft.ended()
		if told {
			r.sendKill(&end, session)
		}
		<-ft.over
		r.ahead.used.Add(-ft.bytes)
		if ft.err == nil {
			if commandError(ft.reply.Body) != nil {
				end.id = 0
			} else if id, ok := bsoncore.Document(ft.reply.Body).Lookup("cursor", "id").AsInt64OK(); ok {
				end.id = id
			}
			ft.reply.Release()
		} else if told {
			return
		}
		if end.id != 0 { // it may have been told too early
			r.sendKill(&end, session)
		}
	}()
}
