package router

import (
	"errors"
	"slices"

	"github.com/shardway/shardway/wire"
)

// The labels of a reply tell a driver what it may repeat. Drivers look at the labels alone, never at the codes of a mongos, so a label too many makes them apply a
// write twice and a label too few makes an application see an error that a repetition would have spared it. This file decides about them, and nothing else does.
//
// The rules are a mongod's. A mongos of versions before 8.1 gives no RetryableWriteError for its shards' errors, since it has tried three times itself;
// an election takes longer than that, so this proxy says what the backend would have said to a driver that is connected to it.
const (
	// retryableWrite tells a driver that it may send the command again.
	retryableWrite = "RetryableWriteError"
	// transientTransaction tells a driver that it may run the whole transaction again.
	transientTransaction = "TransientTransactionError"
	// noWritesPerformed is a mongod's word for the one attempt that it has seen. The proxy may have made others before that, so it passes on none.
	noWritesPerformed = "NoWritesPerformed"
)

// retryLabel is the rule for RetryableWriteError: a reply gets the label if another attempt may succeed (helps), and if an attempt that was executed would not be
// executed again. Only a retryable write and the end of a transaction are of that kind: what carries no transaction number is not, and no read is.
func (q *Request) retryLabel(helps bool) bool {
	return helps && q.HasTxn && (!q.InTxn || q.Command != nil && q.ends())
}

// helpsToRetry reports whether another attempt may succeed where one has ended with err. It is so too if only the error beside it, that of the write concern, says so.
// A backend's own label counts: servers that are newer than this program know more such codes.
func helpsToRetry(err error) bool {
	if err == nil {
		return false
	}
	var lost unremembered
	if errors.As(err, &lost) {
		return false
	}
	e := wire.AsError(err)
	concern, _ := e.WriteConcernCode()
	return e.Code.Retriable() || concern.Retriable() || e.HasLabel(retryableWrite)
}

// unremembered is the error of a retryable write that may have been executed at a standalone without being remembered: a repetition might execute it again.
type unremembered struct{ error }

func (e unremembered) Unwrap() error { return e.error }

// labelled gives an error the labels with which its client is told of it. It returns nil for nil.
func (q *Request) labelled(err error) error {
	if err == nil {
		return nil
	}
	e := wire.AsError(err)
	_, unconfirmed := e.WriteConcernCode()
	ending := q.Command != nil && q.ends()
	labels := slices.DeleteFunc(slices.Clone(e.Labels), func(l string) bool {
		return l == transientTransaction || l == retryableWrite || l == noWritesPerformed
	})
	switch {
	case q.InTxn && transientCode(e.Code, ending, unconfirmed):
		labels = append(labels, transientTransaction)
	case q.retryLabel(helpsToRetry(err)):
		labels = append(labels, retryableWrite)
	}
	if slices.Equal(labels, e.Labels) {
		return err
	}
	told := *e
	told.Labels = labels
	return &told
}

// transientCode reports the codes after which the whole transaction may be run again. ending says that the command was a commit or an abort, unconfirmed that a
// writeConcernError stands beside the code. "No such transaction" is then no proof that the transaction is not committed: a primary that cannot have its
// knowledge confirmed by a majority may have been replaced by one that knows of the commit.
func transientCode(c wire.Code, ending, unconfirmed bool) bool {
	switch c {
	case wire.WriteConflict, wire.LockTimeout, wire.PreparedTransactionInProgress, wire.StaleDbVersion, wire.StaleConfig, wire.StaleEpoch,
		wire.SnapshotTooOld, wire.SnapshotUnavailable, wire.StaleChunkHistory, wire.MigrationConflict, wire.ShardInvalidatedForTargeting,
		wire.ShardCannotRefreshDueToLocksHeld:
		return true
	case wire.NoSuchTransaction:
		return !ending || !unconfirmed
	case wire.InternalTransactionNotSupported:
		return false // a retryable write's error; run again, the transaction would meet it again
	}
	return !ending && c.Retriable()
}
