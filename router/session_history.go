package router

import (
	"context"
	"crypto/sha256"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// history is what a home has on record of a session.
type history struct {
	// txn is the newest transaction number; −1 for none.
	txn int64
	// last is where the oplog's chain of its statements begins.
	last bson.Timestamp
	// done are the statements of txn that count; nil when they have not been asked for.
	done map[int32]bool
}

func tooOld(txn, newest int64) error {
	return wire.Errorf(wire.TransactionTooOld,
		"Retryable write with txnNumber %d is prohibited on the session because a newer one with txnNumber %d has already started", txn, newest)
}

// unasked is the error when a home's record cannot be read: a guess would apply a write twice, or not at all.
func unasked(backendID string, err error) error {
	e := wire.AsError(err)
	if e.Code == wire.IncompleteTransactionHistory {
		return e
	}
	return &wire.Error{Code: wire.HostUnreachable, Labels: []string{retryableWrite},
		Message: "cannot ask backend " + backendID + " whether the write was executed already :: caused by :: " + e.Message}
}

// anyHome looks whether a write without the key was executed by any home, present or old (reshape protocol, Retries): one query a backend. It returns the home as
// a part, nil when none has the statement on record.
func (r *Router) anyHome(ctx context.Context, q *Request, c *partition.Collection, stmt int32) (*partition.Part, error) {
	if p, err := r.oldHome(ctx, q, c, func(shardkey.Range) bool { return true }, stmt); p != nil || err != nil {
		return p, err
	}
	byBackend := map[string]map[sessionKey]*partition.Part{}
	for _, p := range c.Parts {
		if byBackend[p.Backend] == nil {
			byBackend[p.Backend] = map[sessionKey]*partition.Part{}
		}
		byBackend[p.Backend][derive(q.clientSession(), p.Home)] = p
	}
	for id, parts := range byBackend {
		if alone, err := r.standalone(ctx, id); err != nil {
			return nil, err
		} else if alone {
			continue // its ledger is this process's own, and would have been found by the choice
		}
		p, err := r.presentHome(ctx, q, r.cfg.Backends.Get(id), parts, stmt)
		if err != nil {
			return nil, unasked(id, err)
		}
		if p != nil {
			return p, nil
		}
	}
	return nil, nil
}

func (r *Router) presentHome(ctx context.Context, q *Request, b *backend.Backend, parts map[sessionKey]*partition.Part, stmt int32) (*partition.Part, error) {
	ids := make([]sessionKey, 0, len(parts))
	for id := range parts {
		ids = append(ids, id)
	}
	found, err := askSessions(ctx, b, ids, bson.Timestamp{})
	if err != nil {
		return nil, err
	}
	for id, h := range found {
		if h.txn != q.TxnNumber {
			continue // an older number is the home's to refuse, if it is this one's turn
		}
		done, err := executed(ctx, b, h, bson.Timestamp{})
		if err != nil {
			return nil, err
		}
		if done[stmt] {
			return parts[id], nil
		}
	}
	return nil, nil
}

// askSessions reads what a backend has on record of sessions: their newest transaction numbers. after, if not zero, is a time that the answer must include, and what it tells is
// there to stay. Otherwise it tells what the primary has, so that a write that others can already see is told of: who goes by that sends his to that home, which knows the rest.
func askSessions(ctx context.Context, b *backend.Backend, ids []sessionKey, after bson.Timestamp) (map[sessionKey]history, error) {
	uid := sessionUID(b)
	in := make(bson.A, 0, len(ids))
	for _, id := range ids {
		in = append(in, bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}}, {Key: "uid", Value: uid}})
	}
	concern := bson.D{{Key: "level", Value: "local"}}
	if !after.IsZero() {
		concern = bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: after}}
	}
	body, err := b.Run(ctx, "config", bson.D{
		{Key: "find", Value: "transactions"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
		{Key: "batchSize", Value: int32(len(ids) + 1)}, {Key: "singleBatch", Value: true}, {Key: "readConcern", Value: concern},
	})
	if err != nil {
		return nil, err
	}
	var reply struct {
		Cursor struct {
			FirstBatch []struct {
				ID struct {
					ID bson.Binary `bson:"id"`
				} `bson:"_id"`
				TxnNum int64 `bson:"txnNum"`
				Last   struct {
					TS bson.Timestamp `bson:"ts"`
				} `bson:"lastWriteOpTime"`
			} `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	if err := bson.Unmarshal(body, &reply); err != nil {
		return nil, err
	}
	out := map[sessionKey]history{}
	for _, d := range reply.Cursor.FirstBatch {
		var id sessionKey
		copy(id[:], d.ID.ID.Data)
		out[id] = history{txn: d.TxnNum, last: d.Last.TS}
	}
	return out, nil
}

// sessionUID is the uid under which a backend keeps this proxy's sessions: the SHA-256 of "user@db", or of nothing without authentication.
func sessionUID(b *backend.Backend) bson.Binary {
	who := ""
	if cs, err := connstring.Parse(b.URI()); err == nil && cs.Username != "" {
		who = cs.Username + "@" + cs.AuthSource
	}
	sum := sha256.Sum256([]byte(who))
	return bson.Binary{Data: sum[:]}
}

// oplogEntry is what the chain of a session's statements is made of.
type oplogEntry struct {
	StmtID bson.RawValue `bson:"stmtId"`
	Prev   struct {
		TS bson.Timestamp `bson:"ts"`
	} `bson:"prevOpTime"`
	O struct {
		ApplyOps []struct {
			StmtID bson.RawValue `bson:"stmtId"`
		} `bson:"applyOps"`
	} `bson:"o"`
}

// executed follows the oplog's chain of a session's newest transaction number and returns its statements, those not after upTo (all, when it is zero).
// A chain that the oplog has lost is 217 IncompleteTransactionHistory.
func executed(ctx context.Context, b *backend.Backend, h history, upTo bson.Timestamp) (map[int32]bool, error) {
	done := map[int32]bool{}
	for at := h.last; !at.IsZero(); {
		body, err := b.Run(ctx, "local", bson.D{
			{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: bson.D{{Key: "ts", Value: at}}}, {Key: "limit", Value: int32(1)}, {Key: "singleBatch", Value: true},
		})
		if err != nil {
			return nil, err
		}
		var reply struct {
			Cursor struct {
				FirstBatch []oplogEntry `bson:"firstBatch"`
			} `bson:"cursor"`
		}
		if err := bson.Unmarshal(body, &reply); err != nil {
			return nil, err
		}
		if len(reply.Cursor.FirstBatch) == 0 {
			return nil, wire.Errorf(wire.IncompleteTransactionHistory, "Incomplete history detected for a retryable write: the oplog of backend %s has lost it", b.ID())
		}
		entry := &reply.Cursor.FirstBatch[0]
		if upTo.IsZero() || !at.After(upTo) {
			entry.note(done)
		}
		at = entry.Prev.TS
	}
	return done, nil
}

// note adds the entry's statements: one, several, or those of the writes that were logged together.
func (e *oplogEntry) note(done map[int32]bool) {
	add := func(v bson.RawValue) {
		if id, ok := v.Int32OK(); ok {
			done[id] = true
		} else if arr, ok := v.ArrayOK(); ok {
			values, _ := arr.Values()
			for _, x := range values {
				if id, ok := x.Int32OK(); ok {
					done[id] = true
				}
			}
		}
	}
	add(e.StmtID)
	for _, op := range e.O.ApplyOps {
		add(op.StmtID)
	}
}

// history is what the ledger of a standalone's session has.
func (m *retryMemory) history(id sessionKey) history {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.by[id]
	if rec == nil {
		return history{txn: -1}
	}
	h := history{txn: rec.txn, done: map[int32]bool{}}
	for stmt := range rec.results {
		h.done[stmt] = true
	}
	return h
}
