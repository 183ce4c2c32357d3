package router

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
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

// branch is one partition's part of a read: a backend cursor and the documents of its last batch.
type branch struct {
	part *partition.Part
	host string
	id   int64 // the backend's cursor; 0 when it is exhausted
	docs []byte
	// batch is what docs was when it came; taken, how many documents of it were taken since.
	batch []byte
	taken int
	// reply owns docs.
	reply backend.Reply
	// ahead is the next batch, under way or there; nil when it has not been asked for.
	ahead *fetch
	// unsent says that the last attempt to ask for it ahead did not leave, so that whoever needs it shall ask, and be told why not.
	unsent bool
}

// take sets what a reply with a cursor brought. field is firstBatch or nextBatch.
func (b *branch) take(reply backend.Reply, field string) error {
	b.reply.Release()
	b.reply, b.docs, b.host = reply, nil, reply.Host
	cur, ok := bsoncore.Document(reply.Body).Lookup("cursor").DocumentOK()
	if !ok {
		return wire.Errorf(wire.InternalError, "backend '%s' answered without a cursor", b.part.Backend)
	}
	b.id, _ = cur.Lookup("id").AsInt64OK()
	arr, ok := cur.Lookup(field).ArrayOK()
	if !ok || len(arr) < 5 {
		return wire.Errorf(wire.InternalError, "backend '%s' answered without a %s", b.part.Backend, field)
	}
	b.docs, b.taken, b.unsent = arr[4:len(arr)-1], 0, false
	b.batch = b.docs
	return nil
}

// next cuts the first document off the batch.
func (b *branch) next() (bson.Raw, bool) {
	if len(b.docs) == 0 {
		return nil, false
	}
	b.taken++
	elem, rest, ok := bsoncore.ReadElement(b.docs)
	if !ok {
		b.docs = nil
		return nil, false
	}
	b.docs = rest
	doc, ok := elem.Value().DocumentOK()
	return bson.Raw(doc), ok
}

// sampled is of how many documents sample looks at the sizes.
const sampled = 32

// sample tells from the first documents how many there are, about; false when they are none.
func (b *branch) sample() (n int64, ok bool) {
	rem := b.docs
	for n = 0; n < sampled && len(rem) > 0; n++ {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || bsoncore.Type(elem[0]) != bsoncore.TypeEmbeddedDocument {
			return 0, false
		}
		rem = rest
	}
	seen := int64(len(b.docs) - len(rem))
	return n * int64(len(b.docs)) / max(1, seen), n > 0
}

func (b *branch) exhausted() bool { return b.id == 0 && len(b.docs) == 0 && b.ahead == nil }

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

// untouched reports whether the client gets the branches' documents as they are, all of them.
func (f *fanout) untouched() bool {
	return f.skip == 0 && f.limit < 0 && f.surplus == nil && f.proj.Nothing()
}

// wholeComes reports whether the next documents are a whole batch, or must be asked for: what a batch has so far is then sent by itself,
// so that the following ones go as they come.
func (f *fanout) wholeComes(ctx context.Context, q *Request) (bool, error) {
	if f.heap != nil {
		if f.run < longRun || f.branches[f.last].taken > 0 && len(f.branches[f.last].docs) > 0 {
			return false, nil
		}
		if err := f.heads(ctx, q); err != nil {
			return false, err
		}
		return f.nextRun() != nil, nil
	}
	for range f.branches {
		if br := f.branches[f.turn%len(f.branches)]; len(br.docs) > 0 {
			return br.worth(), nil
		}
		f.turn++
	}
	return !f.drained(), nil
}

// worth reports whether a branch has a batch of which nothing has been taken and that is large enough to be a reply.
func (b *branch) worth() bool { return b.taken == 0 && len(b.docs) >= enough/4 }

// wholeBatch gives the client the batch of one branch as it came, when it is large enough to be worth a reply.
func (f *fanout) wholeBatch(ctx context.Context, q *Request, b *batch) (bool, error) {
	if f.drained() {
		return false, nil
	}
	for {
		br, err := f.ready()
		if err != nil {
			return false, err
		}
		if br == nil {
			if more, err := f.refill(ctx, q); !more || err != nil {
				return false, err
			}
			continue
		}
		if !br.worth() {
			return false, nil
		}
		n, ok := br.sample()
		if !ok {
			return false, nil
		}
		f.seen, f.seenBytes = f.seen+n, f.seenBytes+int64(len(br.docs))
		b.takeWhole(br, int(n))
		f.turn++
		return true, nil
	}
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

// longRun is after how many documents of one branch, without a break, it is looked whether its next batch comes before all others' documents.
const longRun = 64

// nextRun returns the branch whose whole batch comes next in order, of which only the head was taken, into the heap; nil when it is not so, or not known.
func (f *fanout) nextRun() *branch {
	if f.run < longRun {
		return nil
	}
	i, ok := f.heap.Peek()
	if !ok || i != f.last {
		return nil
	}
	br := f.branches[i]
	if br.taken != 1 || len(br.batch) < enough/4 {
		return nil
	}
	last := br.lastOf()
	if last == nil || !f.heap.Leads(last) {
		f.run = 0 // not again at once: looking for the last document costs something
		return nil
	}
	return br
}

// wholeRun gives the client the batch of one branch as it came, when all of it comes next in order.
func (f *fanout) wholeRun(ctx context.Context, q *Request, b *batch) (bool, error) {
	if err := f.heads(ctx, q); err != nil {
		return false, err
	}
	br := f.nextRun()
	if br == nil {
		return false, nil
	}
	head, _ := f.heap.Pop()
	br.docs = br.batch
	n, _ := br.sample()
	f.seen, f.seenBytes = f.seen+n, f.seenBytes+int64(len(br.docs))
	b.takeWhole(br, int(n))
	f.pop(head.Source, int(n))
	return true, nil
}

// lastOf returns the last document of a batch, nil when it is not made of documents.
func (b *branch) lastOf() (doc bson.Raw) {
	for rem := b.batch; len(rem) > 0; {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || bsoncore.Type(elem[0]) != bsoncore.TypeEmbeddedDocument {
			return nil
		}
		if rem = rest; len(rem) == 0 {
			doc = elem.Value().Data
		}
	}
	return doc
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
			targets = append(targets, target{Backend: br.part.Backend, Host: br.host})
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

// settle hands replies to branches; the first error wins and replies that nobody takes are released.
func settle(who []*branch, replies []backend.Reply, errs []error, field string) error {
	var first error
	for i, br := range who {
		err := errs[i]
		if err == nil {
			if err = commandError(replies[i].Body); err != nil {
				replies[i].Release()
				br.id, br.docs = 0, nil
			} else {
				err = br.take(replies[i], field)
			}
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
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

// settleOne hands one reply to a branch; field is found by what the reply has.
func settleOne(br *branch, reply backend.Reply, err error) error {
	if err != nil {
		br.id, br.docs = 0, nil
		return err
	}
	field := "firstBatch"
	if _, e := bsoncore.Document(reply.Body).LookupErr("cursor", "nextBatch"); e == nil {
		field = "nextBatch"
	}
	return settle([]*branch{br}, []backend.Reply{reply}, []error{nil}, field)
}
