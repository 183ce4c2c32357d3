package router

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

// defaultRetryWindow is Config.RetryWindow where that is 0.
const defaultRetryWindow = 30 * time.Minute

// maxHistories bounds what is kept of old homes' answers.
const maxHistories = 100_000

// oldSession is a derived session at an old home, up to a marker: a home that was renamed, and moved later, is an old one of two collections.
type oldSession struct {
	id     sessionKey
	marker bson.Timestamp
}

// histories keeps the answers of old homes, which do not change any more. Its zero value is ready for use.
type histories struct {
	mu sync.Mutex
	by map[oldSession]history
}

func (h *histories) get(of oldSession) (history, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x, ok := h.by[of]
	return x, ok
}

func (h *histories) put(of oldSession, x history) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[oldSession]history{}
	}
	for old := range h.by {
		if len(h.by) < maxHistories {
			break
		}
		delete(h.by, old)
	}
	h.by[of] = x
}

// retryWindow is how long after a flip a repeated write may still be one that the old home has on record.
func (r *Router) retryWindow() time.Duration {
	if r.cfg.RetryWindow == 0 {
		return defaultRetryWindow
	}
	return r.cfg.RetryWindow
}

// matters reports whether an old home's record may still answer a repeated write.
func (r *Router) matters(old *partition.OldHome) bool { return time.Since(old.Since) < r.retryWindow() }

// passed reports whether it is known that the old homes of a collection that held pos have nothing on record which answers or refuses the write: the session's
// newest number there is an older one. It asks nobody.
func (r *Router) passed(q *Request, c *partition.Collection, pos shardkey.Position) bool {
	for i := range c.Old {
		old := &c.Old[i]
		if !old.Range.Contains(pos) || !r.matters(old) {
			continue
		}
		h, known := r.histories.get(oldSession{derive(q.clientSession(), homeOf(c, old)), old.Marker})
		if !known || h.txn >= q.TxnNumber {
			return false
		}
	}
	return true
}

func homeOf(c *partition.Collection, old *partition.OldHome) partition.Home {
	return partition.Home{Backend: old.Backend, DB: c.DB, Physical: old.Physical}
}

// oldHome looks whether a retryable write, of which only old homes with one of the positions matter, was executed by an old home before its flip. It then returns
// that home as a part to send the write to once more: its record answers. What an old home has on record after its last marker does not count. A transaction
// number older than the newest on record is 225; an old home that cannot be asked is a retryable error.
func (r *Router) oldHome(ctx context.Context, q *Request, c *partition.Collection, concerns func(shardkey.Range) bool, stmt int32) (*partition.Part, error) {
	var homes []*partition.OldHome
	for i := range c.Old {
		if old := &c.Old[i]; concerns(old.Range) && r.matters(old) {
			homes = append(homes, old)
		}
	}
	if len(homes) == 0 {
		return nil, nil
	}
	found, err := r.oldHistories(ctx, q, c, homes)
	if err != nil {
		return nil, err
	}
	for i, h := range found {
		home := homeOf(c, homes[i])
		switch {
		case q.TxnNumber < h.txn:
			return nil, tooOld(q.TxnNumber, h.txn)
		case q.TxnNumber > h.txn:
			continue
		case h.done == nil:
			if h.done, err = executed(ctx, r.cfg.Backends.Get(home.Backend), h, homes[i].Marker); err != nil {
				return nil, unasked(home.Backend, err)
			}
			r.histories.put(oldSession{derive(q.clientSession(), home), homes[i].Marker}, h)
		}
		if h.done[stmt] {
			return &partition.Part{Home: home, Range: homes[i].Range}, nil
		}
	}
	return nil, nil
}

// oldHistories returns what old homes have on record of a session, asking each once: one query a backend.
func (r *Router) oldHistories(ctx context.Context, q *Request, c *partition.Collection, homes []*partition.OldHome) ([]history, error) {
	all := make([]history, len(homes))
	ask := map[string][]int{}
	for i, old := range homes {
		id := derive(q.clientSession(), homeOf(c, old))
		if r.hasLeft(old.Backend) {
			all[i].txn = -1 // it stayed for the retry window
			continue
		}
		if alone, err := r.standalone(ctx, old.Backend); err != nil {
			return nil, unasked(old.Backend, err)
		} else if alone {
			all[i] = r.retries.history(id)
			continue
		}
		var known bool
		if all[i], known = r.histories.get(oldSession{id, old.Marker}); !known {
			ask[old.Backend] = append(ask[old.Backend], i)
		}
	}
	for backendID, which := range ask {
		ids := make([]sessionKey, len(which))
		var after bson.Timestamp
		for j, i := range which {
			ids[j] = derive(q.clientSession(), homeOf(c, homes[i]))
			if homes[i].Marker.After(after) {
				after = homes[i].Marker
			}
		}
		found, err := askSessions(ctx, r.cfg.Backends.Get(backendID), ids, after)
		if err != nil {
			return nil, unasked(backendID, err)
		}
		for j, i := range which {
			h, ok := found[ids[j]]
			if !ok {
				h = history{txn: -1}
			}
			all[i] = h
			r.histories.put(oldSession{ids[j], homes[i].Marker}, h)
		}
	}
	return all, nil
}

// hasLeft reports whether a backend is no part of the fleet any more.
func (r *Router) hasLeft(id string) bool {
	return r.cfg.Backends.Get(id) == nil && r.cfg.Table.View().Catalog.Backends[id] == nil
}
