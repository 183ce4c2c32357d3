package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// getMore answers the command of that name from this proxy's cursors.
func (r *Router) getMore(ctx context.Context, q *Request) (Reply, error) {
	id, ok := q.First.Int64OK()
	if !ok {
		return Reply{}, typeMismatch("getMore.getMore", q.First, "long")
	}
	coll, limit, err := parseGetMore(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	ns := q.DB + "." + coll
	c, err := r.cursors.take(q, id, ns)
	if err != nil {
		return Reply{}, err
	}
	if s, ok := c.src.(*single); ok {
		body, done, err := s.getMore(ctx, q, limit, c.id, ns)
		r.cursors.release(c, done || err != nil)
		return Reply{Body: body}, err
	}
	if q.MaxTime > 0 {
		r.cursors.release(c, false)
		return Reply{}, wire.Errorf(wire.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
	}
	b := &batch{}
	if limit == 0 {
		b = largeBatch()
	}
	if f, ok := c.src.(*fanout); ok {
		f.scan(q, limit)
	}
	done, err := c.src.fill(ctx, q, b, int(min(limit, maxBatch)))
	r.cursors.release(c, done || err != nil)
	if err != nil {
		b.release()
		return Reply{}, err
	}
	if done {
		id = 0
	}
	return nextBatchReply(b, id, ns), nil
}

// parseGetMore reads the fields of a getMore; batchSize is 0 where there is none (mongos-behaviour §5.3).
func parseGetMore(body bson.Raw) (coll string, batchSize int64, err error) {
	found := false
	for rem, first := []byte(body[4:]), true; len(rem) > 1; first = false {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return "", 0, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
		}
		rem = rest
		if first {
			continue
		}
		switch key := e.KeyBytes(); string(key) {
		case "collection":
			if coll, found = e.Value().StringValueOK(); !found {
				return "", 0, typeMismatch("getMore.collection", e.Value(), "string")
			}
		case "batchSize":
			if batchSize, err = wholeNumber("batchSize", e.Value(), 51024); err != nil {
				return "", 0, err
			}
		case "term", "lastKnownCommittedOpTime", "includeQueryStatsMetrics", "txnNumber", "autocommit", "startTransaction", "stmtId":
		default:
			if !genericField(string(key)) {
				return "", 0, wire.Errorf(40415, "BSON field 'getMore.%s' is an unknown field.", key)
			}
		}
	}
	if !found {
		return "", 0, wire.Errorf(40414, "BSON field 'getMore.collection' is missing but a required field")
	}
	return coll, batchSize, nil
}

// single is a cursor on one backend, whose replies are relayed.
type single struct {
	r       *Router
	branch  branch
	session bson.Raw
}

func (s *single) fill(context.Context, *Request, *batch, int) (bool, error) {
	return true, wire.Errorf(wire.InternalError, "BUG: a relayed cursor does not fill batches")
}

func (s *single) close() { s.r.killBackendCursor(&s.branch, s.session) }

// getMore relays the next batch.
func (s *single) getMore(ctx context.Context, q *Request, limit, id int64, ns string) (body bson.Raw, done bool, err error) {
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendInt64Element(d, "getMore", s.branch.id)
	d = bsoncore.AppendStringElement(d, "collection", s.branch.part.Physical)
	if limit > 0 {
		d = bsoncore.AppendInt64Element(d, "batchSize", min(limit, maxBatch))
	}
	if q.Comment.Type != 0 {
		d = bsoncore.AppendValueElement(d, "comment", q.Comment)
	}
	d = q.appendSession(d, s.session)
	d = q.appendTail(d, s.branch.part.DB)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	got, err := s.r.do(ctx, s.branch.more(q), wire.AppendMsg(nil, 0, 0, 0, d))
	if err != nil {
		return nil, true, err
	}
	defer got.Release()
	if err := commandError(got.Body); err != nil {
		s.branch.id = 0
		return nil, true, err
	}
	left, _ := bsoncore.Document(got.Body).Lookup("cursor", "id").AsInt64OK()
	s.branch.id = left
	if left == 0 {
		id = 0
	}
	return relayCursor(got.Body, id, ns), left == 0, nil
}
