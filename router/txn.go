package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// A transaction stays on one backend: its first statement that concerns a partition chooses it. From the first statement that touches a partition until
// commit or abort is decided it holds that partition's gate (partition.Gate.BeginTransaction), so a flip and an open transaction never see each other.
//
//	txn.go         what a transaction is, and which there are
//	txn_run.go     a statement on its way
//	txn_gates.go   which partitions it may touch
//	txn_end.go     commit, abort, and what nobody else decides

const (
	// defaultTxnLifetime is how long a transaction may be open (mongod's transactionLifetimeLimitSeconds).
	defaultTxnLifetime = time.Minute
	// maxTransactions bounds the open transactions of one proxy.
	maxTransactions = 10_000
	// maxTxnSessions bounds the sessions whose newest transaction is remembered after its end.
	maxTxnSessions = 50_000
)

// txnState is how far a transaction has come.
type txnState uint8

const (
	txnOpen       txnState = iota
	txnCommitting          // a commit was sent and is not known to have succeeded or failed
	txnCommitted
	txnAborted // or to be aborted: settled says whether the backend knows
)

// transaction is one multi-document transaction.
type transaction struct {
	// static
	r       *Router
	session sessionKey
	number  int64
	concern bson.Raw // the read concern of its first statement, nil for none
	// turn has a token while somebody runs a statement or ends the transaction.
	turn chan struct{}

	// owned by whoever has the turn
	view    *partition.View // as it was when the first gate was passed
	lease   *member.Lease   // of the instance it began under; nil without a member
	started bool            // a message with startTransaction has been made
	doubted bool            // its commit failed otherwise than by getting lost: abort it

	// guarded by mu
	mu      sync.Mutex
	state   txnState
	settled bool                    // nothing of it is open at the backend
	why     string                  // it was aborted
	backend string                  // chosen by its first statement; empty before
	held    []*partition.Part       // whose gates it holds
	cancel  context.CancelCauseFunc // of the statement that runs
	conn    *Conn                   // that brought its last statement
	timer   *time.Timer
}

// transactions are those of one router. The zero value is ready for use.
type transactions struct {
	// open is how many are not settled. Requests without a transaction look at no more.
	open  atomic.Int64
	stats txnStats

	mu sync.Mutex
	// newest is the newest transaction of each session.
	newest map[sessionKey]*transaction
	// unsettled are those that may be open at a backend.
	unsettled map[*transaction]struct{}
}

// join returns the transaction of a statement, made anew if the statement starts one (codes of mongos-behaviour §8.2). superseded is an older
// transaction of the session, which a new one ends.
func (ts *transactions) join(r *Router, q *Request) (t, superseded *transaction, err error) {
	id := q.clientSession()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	cur := ts.newest[id]
	switch {
	case cur != nil && q.TxnNumber < cur.number:
		return nil, nil, tooOldTransaction(q.TxnNumber, cur.number)
	case cur != nil && q.TxnNumber == cur.number && q.starts:
		return nil, nil, wire.Errorf(wire.ConflictingOperationInProgress, "Transaction %d of the session was already started", q.TxnNumber)
	case cur != nil && q.TxnNumber == cur.number:
		return cur, nil, nil
	case !q.starts:
		return nil, nil, noSuchTransaction(q.TxnNumber, "this proxy knows of no such transaction in the session")
	case len(ts.unsettled) >= maxTransactions:
		return nil, nil, wire.Errorf(wire.TooManyLogicalSessions, "this proxy has %d transactions open, which is its limit", maxTransactions)
	}
	if ts.newest == nil {
		ts.newest, ts.unsettled = map[sessionKey]*transaction{}, map[*transaction]struct{}{}
	}
	for old, x := range ts.newest {
		if len(ts.newest) < maxTxnSessions {
			break
		}
		if _, open := ts.unsettled[x]; !open {
			delete(ts.newest, old)
		}
	}
	t = &transaction{r: r, session: id, number: q.TxnNumber, turn: make(chan struct{}, 1)}
	if q.ReadConcern != nil {
		t.concern = append(bson.Raw(nil), q.ReadConcern...)
	}
	t.timer = time.AfterFunc(r.txnLifetime(), func() { t.doom("it was open for longer than " + r.txnLifetime().String()) })
	ts.stats.started.Add(1)
	ts.newest[id] = t
	ts.unsettled[t] = struct{}{}
	ts.open.Store(int64(len(ts.unsettled)))
	return t, cur, nil
}

// find returns the transaction that a commit or an abort is about; nil when this proxy does not know it.
func (ts *transactions) find(q *Request) (*transaction, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	cur := ts.newest[q.clientSession()]
	switch {
	case cur == nil || q.TxnNumber > cur.number:
		return nil, nil
	case q.TxnNumber < cur.number:
		return nil, tooOldTransaction(q.TxnNumber, cur.number)
	}
	return cur, nil
}

// settle notes that nothing of t is open any more.
func (ts *transactions) settle(t *transaction) {
	ts.mu.Lock()
	delete(ts.unsettled, t)
	ts.open.Store(int64(len(ts.unsettled)))
	ts.mu.Unlock()
}

// where returns the transactions that are not settled and that match accepts. match is called under locks.
func (ts *transactions) where(match func(*transaction) bool) (found []*transaction) {
	if ts.open.Load() == 0 {
		return nil
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for t := range ts.unsettled {
		t.mu.Lock()
		if match(t) {
			found = append(found, t)
		}
		t.mu.Unlock()
	}
	return found
}

// forget drops what is remembered of ended transactions of a session.
func (ts *transactions) forget(id sessionKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.newest[id]; t != nil {
		if _, open := ts.unsettled[t]; !open {
			delete(ts.newest, id)
		}
	}
}

func (r *Router) txnLifetime() time.Duration {
	if r.cfg.TransactionLifetime > 0 {
		return r.cfg.TransactionLifetime
	}
	return defaultTxnLifetime
}

// doom aborts a transaction that is open, for a reason that completes "it was aborted: …": what it runs is interrupted, and its client learns by its next statement. It
// reports whether there was anything to abort. It does not wait.
func (t *transaction) doom(why string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != txnOpen {
		return false
	}
	t.state, t.why = txnAborted, why
	if t.cancel != nil {
		t.cancel(noSuchTransaction(t.number, why))
	}
	t.r.settleInBackground(t)
	return true
}

// outrun ends the transaction that a session has open when a retryable write with a higher number comes, as on a server.
func (r *Router) outrun(q *Request) {
	id := q.clientSession()
	for _, t := range r.txns.where(func(t *transaction) bool { return t.session == id && t.number < q.TxnNumber }) {
		t.doom("a newer operation of its session has started")
	}
}

// Transactions tells how many transactions of this proxy are open, or may be.
func (r *Router) Transactions() int { return int(r.txns.open.Load()) }

// TransactionsUndecided reports whether a transaction of this proxy may still be open at a backend (member.Config.Undecided).
func (r *Router) TransactionsUndecided(backendID string) bool {
	return len(r.txns.where(func(t *transaction) bool { return t.backend == backendID })) > 0
}

// AbortTransactionsOn aborts the open transactions that have touched one of homes, and returns how many there were: a reshape that they have held up for too long
// calls it. why completes "it was aborted: …". Their clients get 251 NoSuchTransaction with the label TransientTransactionError. Those whose commit is under
// way are not touched. It does not wait: the gates let go (partition.Gate.WaitQuiet) when the backend has confirmed.
func (r *Router) AbortTransactionsOn(homes []partition.Home, why string) (n int) {
	touches := func(t *transaction) bool {
		for _, p := range t.held {
			for _, h := range homes {
				if p.Home == h {
					return true
				}
			}
		}
		return false
	}
	for _, t := range r.txns.where(touches) {
		if t.doom(why) {
			n++
		}
	}
	return n
}

func tooOldTransaction(n, newest int64) *wire.Error {
	return wire.Errorf(wire.TransactionTooOld, "Cannot use transaction %d on the session because a newer transaction, %d, has already started", n, newest)
}

// noSuchTransaction is what a statement of a transaction gets that is not there any more, and never was.
func noSuchTransaction(n int64, why string) *wire.Error {
	e := wire.Errorf(wire.NoSuchTransaction, "Transaction %d has been aborted: %s", n, why)
	e.Labels = []string{transientTransaction}
	return e
}
