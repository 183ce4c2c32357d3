package splitter

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// bypassEmptyTs is the field of an insert that keeps a server from putting its time where a document has Timestamp(0, 0) at its top. A copy must keep those.
const bypassEmptyTs = "bypassEmptyTsReplacement"

// unknownField is what a server says of a field that it does not know.
const unknownField wire.Code = 40415

// keepsEmptyTimestamps reports whether a backend knows the field, as newer servers do. It is asked once, by an insert of nothing: one that does not know a field says
// so, and one that does says that there is nothing to insert.
func (s *Splitter) keepsEmptyTimestamps(ctx context.Context, b *backend.Backend, h partition.Home) bool {
	if known, ok := s.emptyTs.Load(b.ID()); ok {
		return known.(bool)
	}
	_, err := b.Run(ctx, h.DB, bson.D{{Key: "insert", Value: h.Physical}, {Key: "documents", Value: bson.A{}}, {Key: bypassEmptyTs, Value: true}})
	if err != nil && (ctx.Err() != nil || wire.Retriable(err)) {
		return false // not told; the next insertion asks again
	}
	knows := err == nil || wire.AsError(err).Code != unknownField
	s.emptyTs.Store(b.ID(), knows)
	return knows
}
