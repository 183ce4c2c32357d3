package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// history is what a home has on record of a session.
type history struct {
	// txn is the newest transaction number; −1 for none.
	txn int64
	// last is where the oplog's chains of its statements begin.
	last []bson.Timestamp
	// done are the statements of txn that count; nil when they have not been asked for.
	done map[int32]bool
}

func tooOld(txn, newest int64) error {
	return wire.Errorf(wire.TransactionTooOld,
		"Retryable write with txnNumber %d is prohibited on the session because a newer one with txnNumber %d has already started", txn, newest)
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
			return nil, r.unasked("the partitions of "+c.NS+" on backend '"+id+"'", partition.Home{Backend: id}, time.Time{}, err)
		}
		if p != nil {
			return p, nil
		}
	}
	return nil, nil
}

// presentHome asks one backend about all its partitions of the collection. That no partition has
// the write on record decides that another document may be chosen, so the answer must be that of
// the real primary: a deposed one does not have what its successor has executed, and the repeated
// write would be applied to a second document. A record that is found only decides where the write
// goes; the session there decides the rest.
func (r *Router) presentHome(ctx context.Context, q *Request, b *backend.Backend, parts map[sessionKey]*partition.Part, stmt int32) (*partition.Part, error) {
	ids := make([]sessionKey, 0, len(parts))
	for id := range parts {
		ids = append(ids, id)
	}
	found, err := r.asker.Sessions(ctx, b, ids)
	if err != nil {
		return nil, err
	}
	for id, h := range found {
		if h.Txn != q.TxnNumber {
			continue // an older number is the home's to refuse, if it is this one's turn
		}
		done, err := records.Statements(ctx, b, h, bson.Timestamp{})
		if err != nil {
			return nil, err
		}
		if done[stmt] {
			return parts[id], nil
		}
	}
	return nil, nil
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
