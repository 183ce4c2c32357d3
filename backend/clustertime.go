package backend

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const (
	// clusterTimeLimit is how long the primary may take to say what time it is.
	clusterTimeLimit = time.Second
	// clusterTimePause is how long a primary that did not know a time is not asked for it again.
	clusterTimePause = time.Second
)

// clusterTime is a $clusterTime as a server of the backend sent it, its signature included.
type clusterTime struct {
	at  bson.Timestamp
	doc bson.Raw
}

// clusterClock keeps the newest $clusterTime of one backend. It is told of replies to this proxy's
// own commands only: those to clients are forwarded without being decoded, and a time that matters
// is asked for.
type clusterClock struct {
	newest atomic.Pointer[clusterTime]

	// asking is held while the primary is asked.
	asking sync.Mutex
	asked  time.Time // when it was asked last
}

// note keeps the $clusterTime of a reply if it is newer than what is known.
func (c *clusterClock) note(body bson.Raw) {
	doc, ok := body.Lookup("$clusterTime").DocumentOK()
	if !ok {
		return
	}
	var at bson.Timestamp
	if at.T, at.I, ok = doc.Lookup("clusterTime").TimestampOK(); ok {
		c.keep(at, doc)
	}
}

func (c *clusterClock) keep(at bson.Timestamp, doc bson.Raw) {
	for {
		old := c.newest.Load()
		if old != nil && !at.After(old.at) {
			return
		}
		if c.newest.CompareAndSwap(old, &clusterTime{at: at, doc: append(bson.Raw(nil), doc...)}) {
			return
		}
	}
}

// upTo returns the newest $clusterTime if it is not before at.
func (c *clusterClock) upTo(at bson.Timestamp) bson.Raw {
	if now := c.newest.Load(); now != nil && !at.After(now.at) {
		return now.doc
	}
	return nil
}

// ClusterTime returns a $clusterTime that is not before at, which must be a time of this backend,
// to be sent with a read that has at as its afterClusterTime: a server refuses a time above its own
// clock (72), even one that its primary has given. nil is returned where no such time is to be had:
// of a standalone, whose servers have none, and when the primary cannot be asked; most servers know
// the time then all the same. The bytes must not be changed. No time may be sent to another backend
// than the one it came from.
func (b *Backend) ClusterTime(ctx context.Context, at bson.Timestamp) bson.Raw {
	if at.IsZero() || b.Kind() == KindStandalone {
		return nil
	}
	if doc := b.clock.upTo(at); doc != nil {
		return doc
	}
	if b.opts.Auth == nil {
		// Servers take it from clients that need not log in, since nobody signs their times.
		b.clock.keep(at, unsigned(at))
		return b.clock.upTo(at)
	}
	b.clock.asking.Lock()
	defer b.clock.asking.Unlock()
	if doc := b.clock.upTo(at); doc != nil || time.Since(b.clock.asked) < clusterTimePause {
		return doc
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeLimit)
	defer cancel()
	_, _ = b.Run(ctx, "admin", bson.D{{Key: "ping", Value: 1}}) // notes the time of the reply
	b.clock.asked = time.Now()
	return b.clock.upTo(at)
}

// unsigned is a $clusterTime with the signature that servers without access control give.
func unsigned(at bson.Timestamp) bson.Raw {
	var none [20]byte
	sign := bsoncore.NewDocumentBuilder().AppendBinary("hash", bson.TypeBinaryGeneric, none[:]).AppendInt64("keyId", 0).Build()
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendTimestamp("clusterTime", at.T, at.I).AppendDocument("signature", sign).Build())
}
