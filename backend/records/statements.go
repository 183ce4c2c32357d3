package records

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// entry is an oplog entry as a link of the chain of a session's statements.
type entry struct {
	TS     bson.Timestamp `bson:"ts"`
	StmtID bson.RawValue  `bson:"stmtId"`
	Prev   struct {
		TS bson.Timestamp `bson:"ts"`
	} `bson:"prevOpTime"`
	O struct {
		ApplyOps []struct {
			StmtID bson.RawValue `bson:"stmtId"`
		} `bson:"applyOps"`
	} `bson:"o"`
}

// Statements follows the oplog's chain of a session's newest transaction number, as Sessions
// returned it, and returns its statements that were executed not after upTo; all of them when upTo
// is zero. 217 IncompleteTransactionHistory says that the oplog has been truncated past the chain.
// A server that merely lacks an entry is another error, which passes.
func Statements(ctx context.Context, b *backend.Backend, rec Record, upTo bson.Timestamp) (map[int32]bool, error) {
	done := map[int32]bool{}
	for _, at := range rec.Last {
		for !at.IsZero() {
			e, err := entryAt(ctx, b, at)
			if err != nil {
				return nil, err
			}
			if upTo.IsZero() || !at.After(upTo) {
				e.note(done)
			}
			at = e.Prev.TS
		}
	}
	return done, nil
}

// entryAt reads one entry. A majority has confirmed it, since Sessions tells of no other. It is
// read with level majority and its own time as afterClusterTime: a server that does not have it yet
// waits or fails, and does not answer that there is none.
func entryAt(ctx context.Context, b *backend.Backend, at bson.Timestamp) (*entry, error) {
	found, err := oplog(ctx, b, at, bson.D{{Key: "filter", Value: bson.D{{Key: "ts", Value: at}}}})
	if err != nil {
		return nil, err
	}
	if found != nil {
		return found, nil
	}
	// The oplog is truncated from its old end. One that still begins before the entry has not lost
	// it that way.
	first, ok, err := oldest(ctx, b)
	if err != nil {
		return nil, err
	}
	if ok && !first.After(at) {
		return nil, wire.Errorf(wire.HostUnreachable, "backend '%s' does not find an oplog entry that it has on record", b.ID())
	}
	return nil, wire.Errorf(wire.IncompleteTransactionHistory, "Incomplete history detected for a retryable write: the oplog of backend %s has lost it", b.ID())
}

// oldest returns the time of the oplog's first entry; false when it has none. A capped collection is
// read in the order of its entries.
func oldest(ctx context.Context, b *backend.Backend) (bson.Timestamp, bool, error) {
	e, err := oplog(ctx, b, bson.Timestamp{}, bson.D{{Key: "filter", Value: bson.D{}}})
	if err != nil || e == nil {
		return bson.Timestamp{}, false, err
	}
	return e.TS, true, nil
}

// oplog reads the first entry that a find with these fields gives, nil for none. after, if not
// zero, is the time that the server's answer must include.
func oplog(ctx context.Context, b *backend.Backend, after bson.Timestamp, fields bson.D) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit+networkGrace)
	defer cancel()
	cmd := append(bson.D{{Key: "find", Value: "oplog.rs"}}, fields...)
	cmd = append(cmd, bson.E{Key: "limit", Value: int32(1)}, bson.E{Key: "singleBatch", Value: true}, bson.E{Key: "maxTimeMS", Value: answerLimit.Milliseconds()})
	concern := bson.D{{Key: "level", Value: "majority"}}
	if !after.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: after})
	}
	cmd = append(cmd, bson.E{Key: "readConcern", Value: concern})
	if now := b.ClusterTime(ctx, after); now != nil {
		cmd = append(cmd, bson.E{Key: "$clusterTime", Value: now})
	}
	body, err := b.Run(ctx, "local", cmd)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Cursor struct {
			FirstBatch []entry `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	if err := bson.Unmarshal(body, &reply); err != nil || len(reply.Cursor.FirstBatch) == 0 {
		return nil, err
	}
	return &reply.Cursor.FirstBatch[0], nil
}

// note adds the entry's statements: one, several, or those of the writes that were logged together.
func (e *entry) note(done map[int32]bool) {
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
