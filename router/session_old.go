package router

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// defaultRetryWindow is Config.RetryWindow where that is 0.
const defaultRetryWindow = 30 * time.Minute

const (
	// maxHistories bounds what is kept of old homes' answers.
	maxHistories = 100_000
	// fewHomes is how many old homes that concern all positions may be kept one by one; of more only the newest number is, and who repeats a write asks again.
	fewHomes = 16
)

// oldSession is a derived session at an old home, up to a marker: a home that was renamed, and moved later, is an old one of two collections.
type oldSession struct {
	id     sessionKey
	marker bson.Timestamp
}

// wholeSession is a client's session at all the old homes of a version of a map that concern all positions: a drop may leave many.
type wholeSession struct {
	client sessionKey
	ns     string
	v      int64
}

// histories keeps the answers of old homes, which do not change any more. Its zero value is ready for use.
type histories struct {
	mu sync.Mutex
	by map[oldSession]history
	// whole is the newest transaction number that any of the homes has on record.
	whole map[wholeSession]int64
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
	h.by = putBounded(h.by, of, x)
}

func (h *histories) getWhole(of wholeSession) (newest int64, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest, known = h.whole[of]
	return newest, known
}

func (h *histories) putWhole(of wholeSession, newest int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.whole = putBounded(h.whole, of, newest)
}

func putBounded[K comparable, V any](m map[K]V, k K, v V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	for old := range m {
		if len(m) < maxHistories {
			break
		}
		delete(m, old)
	}
	m[k] = v
	return m
}

// retryWindow is how long after a flip a repeated write may still be one that the old home has on record.
func (r *Router) retryWindow() time.Duration {
	if r.cfg.RetryWindow == 0 {
		return defaultRetryWindow
	}
	return r.cfg.RetryWindow
}

func homeOf(c *partition.Collection, old *partition.OldHome) partition.Home {
	return partition.Home{Backend: old.Backend, DB: c.DB, Physical: old.Physical}
}

func isWhole(old *partition.OldHome) bool { return old.Range == shardkey.Range{} }

// wholeSession is the request's session at the old homes of c that concern all positions.
func (q *Request) wholeSession(c *partition.Collection) wholeSession {
	return wholeSession{q.clientSession(), c.NS, c.Map.V}
}

// passed reports whether it is known that the old homes of a collection that held pos have nothing on record which answers or refuses the write: the session's
// newest number there is an older one. It asks nobody.
func (r *Router) passed(q *Request, c *partition.Collection, pos shardkey.Position) bool {
	window, whole := r.retryWindow(), false
	for i := range c.Old {
		old := &c.Old[i]
		switch {
		case !old.Range.Contains(pos) || whole && isWhole(old) || !old.Matters(window):
		case isWhole(old):
			if newest, known := r.histories.getWhole(q.wholeSession(c)); !known || newest >= q.TxnNumber {
				return false
			}
			whole = true
		case r.hasLeft(old.Backend):
		default:
			h, known := r.histories.get(oldSession{derive(q.clientSession(), homeOf(c, old)), old.Marker})
			if !known || h.txn >= q.TxnNumber {
				return false
			}
		}
	}
	return true
}

// past is what a collection's old homes have on record of the session of one request.
type past struct {
	r     *Router
	q     *Request
	c     *partition.Collection
	homes []*partition.OldHome
	found []history
	// each says that answers of homes that concern all positions are kept one by one.
	each bool
}

// past asks those of the old homes that concern a range which concerns accepts: each once for a session, all on one backend with one query. It returns nil if
// what they have on record matters to none of the request's statements. An old home that cannot be asked is a retryable error.
func (r *Router) past(ctx context.Context, q *Request, c *partition.Collection, concerns func(shardkey.Range) bool) (*past, error) {
	p := &past{r: r, q: q, c: c}
	window, whole := r.retryWindow(), 0
	for i := range c.Old {
		if old := &c.Old[i]; old.Matters(window) {
			if isWhole(old) {
				whole++
			}
			if concerns(old.Range) {
				p.homes = append(p.homes, old)
			}
		}
	}
	if len(p.homes) == 0 {
		return nil, nil
	}
	if err := p.ask(ctx, whole); err != nil {
		return nil, err
	}
	for _, h := range p.found {
		if q.TxnNumber <= h.txn {
			return p, nil
		}
	}
	return nil, nil
}

// ask finds the homes' histories; whole is how many homes of the collection there are that concern all positions.
func (p *past) ask(ctx context.Context, whole int) error {
	r, q := p.r, p.q
	p.found, p.each = make([]history, len(p.homes)), whole <= fewHomes
	newest, known := r.histories.getWhole(q.wholeSession(p.c))
	passed := known && newest < q.TxnNumber
	type question struct {
		b     *backend.Backend
		which []int
		ids   []sessionKey
	}
	ask := map[string]*question{}
	all := true // of those that concern all positions are asked, or have been
	for i, old := range p.homes {
		b := r.cfg.Backends.Get(old.Backend)
		if isWhole(old) {
			whole--
		}
		switch {
		case passed && isWhole(old), b == nil && r.hasLeft(old.Backend): // it stayed for the retry window
			p.found[i].txn = -1
			continue
		case b == nil:
			return p.unasked(old, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", old.Backend))
		}
		id := derive(q.clientSession(), homeOf(p.c, old))
		if alone, err := r.standalone(ctx, old.Backend); err != nil {
			return p.unasked(old, err)
		} else if alone {
			p.found[i] = r.retries.history(id)
			all = all && !isWhole(old) // a ledger goes on
			continue
		}
		var known bool
		if p.found[i], known = r.histories.get(oldSession{id, old.Marker}); known {
			continue
		}
		if ask[old.Backend] == nil {
			ask[old.Backend] = &question{b: b}
		}
		a := ask[old.Backend]
		a.which, a.ids = append(a.which, i), append(a.ids, id)
	}
	for _, a := range ask {
		// A majority had confirmed the markers before the map that names them was inserted, so the
		// answer has what was executed before them.
		found, err := r.asker.Sessions(ctx, a.b, a.ids)
		if err != nil {
			return p.unasked(p.homes[a.which[0]], err)
		}
		for j, i := range a.which {
			h := history{txn: -1}
			if rec, ok := found[a.ids[j]]; ok {
				h = history{txn: rec.Txn, last: rec.Last}
			}
			p.found[i] = h
			p.keep(i)
		}
	}
	if all && whole == 0 && !passed {
		p.keepWhole()
	}
	return nil
}

// keep keeps what the ith home has said.
func (p *past) keep(i int) {
	if old := p.homes[i]; p.each || !isWhole(old) {
		p.r.histories.put(oldSession{derive(p.q.clientSession(), homeOf(p.c, old)), old.Marker}, p.found[i])
	}
}

// keepWhole keeps the newest number that homes which concern all positions have on record, if there are any.
func (p *past) keepWhole() {
	newest, any := int64(-1), false
	for i, h := range p.found {
		if isWhole(p.homes[i]) {
			newest, any = max(newest, h.txn), true
		}
	}
	if any {
		p.r.histories.putWhole(p.q.wholeSession(p.c), newest)
	}
}

// home returns the old home that executed a statement, of which only homes with one of the positions matter, before its flip: as a part to send the write to once more, whose
// record answers. What an old home has on record after its last marker does not count. A transaction number older than the newest on record is 225.
func (p *past) home(ctx context.Context, concerns func(shardkey.Range) bool, stmt int32) (*partition.Part, error) {
	if p == nil {
		return nil, nil
	}
	for i := range p.found {
		h, old := &p.found[i], p.homes[i]
		if p.q.TxnNumber > h.txn || !concerns(old.Range) {
			continue
		}
		if p.q.TxnNumber < h.txn {
			return nil, tooOld(p.q.TxnNumber, h.txn)
		}
		home := homeOf(p.c, old)
		if h.done == nil {
			b := p.r.cfg.Backends.Get(home.Backend)
			if b == nil {
				return nil, p.unasked(old, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", home.Backend))
			}
			done, err := records.Statements(ctx, b, records.Record{Txn: h.txn, Last: h.last}, old.Marker)
			if err != nil {
				return nil, p.unasked(old, err)
			}
			h.done = done
			p.keep(i)
		}
		if h.done[stmt] {
			return &partition.Part{Home: home, Range: old.Range}, nil
		}
	}
	return nil, nil
}

// oldHome is past and home for one statement.
func (r *Router) oldHome(ctx context.Context, q *Request, c *partition.Collection, concerns func(shardkey.Range) bool, stmt int32) (*partition.Part, error) {
	p, err := r.past(ctx, q, c, concerns)
	if err != nil {
		return nil, err
	}
	return p.home(ctx, concerns, stmt)
}

// hasLeft reports whether a backend is no part of the fleet any more.
func (r *Router) hasLeft(id string) bool {
	return r.cfg.Backends.Get(id) == nil && r.cfg.Table.View().Catalog.Backends[id] == nil
}
