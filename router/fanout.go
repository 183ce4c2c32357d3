package router

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// arrayIndices are the names of the first elements of arrays, made once.
var arrayIndices = func() (s [1024]string) {
	for i := range s {
		s[i] = strconv.Itoa(i)
	}
	return s
}()

func arrayIndex(i int) string {
	if i < len(arrayIndices) {
		return arrayIndices[i]
	}
	return strconv.Itoa(i)
}

// maxBuffered is about how many bytes of documents one read holds that its client has not fetched yet; the documents that were seen
// so far tell how many that are.
const maxBuffered = 64 << 20

// fanout merges the branches of one read: sorted by k-way merge, else one branch after the other as they answer.
type fanout struct {
	r       *Router
	coll    string
	session bson.Raw
	comment bsoncore.Value
	// batchSize is what the client's last command asked for; 0 when it left that open.
	batchSize int64
	// plain says that getMores on it mean nothing but the next documents; scanning, that the client has sent one, so that batches are fetched
	// ahead (ahead.go). arrived then has an element when one has come.
	plain, scanning bool
	arrived         chan struct{}

	branches []*branch
	heap     *merge.Heap // nil when unsorted
	// vacant are the branches of which the heap has no document; nil before the first.
	vacant []int
	// run is of how many documents, without a break, the branch last was that the sorted ones came from.
	run, last int
	proj      merge.Projection
	skip      int64
	limit     int64 // what may still be returned; negative: no limit
	turn      int
	// seen and seenBytes count the documents that came from branches, for batchFor.
	seen, seenBytes int64
	// surplus did not fit into the last batch.
	surplus bson.Raw
}

func newFanout(r *Router, q *Request, coll string, s order.Sort, proj merge.Projection) *fanout {
	f := &fanout{r: r, coll: coll, session: append(bson.Raw(nil), q.Session...), limit: -1, proj: proj}
	if len(f.session) == 0 {
		f.session = nil
	}
	if q.Comment.Type != 0 {
		f.comment = bsoncore.Value{Type: q.Comment.Type, Data: append([]byte(nil), q.Comment.Data...)}
	}
	if !s.Empty() && s.Special() == order.ByFields {
		f.heap = merge.NewHeap(s, &f.proj)
	}
	return f
}

func (f *fanout) fill(ctx context.Context, q *Request, b *batch, limit int) (bool, error) {
	done, err := f.merge(ctx, q, b, limit)
	if done || err != nil {
		return done, err
	}
	if err := f.fetchAhead(q); err != nil {
		return true, err
	}
	return f.surplus == nil && f.drained(), nil
}

func (f *fanout) merge(ctx context.Context, q *Request, b *batch, limit int) (bool, error) {
	if limit == 0 && f.untouched() {
		give := f.wholeBatch
		if f.heap != nil {
			give = f.wholeRun
		}
		if taken, err := give(ctx, q, b); taken || err != nil {
			return err != nil || f.drained(), err
		}
	}
	for b.wants(limit) {
		if f.limit == 0 {
			return true, nil
		}
		if limit == 0 && b.n > 0 && f.untouched() {
			if comes, err := f.wholeComes(ctx, q); comes || err != nil {
				return err != nil, err
			}
		}
		doc, err := f.next(ctx, q)
		if err != nil {
			return true, err
		}
		if doc == nil {
			return true, nil
		}
		if !b.fits(doc) {
			f.surplus = append(bson.Raw(nil), doc...)
			return false, nil
		}
		b.add(doc)
		if f.limit > 0 {
			f.limit--
		}
	}
	return f.limit == 0 || f.surplus == nil && f.drained(), nil
}

// ready returns the next branch, in turn, that has documents; nil when none has. What was fetched ahead for a branch is looked at when it has its turn, and so
// is its error.
func (f *fanout) ready() (*branch, error) {
	for range f.branches {
		br := f.branches[f.turn%len(f.branches)]
		if len(br.docs) == 0 && br.ahead != nil && br.ahead.ended() {
			if err := f.land(br); err != nil {
				return nil, err
			}
		}
		if len(br.docs) > 0 {
			return br, nil
		}
		f.turn++
	}
	return nil, nil
}

// drained reports whether nothing is left, without asking a backend.
func (f *fanout) drained() bool {
	if f.heap != nil && f.heap.Len() > 0 {
		return false
	}
	for _, br := range f.branches {
		if !br.exhausted() {
			return false
		}
	}
	return true
}

// next returns the next document for the client, nil at the end. It is valid until the next call.
func (f *fanout) next(ctx context.Context, q *Request) (bson.Raw, error) {
	if doc := f.surplus; doc != nil {
		f.surplus = nil
		return doc, nil
	}
	for {
		doc, err := f.raw(ctx, q)
		if doc == nil || err != nil {
			return nil, err
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		return f.proj.Finish(doc), nil
	}
}

func (f *fanout) raw(ctx context.Context, q *Request) (bson.Raw, error) {
	doc, err := f.one(ctx, q)
	if doc != nil {
		f.seen++
		f.seenBytes += int64(len(doc))
	}
	return doc, err
}

// openBatch is how many documents each of n branches is asked for at first when the client does not say; 0 leaves it to the backend.
func openBatch(n int) int64 {
	if n <= 8 {
		return 0
	}
	return max(16, 8*firstBatch/int64(n))
}

// batchFor is how many documents a branch is asked for: what the client said, or as many as make a reply, and no more than maxBuffered allows.
func (f *fanout) batchFor() int64 {
	held := max(1, len(f.branches))
	if f.scanning && f.heap != nil {
		held *= 2 // the batch that is merged, and the one ahead
	}
	share, fit := int64(min(enough, maxBuffered/held)), int64(firstBatch)
	if f.seen > 0 {
		fit = max(1, share/max(1, f.seenBytes/f.seen))
	}
	if f.batchSize > 0 {
		fit = min(fit, f.batchSize)
	}
	return min(fit, maxBatch)
}

func (f *fanout) one(ctx context.Context, q *Request) (bson.Raw, error) {
	if f.heap != nil {
		return f.sorted(ctx, q)
	}
	for {
		br, err := f.ready()
		if err != nil {
			return nil, err
		}
		if br != nil {
			doc, ok := br.next()
			if len(br.docs) == 0 {
				f.turn++ // what is ahead of it waits until the others have had their turn
			}
			if ok {
				return doc, nil
			}
			continue
		}
		if more, err := f.refill(ctx, q); !more || err != nil {
			return nil, err
		}
	}
}

// sorted gives the least of the branches' first documents.
func (f *fanout) sorted(ctx context.Context, q *Request) (bson.Raw, error) {
	if len(f.vacant) > 0 || f.vacant == nil {
		if err := f.heads(ctx, q); err != nil {
			return nil, err
		}
	}
	head, ok := f.heap.Pop()
	if !ok {
		return nil, nil
	}
	f.pop(head.Source, 1)
	return head.Doc, nil
}

// pop notes that so many documents of a branch go to the client, and that the heap has none of it.
func (f *fanout) pop(source, n int) {
	if source != f.last {
		f.last, f.run = source, 0
	}
	f.run += n
	f.vacant = append(f.vacant, source)
}

// heads has the heap have the first document of every branch that is not exhausted.
func (f *fanout) heads(ctx context.Context, q *Request) error {
	if f.vacant == nil {
		f.vacant = make([]int, len(f.branches))
		for i := range f.vacant {
			f.vacant[i] = i
		}
	}
	for {
		missing := f.vacant[:0]
		for _, i := range f.vacant {
			br := f.branches[i]
			if doc, ok := br.next(); ok {
				f.heap.Push(i, doc)
			} else if !br.exhausted() {
				missing = append(missing, i)
			}
		}
		if f.vacant = missing; len(missing) == 0 {
			return nil
		}
		if _, err := f.refill(ctx, q); err != nil {
			return err
		}
	}
}

// refill gets more for the branches without documents that are not exhausted: it asks all at once and, of a cursor that fetches ahead, waits for the first. It reports
// whether there was any. A branch whose head lies in the heap is left alone: its bytes must stay.
func (f *fanout) refill(ctx context.Context, q *Request) (bool, error) {
	var who []*branch
	var targets []target
	var msgs [][]byte
	coming := false
	for i, br := range f.branches {
		switch {
		case !f.bare(i):
		case br.ahead != nil || br.id != 0 && !br.unsent && f.startFetch(br, q):
			coming = true
		case br.id != 0:
			who = append(who, br)
			targets = append(targets, br.more(q))
			msgs = append(msgs, f.getMore(br, q))
		}
	}
	if len(who) == 0 {
		if !coming {
			return false, nil
		}
		return true, f.await(ctx)
	}
	replies, errs := f.r.scatter(ctx, targets, msgs)
	return true, settle(who, replies, errs, "nextBatch")
}

func (f *fanout) getMore(br *branch, q *Request) []byte {
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendInt64Element(d, "getMore", br.id)
	d = bsoncore.AppendStringElement(d, "collection", br.part.Physical)
	if n := f.batchFor(); n > 0 {
		d = bsoncore.AppendInt64Element(d, "batchSize", n)
	}
	if f.comment.Type != 0 {
		d = bsoncore.AppendValueElement(d, "comment", f.comment)
	}
	d = q.appendSession(d, f.session)
	d = bsoncore.AppendStringElement(d, "$db", br.part.DB)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return wire.AppendMsg(nil, 0, 0, 0, d)
}

// close kills the backends' cursors; it does not wait longer than killTimeout.
func (f *fanout) close() {
	for _, br := range f.branches {
		if ft := br.ahead; ft != nil {
			br.ahead = nil
			f.r.endFetch(br, ft, f.session)
		} else {
			f.r.killBackendCursor(br, f.session)
		}
		br.reply.Release()
		br.docs = nil
	}
}

// newFanoutPlain makes a fanout over one home.
func newFanoutPlain(r *Router, q *Request, p *partition.Part) *fanout {
	f := newFanout(r, q, "", order.Sort{}, merge.Projection{})
	f.branches = []*branch{{part: p}}
	return f
}
