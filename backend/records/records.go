// Package records asks a replica set what it has on record of retryable writes: which transaction
// number a session used last, and which statements of that number were executed. A repeated write
// is answered or applied by what the records say, so a wrong answer loses a write or applies it
// twice.
package records

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// SessionID is the UUID of an lsid.
type SessionID [16]byte

// Record is what a replica set has on record of one session.
type Record struct {
	// Txn is the newest transaction number.
	Txn int64
	// Last are the oplog times at which the chains of that number's statements begin. There is one,
	// unless the session was used with and without a user.
	Last []bson.Timestamp
}

// answerLimit is how long the server may take to confirm an answer. A read of level linearizable
// waits for a majority of the set, and without a limit it waits for as long as there is none.
const answerLimit = 5 * time.Second

// networkGrace is what a reply may take beyond answerLimit: the server says itself that its time is
// over.
const networkGrace = time.Second

// Sessions returns the records of those of the sessions that have one. The answer holds every
// record of a write that a majority had confirmed before the call, and all records of writes that
// the primary executed before one of those; what the answer holds cannot be rolled back.
//
// It is read with level linearizable, on the primary. The server reads its newest data, then writes
// a no-op entry in its own term and waits until a majority has it. A deposed primary cannot get
// that majority. A primary of a later term has everything that a majority had confirmed before it
// was elected. And all that was read comes before the no-op, so it is confirmed with it.
//
// No other level will do. A server that was a secondary when a session wrote several statements may
// have applied the record's last state only, so at an intermediate time, which majority and
// snapshot read, it lacks records; for that reason a server refuses both with a time (5557800), and
// majority without a time may be older than what is asked about. Level local may be answered by a
// deposed primary that does not have the writes.
func Sessions(ctx context.Context, b *backend.Backend, ids []SessionID) (map[SessionID]Record, error) {
	uids, err := b.SessionUIDs(ctx)
	if err != nil {
		return nil, err
	}
	in := make(bson.A, 0, len(ids)*len(uids))
	for i := range ids {
		for _, uid := range uids {
			in = append(in, bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: ids[i][:]}}, {Key: "uid", Value: bson.Binary{Data: uid[:]}}})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit+networkGrace)
	defer cancel()
	body, err := b.Run(ctx, "config", bson.D{
		{Key: "find", Value: "transactions"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
		{Key: "batchSize", Value: int32(len(in) + 1)}, {Key: "singleBatch", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}}, {Key: "maxTimeMS", Value: answerLimit.Milliseconds()},
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
	out := map[SessionID]Record{}
	for _, d := range reply.Cursor.FirstBatch {
		var id SessionID
		copy(id[:], d.ID.ID.Data)
		rec, known := out[id]
		switch {
		case known && rec.Txn > d.TxnNum:
			continue
		case !known || rec.Txn < d.TxnNum:
			rec = Record{Txn: d.TxnNum}
		}
		if !d.Last.TS.IsZero() {
			rec.Last = append(rec.Last, d.Last.TS)
		}
		out[id] = rec
	}
	return out, nil
}

// Probe asks about a session that nobody has. An error that Lasting accepts says that the replica
// set refuses the question itself.
func Probe(ctx context.Context, b *backend.Backend) error {
	var nobody SessionID
	_, _ = rand.Read(nobody[:]) // never fails
	nobody[6], nobody[8] = nobody[6]&0x0f|0x40, nobody[8]&0x3f|0x80
	_, err := Sessions(ctx, b, []SessionID{nobody})
	return err
}

// Lasting reports whether an error of a question says that the server refuses to answer it, so that
// asking again changes nothing. All else passes: there is no primary, the network fails, or time is
// over.
func Lasting(err error) bool {
	if err == nil {
		return false
	}
	switch e := wire.AsError(err); e.Code {
	case wire.MaxTimeMSExpired, wire.ClientDisconnect, wire.Interrupted, wire.WriteConcernFailed, wire.ShardNotFound, wire.FailedToSatisfyReadPreference,
		wire.NetworkInterfaceExceededTimeLimit, wire.LockTimeout, wire.WriteConflict, wire.QueryPlanKilled, wire.ReauthenticationRequired,
		wire.IncompleteTransactionHistory, wire.InternalError:
		return false
	default:
		return !e.Code.Retriable()
	}
}

// Unanswerable is the error of a change that would replace partitions of a backend which refuses to
// tell what its sessions did: the server's own sentence.
func Unanswerable(backendID string, err error) error {
	e := *wire.AsError(err)
	e.Message = fmt.Sprintf("backend '%s' refuses to tell which retryable writes it has executed, so none of its partitions may be replaced :: caused by :: %s", backendID, e.Message)
	return &e
}
