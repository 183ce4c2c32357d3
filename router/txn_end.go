package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "commitTransaction", Admin: true, Writes: true, API1: true, Help: "commits a transaction", Run: r.commitTransaction},
		{Name: "abortTransaction", Admin: true, Writes: true, API1: true, Help: "aborts a transaction", Run: r.abortTransaction},
	}
})

const (
	// endAttempts is how often a commit or an abort is sent before its client is told that the outcome is unknown.
	endAttempts = 3
	// abortWait is how long a failed statement's reply may wait for its transaction to be aborted.
	abortWait = time.Second
	// settleWait bounds one attempt to settle a transaction, settlePause the pause between two.
	settleWait  = 5 * time.Second
	settlePause = 5 * time.Second
)

// commitTransaction answers the command of that name (mongos-behaviour §8.4).
func (r *Router) commitTransaction(ctx context.Context, q *Request) (Reply, error) {
	return r.endTransaction(ctx, q, r.commit)
}

// endTransaction has end commit or abort the transaction that the request names, in its turn; one that this proxy does not know is ended at its backend.
func (r *Router) endTransaction(ctx context.Context, q *Request, end func(context.Context, *Request, *transaction) (Reply, error)) (Reply, error) {
	if !q.InTxn {
		return Reply{}, wire.Errorf(wire.CommandFailed, "%s must be run within a transaction", q.Command.Name)
	}
	t, err := r.txns.find(q)
	if err != nil {
		return Reply{}, err
	}
	if t == nil {
		return r.endElsewhere(ctx, q)
	}
	if err := t.take(ctx); err != nil {
		return Reply{}, err
	}
	defer t.give()
	return end(ctx, q, t)
}

func (r *Router) commit(ctx context.Context, q *Request, t *transaction) (Reply, error) {
	if sent, err := t.committing(); err != nil || !sent {
		if err == nil {
			r.txns.stats.noShards.begin()(nil)
		}
		return withRecoveryToken(Reply{Body: okBody}, t.where()), err
	}
	ended := r.txns.stats.singleShard.begin()
	reply, confirmed, err := r.sendEnd(ctx, q, t.where())
	ended(err)
	switch e := wire.AsError(err); {
	case err == nil:
		t.finish(txnCommitted)
	case unknown(e) && confirmed:
		t.abortedBy("the backend does not know it any more")
	default:
		t.doubted = !unknown(e) && !e.Code.Retriable() && e.Code != wire.MaxTimeMSExpired && ctx.Err() == nil
		r.settleInBackground(t)
	}
	if err != nil {
		return Reply{}, err
	}
	return withRecoveryToken(reply, t.where()), nil
}

// unknown reports whether an error says that a backend does not know a transaction (any more). That ends the transaction only if a majority has confirmed it. A server
// that takes itself for the primary while another one is has never heard of a transaction that is open there, and whose commit may still arrive.
func unknown(e *wire.Error) bool {
	return e != nil && (e.Code == wire.NoSuchTransaction || e.Code == wire.TransactionTooOld)
}

// committing notes that a commit is about to be sent; sent is false when there is nothing to be sent to anybody.
func (t *transaction) committing() (sent bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.state == txnAborted:
		return false, noSuchTransaction(t.number, t.why)
	case t.state == txnOpen && !t.started:
		t.state = txnCommitted
		t.releaseLocked()
		return false, nil
	case t.state == txnOpen && t.lease != nil && !t.lease.Valid():
		// Others may take it for dead by now. What holds for the lease's loss, of which nobody has been told yet, holds here.
		t.state, t.why = txnAborted, cutOff
		t.r.settleInBackground(t)
		return false, noSuchTransaction(t.number, t.why)
	case t.state == txnOpen:
		t.state = txnCommitting
	}
	return t.started, nil
}

// abortTransaction answers the command of that name.
func (r *Router) abortTransaction(ctx context.Context, q *Request) (Reply, error) {
	return r.endTransaction(ctx, q, r.abort)
}

func (r *Router) abort(ctx context.Context, q *Request, t *transaction) (Reply, error) {
	t.mu.Lock()
	state, why := t.state, t.why
	if state == txnOpen {
		t.state, t.why = txnAborted, "its client has aborted it"
	}
	t.mu.Unlock()
	switch {
	case state == txnAborted:
		return Reply{}, noSuchTransaction(t.number, why)
	case state == txnCommitted, state == txnCommitting:
		return Reply{}, wire.Errorf(wire.TransactionCommitted, "Transaction %d has been committed.", t.number)
	case !t.started:
		t.finish(txnAborted)
		return Reply{}, noSuchTransaction(t.number, "no command of it was sent to any backend")
	}
	reply, confirmed, err := r.sendEnd(ctx, q, t.where())
	if err == nil || unknown(wire.AsError(err)) && confirmed {
		t.finish(txnAborted)
	} else {
		r.settleInBackground(t)
	}
	if err != nil {
		return Reply{}, err
	}
	return withRecoveryToken(reply, t.where()), nil
}

// endElsewhere commits or aborts a transaction that this proxy does not know, at the backend that the recoveryToken names.
func (r *Router) endElsewhere(ctx context.Context, q *Request) (Reply, error) {
	v, err := bsoncore.Document(q.Msg.Body).LookupErr("recoveryToken")
	if err != nil && q.Command.Name == "commitTransaction" {
		return Reply{}, wire.Errorf(50940, "cannot commit transaction %d: this proxy does not know it, and there is no recoveryToken", q.TxnNumber)
	}
	token, ok := v.DocumentOK()
	if err == nil && !ok {
		return Reply{}, typeMismatch("recoveryToken", v, "object")
	}
	id, _ := token.Lookup("recoveryShardId").StringValueOK()
	if id == "" {
		return Reply{}, noSuchTransaction(q.TxnNumber, "this proxy sent no command of it to any backend")
	}
	ended := func(error) {}
	if q.Command.Name == "commitTransaction" {
		ended = r.txns.stats.recovered.begin()
	}
	reply, _, err := r.sendEnd(ctx, q, id)
	ended(err)
	if err != nil {
		return Reply{}, err
	}
	return withRecoveryToken(reply, id), nil
}

// sendEnd sends the client's commitTransaction or abortTransaction to a backend, again where that may help. confirmed says that a majority has confirmed
// what the backend answers, an error included.
func (r *Router) sendEnd(ctx context.Context, q *Request, backendID string) (reply Reply, confirmed bool, err error) {
	concern := q.WriteConcern
	if unacknowledged(concern) {
		concern = nil
	}
	for n := 1; ; n++ {
		got, err := r.do(ctx, target{Backend: backendID, Wait: true}, q.endMessage(concern))
		if err == nil {
			if err = commandError(got.Body); err == nil {
				reply = Reply{Body: relay(got.Body)}
				got.Release()
				return reply, false, nil
			}
			got.Release()
		}
		if n == endAttempts || !mayRepeat(ctx, err) {
			_, unconfirmed := wire.AsError(err).WriteConcernCode()
			return Reply{}, byMajority(concern) && !unconfirmed, err
		}
		concern = repeatConcern(concern)
	}
}

// repeatTimeout is for how long, in milliseconds, a repeated commit waits for its majority if its client has not said.
const repeatTimeout = 10_000

// repeatConcern is the write concern of a commit or an abort that is sent again, as drivers do it: with a majority, since the first attempt may have been executed by a server that
// is not the primary any more. Without a majority the new primary's "no such transaction" would prove nothing.
func repeatConcern(concern bson.Raw) bson.Raw {
	timeout := bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, repeatTimeout)}
	if v, err := bsoncore.Document(concern).LookupErr("wtimeout"); err == nil {
		timeout = v
	}
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "w", "majority"), bsoncore.AppendValueElement(nil, "wtimeout", timeout)))
}

// byMajority reports whether a write concern asks for a majority. None at all may ask for less: the backend's own default holds then.
func byMajority(concern bson.Raw) bool {
	if concern == nil {
		return false
	}
	w, _ := bsoncore.Document(concern).Lookup("w").StringValueOK()
	return w == "majority"
}

// endMessage is the client's commitTransaction or abortTransaction as the backend gets it.
func (q *Request) endMessage(concern bson.Raw) []byte {
	dst := bsoncore.AppendInt32Element(make([]byte, 4, 192), q.Command.Name, 1)
	if concern != nil {
		dst = bsoncore.AppendDocumentElement(dst, "writeConcern", bsoncore.Document(concern))
	}
	if q.Comment.Type != 0 {
		dst = bsoncore.AppendValueElement(dst, "comment", q.Comment)
	}
	dst = bsoncore.AppendDocumentElement(dst, "lsid", bsoncore.Document(q.Session))
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", q.TxnNumber)
	dst = bsoncore.AppendBooleanElement(dst, "autocommit", false)
	return wire.AppendMsg(nil, 0, 0, 0, closeDocument(q.appendTail(dst, "admin"), 0))
}

// finish notes that the backend has nothing open of the transaction any more: its gates are left and its cursors are gone.
func (t *transaction) finish(state txnState) {
	t.mu.Lock()
	if !t.settled {
		t.state = state
		t.releaseLocked()
	}
	t.mu.Unlock()
}

func (t *transaction) abortedBy(why string) {
	t.mu.Lock()
	if !t.settled {
		t.state, t.why = txnAborted, why
		t.releaseLocked()
	}
	t.mu.Unlock()
}

// releaseLocked leaves the gates. It is called once.
func (t *transaction) releaseLocked() {
	t.settled = true
	if t.state == txnCommitted {
		t.r.txns.stats.committed.Add(1)
	} else {
		t.r.txns.stats.aborted.Add(1)
	}
	t.timer.Stop()
	for _, p := range t.held {
		p.Gate().EndTransaction()
	}
	t.held, t.conn = nil, nil
	t.r.wg.Add(1)
	go func() { // not under the lock
		defer t.r.wg.Done()
		t.r.txns.settle(t)
		t.r.cursors.killWhere(func(c *cursor) bool { return c.txn == t })
	}()
}

// abandon aborts a transaction for an error of one of its statements, whose client waits for it for a moment. The caller has the turn.
func (t *transaction) abandon(why string) {
	t.mu.Lock()
	if t.state == txnOpen {
		t.state, t.why = txnAborted, why
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.r.life, abortWait)
	defer cancel()
	if !t.settle(ctx) {
		t.r.settleInBackground(t)
	}
}

// settleInBackground goes on until it is known that nothing of the transaction is open: a lost commit is repeated, anything else aborted. Until then its gates stay held, since its
// writes may still come to be.
func (r *Router) settleInBackground(t *transaction) {
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		for pause := 50 * time.Millisecond; t.take(r.life) == nil; pause = min(2*pause, settlePause) {
			ctx, cancel := context.WithTimeout(r.life, settleWait)
			done := t.settle(ctx)
			cancel()
			t.give()
			if done {
				return
			}
			select {
			case <-time.After(pause):
			case <-r.life.Done():
				return
			}
		}
	}()
}

// settle asks the backend once to end the transaction, unless it has ended; true when it has. The caller has the turn. The lease is not looked at: nobody is told
// anything, and what was begun under a lost lease is to end too.
func (t *transaction) settle(ctx context.Context) bool {
	t.mu.Lock()
	settled, state, at := t.settled, t.state, t.backend
	t.mu.Unlock()
	if settled {
		return true
	}
	b := t.r.cfg.Backends.Get(at)
	if !t.started || b == nil {
		t.finish(txnAborted)
		return true
	}
	name := "abortTransaction"
	if state == txnCommitting && !t.doubted {
		name = "commitTransaction"
	}
	err := t.endAt(ctx, b, name)
	e := wire.AsError(err)
	unconfirmed := false
	if err != nil {
		_, unconfirmed = e.WriteConcernCode()
	}
	switch {
	case err == nil && name == "commitTransaction", err != nil && e.Code == wire.TransactionCommitted:
		// Executed is enough, with or without a majority: the commit is in the log before whatever comes once the gates are left, or both are rolled back.
		t.finish(txnCommitted)
	case err == nil, unknown(e) && !unconfirmed:
		t.finish(txnAborted)
	case unknown(e), e.Code.Retriable(), e.Code == wire.MaxTimeMSExpired, ctx.Err() != nil:
		return false
	case name == "commitTransaction":
		t.doubted = true // it can be neither repeated nor believed
		return false
	default:
		t.r.log.Warn().Err(err).Str("backend", at).Msg("a backend refused to abort a transaction; it is taken for ended")
		t.finish(txnAborted)
	}
	return true
}

// settleConcern has a majority confirm what a backend says of a transaction. The backend gives up before the attempt ends, so that it is heard and its connection stays.
var settleConcern = bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "w", "majority"),
	bsoncore.AppendInt32Element(nil, "wtimeout", int32((settleWait-time.Second).Milliseconds()))))

// endAt sends a backend the end of the transaction.
func (t *transaction) endAt(ctx context.Context, b *backend.Backend, name string) error {
	dst := bsoncore.AppendInt32Element(make([]byte, 4, 192), name, 1)
	dst = bsoncore.AppendDocumentElement(dst, "writeConcern", bsoncore.Document(settleConcern))
	dst = appendSession(dst, t.session)
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", t.number)
	dst = bsoncore.AppendBooleanElement(dst, "autocommit", false)
	dst = bsoncore.AppendStringElement(dst, "$db", "admin")
	reply, err := b.Do(ctx, backend.Request{Message: wire.AppendMsg(nil, 0, 0, 0, closeDocument(dst, 0))})
	if err != nil {
		return err
	}
	defer reply.Release()
	return commandError(bson.Raw(reply.Body))
}
