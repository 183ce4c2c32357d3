package router

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

const (
	// restChunk is how many bytes of merged documents are given to a backend at once where that is possible.
	restChunk = 2 << 20
	// restMax is how many there may be where the stages need them all.
	restMax = 12 << 20
)

// rest runs what follows a merge: the merged documents are handed to one backend, which runs the remaining stages over
// them ($documents). Its answer is exact, since it is a server's own.
type rest struct {
	inner *fanout
	plan  merge.Plan
	// home is a home of the collection: its backend runs the stages.
	home partition.Part
	let  bsoncore.Value
	coll bsoncore.Value

	current *branch
	ended   bool
	surplus bson.Raw
}

func newRest(q *Request, f *fanout, plan merge.Plan, home *partition.Part) *rest {
	stages := make([]bson.Raw, len(plan.Rest))
	for i, stage := range plan.Rest {
		stages[i] = bytes.Clone(stage) // the request's bytes are gone when a getMore runs them
	}
	plan.Rest = stages
	s := &rest{inner: f, plan: plan, home: *home, let: keep(q, "let"), coll: keep(q, "collation")}
	s.home.Physical = "$cmd.aggregate"
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
		doc, err := s.next(ctx, q)
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

func (s *rest) next(ctx context.Context, q *Request) (bson.Raw, error) {
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

// chunk runs the stages over the next merged documents: all of them, unless the stages take one at a time.
func (s *rest) chunk(ctx context.Context, q *Request) error {
	docs := &batch{}
	for {
		doc, err := s.inner.nextLimited(ctx, q)
		if err != nil {
			return err
		}
		if doc == nil {
			s.ended = true
			break
		}
		docs.add(doc)
		if s.plan.Streams && len(docs.docs) >= restChunk {
			break
		}
		if !s.plan.Streams && len(docs.docs) > restMax {
			return wire.Errorf(wire.QueryExceededMemoryLimitNoDiskUseAllowed,
				"the stages after the merge need more than %d MB of documents at once; put a $match, $project or $limit before them, or a $match on the shard key", restMax>>20)
		}
	}
	if docs.n == 0 && s.plan.Streams {
		return nil
	}
	return s.run(ctx, q, docs)
}

func (s *rest) run(ctx context.Context, q *Request, docs *batch) error {
	literal, d := bsoncore.AppendDocumentStart(nil)
	at, d := bsoncore.AppendDocumentElementStart(d, "$documents")
	arr, d := bsoncore.AppendArrayElementStart(d, "$literal")
	d = append(d, docs.docs...)
	d, _ = bsoncore.AppendArrayEnd(d, arr)
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	d, _ = bsoncore.AppendDocumentEnd(d, literal)
	start, cmd := bsoncore.AppendDocumentStart(nil)
	cmd = bsoncore.AppendInt32Element(cmd, "aggregate", 1)
	cmd = appendPipeline(cmd, append([]bson.Raw{bson.Raw(d)}, s.plan.Rest...))
	cmd = appendCursorArg(cmd, 0)
	for name, v := range map[string]bsoncore.Value{"let": s.let, "collation": s.coll} {
		if v.Type != 0 {
			cmd = bsoncore.AppendValueElement(cmd, name, v)
		}
	}
	if s.inner.session != nil {
		cmd = bsoncore.AppendDocumentElement(cmd, "lsid", bsoncore.Document(s.inner.session))
	}
	cmd = q.appendTail(cmd, s.home.DB)
	cmd, _ = bsoncore.AppendDocumentEnd(cmd, start)
	reply, err := s.inner.r.do(ctx, q.target(&s.home), wire.AppendMsg(nil, 0, 0, 0, cmd))
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
	reply, err := s.inner.r.do(ctx, target{Backend: s.home.Backend, Host: s.current.host}, s.inner.getMore(s.current, q))
	return settleOne(s.current, reply, err)
}

func (s *rest) close() {
	s.inner.close()
	if s.current != nil {
		s.inner.r.killBackendCursor(s.current, s.inner.session)
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
