package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// txnCommands are the commands that a transaction may contain (mongos-behaviour §8.2).
var txnCommands = map[string]bool{
	"find": true, "getMore": true, "killCursors": true, "aggregate": true, "distinct": true,
	"insert": true, "update": true, "delete": true, "findAndModify": true,
	"commitTransaction": true, "abortTransaction": true,
}

// inTransaction answers a request with autocommit: false.
func (r *Router) inTransaction(ctx context.Context, q *Request, run Handler) (Reply, error) {
	if q.ends() {
		return run(ctx, q)
	}
	t, older, err := r.txns.join(r, q)
	if err != nil {
		return Reply{}, err
	}
	if older != nil {
		older.doom("a newer transaction of its session has started")
	}
	if err := t.take(ctx); err != nil {
		return Reply{}, err
	}
	defer t.give()
	ctx, err = t.begin(ctx, q.Conn)
	if err != nil {
		return Reply{}, err
	}
	q.txn = t
	reply, err := run(ctx, q)
	err = interruption(ctx, err)
	if err == nil {
		_, refused := bsoncore.Document(reply.Body).LookupErr("writeErrors")
		err = t.end(refused == nil)
	}
	if err != nil {
		if reply.Owner != nil {
			reply.Owner.Release()
		}
		return Reply{}, t.fail(err)
	}
	return withRecoveryToken(reply, t.where()), nil
}

// checkTransaction checks what the fields of a request with autocommit: false may say. What it refuses does no harm to a transaction that is open.
func (q *Request) checkTransaction() error {
	switch {
	case q.Command == nil || !txnCommands[q.Command.Name]:
		return wire.Errorf(wire.OperationNotSupportedInTransaction, "Cannot run '%s' in a multi-document transaction.", q.Name)
	case q.starts && (q.ends() || q.Command.Name == "getMore" || q.Command.Name == "killCursors"):
		return wire.Errorf(wire.OperationNotSupportedInTransaction, "Cannot start a transaction with '%s'", q.Name)
	case q.ReadConcern != nil && !q.starts:
		return wire.Errorf(wire.InvalidOptions, "Only the first command in a transaction may specify a readConcern")
	case q.WriteConcern != nil && !q.ends():
		return wire.Errorf(wire.InvalidOptions, "writeConcern is not allowed within a multi-statement transaction")
	case q.ReadPref != nil:
		return wire.Errorf(wire.InvalidOptions, "Read preference in a transaction must be primary, not: %s", q.ReadPref.Mode())
	case q.ends():
		return nil
	case q.DB == "config" || q.DB == "admin" || q.DB == "local":
		return wire.Errorf(wire.OperationNotSupportedInTransaction, "Cannot run command against the '%s' database in a transaction.", q.DB)
	case q.Msg.Flags&wire.MoreToCome != 0:
		return wire.Errorf(wire.InvalidOptions, "an unacknowledged command cannot belong to a transaction")
	}
	if err := q.checkTxnConcern(); err != nil {
		return err
	}
	return q.checkTxnCollection()
}

func (q *Request) checkTxnConcern() error {
	if q.ReadConcern == nil {
		return nil
	}
	level, err := bsoncore.Document(q.ReadConcern).LookupErr("level")
	if err != nil {
		return nil
	}
	switch s, _ := level.StringValueOK(); s {
	case "local", "majority", "snapshot":
		return nil
	}
	return wire.Errorf(wire.InvalidOptions, "The first command in a transaction cannot specify a readConcern level other than local, majority, or snapshot: %v", level)
}

// checkTxnCollection refuses system collections, and the pipelines that no transaction takes.
func (q *Request) checkTxnCollection() error {
	name, named := q.First.StringValueOK()
	if named && q.Command.Writes && strings.HasPrefix(name, "system.") {
		return wire.Errorf(wire.OperationNotSupportedInTransaction, "Cannot run '%s' on '%s.%s' in a transaction", q.Name, q.DB, name)
	}
	if q.Command.Name != "aggregate" {
		return nil
	}
	arr, _ := bsoncore.Document(q.Msg.Body).Lookup("pipeline").ArrayOK()
	stages, _ := arr.Values()
	for i, v := range stages {
		d, ok := v.DocumentOK()
		if !ok {
			continue // the handler says what is wrong with it
		}
		switch stage := firstStage([]bson.Raw{bson.Raw(d)}); stage {
		case "$out", "$merge", "$changeStream", "$collStats", "$indexStats", "$planCacheStats", "$currentOp", "$shardedDataDistribution",
			"$listSessions", "$listLocalSessions":
			return wire.Errorf(wire.OperationNotSupportedInTransaction, "Stage not supported inside of a multi-document transaction: %s", stage)
		default:
			if i == 0 && !named && stage != "$documents" {
				return wire.Errorf(wire.OperationNotSupportedInTransaction, "an aggregate without a collection is not supported in a transaction")
			}
		}
	}
	if explain, err := bsoncore.Document(q.Msg.Body).LookupErr("explain"); err == nil && isTrue(explain) {
		return wire.Errorf(wire.OperationNotSupportedInTransaction, "Cannot run 'explain' in a multi-document transaction.")
	}
	return nil
}

// ends reports whether the request commits or aborts.
func (q *Request) ends() bool {
	return q.Command.Name == "commitTransaction" || q.Command.Name == "abortTransaction"
}

// retryable reports whether the request is a retryable write: one with a number, outside of a transaction.
func (q *Request) retryable() bool { return q.HasTxn && !q.InTxn }

// take waits for the transaction's turn; give ends it.
func (t *transaction) take(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *transaction) give() { <-t.turn }

// begin prepares a statement: its context ends when the transaction is doomed. A transaction that has ended takes none.
func (t *transaction) begin(ctx context.Context, c *Conn) (context.Context, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.state {
	case txnAborted:
		return nil, noSuchTransaction(t.number, t.why)
	case txnCommitted, txnCommitting:
		return nil, wire.Errorf(wire.TransactionCommitted, "Transaction %d has been committed.", t.number)
	}
	ctx, t.cancel = context.WithCancelCause(ctx)
	t.conn = c
	return txnContext{ctx, t}, nil
}

// end ends a statement that was answered. It is an error when the transaction was doomed meanwhile; refused says that the reply has write errors, which end
// the transaction at the backend.
func (t *transaction) end(refused bool) error {
	t.mu.Lock()
	t.cancel(nil)
	t.cancel = nil
	state, why := t.state, t.why
	t.mu.Unlock()
	switch {
	case state == txnAborted:
		return noSuchTransaction(t.number, why)
	case refused:
		t.abandon("a write of it was refused")
	}
	return nil
}

// fail ends a statement, and with it the transaction, for an error, and returns what its client is told: the reason for which the transaction was doomed, if it was.
func (t *transaction) fail(err error) error {
	t.mu.Lock()
	if t.state == txnAborted {
		err = noSuchTransaction(t.number, t.why)
	}
	if t.cancel != nil {
		t.cancel(nil)
		t.cancel = nil
	}
	t.mu.Unlock()
	t.abandon("a statement of it failed: " + wire.AsError(err).Message)
	return err
}

// where is the backend's id; empty before a statement has chosen it.
func (t *transaction) where() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.backend
}

// txnContext is the context of a transaction's statement.
type txnContext struct {
	context.Context
	t *transaction
}

type txnKey struct{}

// Value gives the transaction to txnOf.
func (c txnContext) Value(key any) any {
	if _, ok := key.(txnKey); ok {
		return c.t
	}
	return c.Context.Value(key)
}

// txnOf returns the transaction whose statement a context belongs to, nil for none. While no transaction is open it costs one load.
func (r *Router) txnOf(ctx context.Context) *transaction {
	if r.txns.open.Load() == 0 {
		return nil
	}
	t, _ := ctx.Value(txnKey{}).(*transaction)
	return t
}

// appendSession appends the session of a command to a backend and, in a transaction, what makes it a statement of that; the transaction's first message
// starts it. Messages must be sent in the order in which they were made.
func (q *Request) appendSession(dst []byte, lsid bson.Raw) []byte {
	if lsid != nil {
		dst = bsoncore.AppendDocumentElement(dst, "lsid", bsoncore.Document(lsid))
	}
	t := q.txn
	if t == nil {
		return dst
	}
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", t.number)
	dst = bsoncore.AppendBooleanElement(dst, "autocommit", false)
	if !t.started {
		t.started = true
		dst = bsoncore.AppendBooleanElement(dst, "startTransaction", true)
		if t.concern != nil {
			dst = bsoncore.AppendDocumentElement(dst, "readConcern", bsoncore.Document(t.concern))
		}
	}
	return dst
}

// withRecoveryToken adds to a reply where the transaction is, for a commit through another proxy.
func withRecoveryToken(reply Reply, backendID string) Reply {
	token := make([]byte, 4, 48)
	if backendID != "" {
		token = bsoncore.AppendStringElement(token, "recoveryShardId", backendID)
	}
	body := append(make([]byte, 0, len(reply.Body)+64), reply.Body[:len(reply.Body)-1]...)
	body = bsoncore.AppendDocumentElement(body, "recoveryToken", closeDocument(token, 0))
	if reply.Owner != nil {
		reply.Owner.Release()
	}
	return Reply{Body: closeDocument(body, 0)}
}
