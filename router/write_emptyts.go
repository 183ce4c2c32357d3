package router

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// A server replaces a Timestamp(0, 0) at the top of a new document by its time. Where that is the shard key, the proxy replaces it before it hashes the value, so that
// the document is stored in the partition where its key says it is.

// bypassEmptyTs is the field of a write command that asks a server to store such timestamps as they are.
const bypassEmptyTs = "bypassEmptyTsReplacement"

// timestamps gives out times, each once. Its zero value is ready for use.
type timestamps struct {
	mu   sync.Mutex
	last bson.Timestamp
}

// next returns the current time. Within a second the increments start at a random number, so that two proxies hardly give out the same time.
func (t *timestamps) next(now time.Time) bson.Timestamp {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sec := uint32(now.Unix()); sec > t.last.T {
		t.last = bson.Timestamp{T: sec, I: 1 + rand.Uint32N(1<<30)}
	} else {
		t.last.I++
	}
	return t.last
}

// timeFor returns the time for the shard key of a statement's document. A repetition of a retryable write at this process gets the same time as the first try, so that it
// goes to the same home; a repetition at another process is found by the homes' records.
func (r *Router) timeFor(q *Request, stmt int32) (bson.Timestamp, error) {
	if !q.retryable() {
		return r.times.next(time.Now()), nil
	}
	rec, err := r.retries.record(q.clientSession(), q.TxnNumber)
	if err != nil {
		return bson.Timestamp{}, err
	}
	return r.retries.time(rec, q.TxnNumber, stmt, func() bson.Timestamp { return r.times.next(time.Now()) }), nil
}

// decide plans a statement. The document of an insert gets its time first, if its key is an empty timestamp.
func (b *writeBatch) decide(s *statement, c *partition.Collection) decision {
	if s.op != nil {
		if err := s.op.setTime(b.r, b.q, c.Key, s.id, b.keepsEmptyTs); err != nil {
			return decision{err: wire.AsError(err)}
		}
		return s.op.decide(c)
	}
	v, err := c.Key.Value(s.raw)
	if err == nil && c.Key.EmptyTimestamp(v) && !b.keepsEmptyTs {
		if s.raw, err = b.r.withTime(b.q, c.Key, s.raw, s.id); err == nil {
			s.timed = true
			v, err = c.Key.Value(s.raw)
		}
	}
	if err != nil {
		return decision{err: wire.AsError(err)}
	}
	pos, err := shardkey.HashValue(v)
	if err != nil {
		return decision{err: wire.AsError(err)}
	}
	return decision{parts: c.Only(pos)}
}

// withTime is a document with the current time as its shard key value.
func (r *Router) withTime(q *Request, key *shardkey.Pattern, doc bson.Raw, stmt int32) (bson.Raw, error) {
	now, err := r.timeFor(q, stmt)
	if err != nil {
		return nil, err
	}
	return key.WithTimestamp(doc, now)
}

// setTime gives a replacement its time, if its key is an empty timestamp.
func (op *operation) setTime(r *Router, q *Request, key *shardkey.Pattern, stmt int32, keepsEmptyTs bool) error {
	if op.effect.Kind != shardkey.Replaces || op.effect.Err != nil || !key.EmptyTimestamp(op.effect.Value) || keepsEmptyTs {
		return nil
	}
	doc, err := r.withTime(q, key, op.update.Data, stmt)
	if err != nil {
		return err
	}
	op.update, op.timed = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc}, true
	op.examine(key)
	return nil
}

// divertTimed takes from a plan's groups the repeated inserts whose key is a time of our making and that a home has on record: the first try, at another process,
// was given another time, so that this one's partition does not know it. The home answers from its record.
func (b *writeBatch) divertTimed(ctx context.Context, c *partition.Collection, groups []group) ([]group, error) {
	isTimed := func(s *statement) bool { return s.timed }
	if !b.q.retryable() || !slices.ContainsFunc(groups, func(g group) bool { return slices.ContainsFunc(g.stmts, isTimed) }) {
		return groups, nil
	}
	var out []group
	at := map[partition.Home]int{}
	add := func(part *partition.Part, s *statement) {
		i, known := at[part.Home]
		if !known {
			i = len(out)
			at[part.Home] = i
			out = append(out, group{part: part})
		}
		out[i].stmts = append(out[i].stmts, s)
	}
	for _, g := range groups {
		for _, s := range g.stmts {
			part := g.part
			if s.timed {
				home, err := b.r.anyHome(ctx, b.q, c, s.id)
				if err != nil {
					return nil, err
				}
				if home != nil {
					part = home
				}
			}
			add(part, s)
		}
	}
	return out, nil
}
