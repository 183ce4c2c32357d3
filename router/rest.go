package router

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

const (
	// restChunk is how many bytes of merged documents are given to a backend at once where that is possible.
	restChunk = 2 << 20
	// restMax is how many there may be where the stages need them all.
	restMax = 12 << 20
)

// upstream is where a rest's documents come from, one after the other; nil ends them. A document is valid until the next call.
type upstream interface {
	nextLimited(ctx context.Context, q *Request) (bson.Raw, error)
	close()
}

// rest runs what follows a merge: the merged documents are handed to one backend, which runs the remaining stages over
// them ($documents). Its answer is exact, since it is a server's own.
type rest struct {
	f      *fanout
	inner  upstream
	stages []bson.Raw
	// streams says that the stages can be run over the documents in parts; with a key only between documents whose keys differ.
	streams bool
	key     order.Sort
	// held is the first document of the next part.
	held bson.Raw
	// home is a home of the collection: its backend runs the stages.
	home partition.Part
	let  bsoncore.Value
	coll bsoncore.Value

	begun   bool
	current *branch
	ended   bool
	surplus bson.Raw
}

func newRest(q *Request, f *fanout, plan merge.Plan, home *partition.Part) *rest {
	s := &rest{f: f, inner: f, home: *home, let: keep(q, "let"), coll: keep(q, "collation")}
	s.home.Physical = "$cmd.aggregate"
	if len(plan.Combine) > 0 {
		first := *s
		first.stages, first.streams, first.key = plan.Combine, true, plan.Sort
		if len(plan.Rest) == 0 {
			return &first
		}
		s.inner = &first
	}
	s.streams = plan.Streams
	s.stages = make([]bson.Raw, len(plan.Rest))
	for i, stage := range plan.Rest {
		s.stages[i] = bytes.Clone(stage) // the request's bytes are gone when a getMore runs them
	}
	return s
}

// keep copies a field of a request that is used after it.
func keep(q *Request, field string) bsoncore.Value {
	v, err := bsoncore.Document(q.Msg.Body).LookupErr(field)
	if err != nil {
		return bsoncore.Value{}
	}
	return bsoncore.Value{Type: v.Type, Data: append([]byte(nil), v.Data...)}
}

func (s *rest) fill(ctx context.Context, q *Request, b *batch, limit int) (bool, error) {
	for limit == 0 || b.n < limit {
		doc, err := s.nextLimited(ctx, q)
		if err != nil {
			return true, err
		}
		if doc == nil {
			return true, nil
		}
		if !b.fits(doc) {
			s.surplus = append(bson.Raw(nil), doc...)
			return false, nil
		}
		b.add(doc)
	}
	return s.surplus == nil && s.ended && s.current != nil && s.current.exhausted(), nil
}

func (s *rest) nextLimited(ctx context.Context, q *Request) (bson.Raw, error) {
	if doc := s.surplus; doc != nil {
		s.surplus = nil
		return doc, nil
	}
	for {
		if s.current != nil {
			if doc, ok := s.current.next(); ok {
				return doc, nil
			}
			if s.current.id != 0 {
				if err := s.more(ctx, q); err != nil {
					return nil, err
				}
				continue
			}
		}
		if s.ended {
			return nil, nil
		}
		if err := s.chunk(ctx, q); err != nil {
			return nil, err
		}
	}
}

// chunk runs the stages over the next documents: all of them, unless the stages can take them in parts.
func (s *rest) chunk(ctx context.Context, q *Request) error {
	if first, ok := s.inner.(*rest); ok && !s.begun {
		s.begun = true
		docs, err := first.gather(ctx, q)
		if err != nil {
			return err
		}
		if first.ended { // it is all in one part: one backend does all at once
			s.ended = true
			return s.run(ctx, q, docs, append(first.stages[:len(first.stages):len(first.stages)], s.stages...))
		}
		if err := first.run(ctx, q, docs, first.stages); err != nil {
			return err
		}
	}
	docs, err := s.gather(ctx, q)
	if err != nil || docs.n == 0 && s.streams {
		return err
	}
	return s.run(ctx, q, docs, s.stages)
}

// gather collects the documents for one run.
func (s *rest) gather(ctx context.Context, q *Request) (*batch, error) {
	docs := &batch{}
	last := 0 // where the last document's element begins
	if s.held != nil {
		docs.add(s.held)
		s.held = nil
	}
	for {
		doc, err := s.inner.nextLimited(ctx, q)
		if err != nil {
			return docs, err
		}
		if doc == nil {
			s.ended = true
			return docs, nil
		}
		fits := s.fits(docs, doc)
		if s.streams && docs.n > 0 && (len(docs.docs) >= restChunk || !fits) && s.divides(docs.docs[last:], doc) {
			s.held = bytes.Clone(doc)
			return docs, nil
		}
		if !fits {
			return docs, wire.Errorf(wire.QueryExceededMemoryLimitNoDiskUseAllowed,
				"the stages after the merge need more than %d MB of documents at once; put a $match, $project or $limit before them, or a $match on the shard key", restMax>>20)
		}
		last = len(docs.docs)
		docs.add(doc)
	}
}

// literalExtra is what literalDocuments adds to a document's element: the document around it, the name $literal, and the element's own head.
const literalExtra = 4 + len("_$literal_") + 1

// fits reports whether one more document keeps a run within restMax, and its command within what a server takes. One document always fits.
func (s *rest) fits(docs *batch, doc bson.Raw) bool {
	if docs.n == 0 {
		return true
	}
	size := len(docs.docs) + len("_1234567_") + len(doc)
	command := size + (docs.n+1)*literalExtra + len(s.let.Data) + len(s.coll.Data) + restCommand
	for _, stage := range s.stages {
		command += len(stage) + len("_12_")
	}
	if first, ok := s.inner.(*rest); ok { // which may run with these stages at once
		for _, stage := range first.stages {
			command += len(stage) + len("_12_")
		}
	}
	return size <= restMax && command <= wire.MaxDocumentSize
}

// restCommand is room for the other fields of the command that runs the stages.
const restCommand = 4096

// divides reports whether a run may end between the last document, given as an element, and the next one.
func (s *rest) divides(last []byte, next bson.Raw) bool {
	if s.key.Empty() {
		return true
	}
	e, _, ok := bsoncore.ReadElement(last)
	if !ok {
		return false
	}
	return s.key.CompareKeys(s.key.AppendKey(nil, bson.Raw(e.Value().Data)), s.key.AppendKey(nil, next)) != 0
}

// run gives documents to the backend and has it run stages over them.
func (s *rest) run(ctx context.Context, q *Request, docs *batch, stages []bson.Raw) error {
	d := literalDocuments(docs)
	start, cmd := bsoncore.AppendDocumentStart(nil)
	cmd = bsoncore.AppendInt32Element(cmd, "aggregate", 1)
	cmd = appendPipeline(cmd, append([]bson.Raw{d}, stages...))
	cmd = appendCursorArg(cmd, 0)
	for name, v := range map[string]bsoncore.Value{"let": s.let, "collation": s.coll} {
		if v.Type != 0 {
			cmd = bsoncore.AppendValueElement(cmd, name, v)
		}
	}
	cmd = q.appendSession(cmd, s.f.session)
	cmd = q.appendTail(cmd, s.home.DB)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, start)
	to := q.target(&s.home)
	to.Part = nil // the documents are in the message
	reply, err := s.f.r.do(ctx, to, wire.AppendMsg(nil, 0, 0, 0, cmd))
	if err != nil {
		return err
	}
	if err := commandError(reply.Body); err != nil {
		reply.Release()
		return err
	}
	if s.current == nil {
		s.current = &branch{part: &s.home}
	}
	return s.current.take(reply, "firstBatch")
}

func (s *rest) more(ctx context.Context, q *Request) error {
	reply, err := s.f.r.do(ctx, target{Backend: s.home.Backend, Host: s.current.host}, s.f.getMore(s.current, q))
	return settleOne(s.current, reply, err)
}

func (s *rest) close() {
	s.inner.close()
	if s.current != nil {
		s.f.r.killBackendCursor(s.current, s.f.session)
		s.current.reply.Release()
	}
}

// nextLimited is next with the limit applied.
func (f *fanout) nextLimited(ctx context.Context, q *Request) (bson.Raw, error) {
	if f.limit == 0 {
		return nil, nil
	}
	doc, err := f.next(ctx, q)
	if doc != nil && f.limit > 0 {
		f.limit--
	}
	return doc, err
}

// literalDocuments is the stage {$documents: [{$literal: doc}, …]}: one literal each, which every server takes, where some refuse one literal array.
func literalDocuments(docs *batch) bson.Raw {
	start, d := bsoncore.AppendDocumentStart(make([]byte, 0, len(docs.docs)+24*docs.n+32))
	arr, d := bsoncore.AppendArrayElementStart(d, "$documents")
	for i, rem := 0, docs.docs; len(rem) > 0; i++ {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break // batch has built it: cannot happen
		}
		rem = rest
		at, e := bsoncore.AppendDocumentElementStart(d, arrayIndex(i))
		e = bsoncore.AppendValueElement(e, "$literal", elem.Value())
		d, _ = bsoncore.AppendDocumentEnd(e, at)
	}
	d, _ = bsoncore.AppendArrayEnd(d, arr)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return d
}
