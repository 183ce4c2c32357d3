package router

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
)

// listed is a cursor whose documents are all there.
type listed struct{ docs []bson.Raw }

func (l *listed) fill(_ context.Context, _ *Request, b *batch, limit int) (bool, error) {
	for len(l.docs) > 0 && (limit == 0 || b.n < limit) && b.fits(l.docs[0]) {
		b.add(l.docs[0])
		l.docs = l.docs[1:]
	}
	return len(l.docs) == 0, nil
}

func (l *listed) close() { l.docs = nil }

// listReply answers a command that lists documents: as many as fit and as its cursor.batchSize wants, the others by getMore. Without a
// batchSize only the bytes of a reply bound the batch, as on mongod.
func (r *Router) listReply(ctx context.Context, q *Request, ns string, docs []bson.Raw) (Reply, error) {
	limit, none := 0, false
	if v, ok := bsoncore.Document(q.Msg.Body).Lookup("cursor").DocumentOK(); ok {
		if size, err := v.LookupErr("batchSize"); err == nil {
			n, err := wholeNumber("batchSize", size, 51024)
			if err != nil {
				return Reply{}, err
			}
			limit, none = int(min(n, math.MaxInt32)), n == 0
		}
	}
	return r.firstBatch(ctx, q, &partition.Collection{NS: ns}, &listed{docs: docs}, nil, limit, none && len(docs) > 0, false, false, false)
}
