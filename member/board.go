package member

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
)

// Names of a backend's collections of ours.
const (
	Instances = "instances"
	Closings  = "closings"
	Answers   = "answers"
	Markers   = "markers"
	Floors    = "floors"
)

// DB is the database of ours on a backend, written and read with majority.
func DB(b *backend.Backend) *mongo.Database {
	return b.Client().Database(catalog.MemberDB, options.Database().
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
}

// Board is what stands on a backend, in the database of ours there. It implements protocol.Board.
type Board struct{ db *mongo.Database }

var _ protocol.Board = Board{}

// BoardOf returns a backend's.
func BoardOf(b *backend.Backend) Board { return Board{DB(b)} }

// Register inserts an instance.
func (b Board) Register(ctx context.Context, in protocol.Instance) error {
	_, err := b.db.Collection(Instances).InsertOne(ctx, in)
	return err
}

// Renew counts one renewal of an instance that has not been ended.
func (b Board) Renew(ctx context.Context, id protocol.ID) (bool, error) {
	return b.RenewFrom(ctx, id, 0)
}

// RenewFrom is Renew of an instance that has had so many renewals confirmed. It reports false as well
// where the backend has fewer: it was restored from an older copy under this process's feet.
func (b Board) RenewFrom(ctx context.Context, id protocol.ID, confirmed int64) (bool, error) {
	return b.touch(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "renewals", Value: int64(1)}}}},
		bson.E{Key: "renewals", Value: bson.D{{Key: "$gte", Value: confirmed}}})
}

// MarkTransactions notes that an instance may have transactions open.
func (b Board) MarkTransactions(ctx context.Context, id protocol.ID) (bool, error) {
	return b.touch(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "transactions", Value: true}}}})
}

func (b Board) touch(ctx context.Context, id protocol.ID, update bson.D, more ...bson.E) (bool, error) {
	filter := bson.D{{Key: "_id", Value: id}, {Key: "gone", Value: false}, {Key: "ended", Value: bson.D{{Key: "$ne", Value: true}}}}
	res, err := b.db.Collection(Instances).UpdateOne(ctx, append(filter, more...), update)
	return err == nil && res.MatchedCount == 1, err
}

// Instances lists those that are not gone.
func (b Board) Instances(ctx context.Context) ([]protocol.Instance, error) {
	return all[protocol.Instance](ctx, b.db.Collection(Instances), bson.D{{Key: "gone", Value: false}})
}

// End ends an instance whose count of renewals is still that.
func (b Board) End(ctx context.Context, id protocol.ID, renewals int64) (bool, error) {
	res, err := b.db.Collection(Instances).UpdateOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "renewals", Value: renewals}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "ended", Value: true}}}})
	return err == nil && res.MatchedCount == 1, err
}

// Gone says of instances that they are gone.
func (b Board) Gone(ctx context.Context, ids []protocol.ID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := b.db.Collection(Instances).UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "ended", Value: true}, {Key: "gone", Value: true}}}})
	return err
}

// PutClosing inserts a closing.
func (b Board) PutClosing(ctx context.Context, c protocol.Closing) error {
	_, err := b.db.Collection(Closings).InsertOne(ctx, c)
	return err
}

// Closings lists all.
func (b Board) Closings(ctx context.Context) ([]protocol.Closing, error) {
	return all[protocol.Closing](ctx, b.db.Collection(Closings), bson.D{})
}

// DropClosing removes a closing.
func (b Board) DropClosing(ctx context.Context, id protocol.ID) error {
	_, err := b.db.Collection(Closings).DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
	return err
}

// PutAnswer inserts an answer; a lost one costs its closing's owner an attempt and nothing else.
func (b Board) PutAnswer(ctx context.Context, a protocol.Answer) error {
	_, err := b.db.Collection(Answers).InsertOne(ctx, a)
	if mongo.IsDuplicateKeyError(err) {
		return nil
	}
	return err
}

// Release says in an answer that its instance uses the inputs no more.
func (b Board) Release(ctx context.Context, a protocol.AnswerID) error {
	_, err := b.db.Collection(Answers).UpdateByID(ctx, a, bson.D{{Key: "$set", Value: bson.D{{Key: "released", Value: true}}}})
	return err
}

// Answers lists the answers to a closing.
func (b Board) Answers(ctx context.Context, closing protocol.ID) ([]protocol.Answer, error) {
	return all[protocol.Answer](ctx, b.db.Collection(Answers), bson.D{{Key: "_id.closing", Value: closing}})
}

// Mark inserts a marker of a reshape and returns the time at which it was inserted.
func (b Board) Mark(ctx context.Context, id, reshape protocol.ID, epoch int64) (bson.Timestamp, error) {
	var at bson.Timestamp
	err := b.db.Client().UseSession(ctx, func(ctx context.Context) error {
		_, err := b.db.Collection(Markers).InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "reshape", Value: reshape}, {Key: "epoch", Value: epoch}})
		if t := mongo.SessionFromContext(ctx).OperationTime(); t != nil {
			at = *t
		}
		return err
	})
	return at, err
}

// Forget removes the answers to a closing, if that is not zero, and a reshape's markers.
func (b Board) Forget(ctx context.Context, reshape, closing protocol.ID) error {
	if !closing.IsZero() {
		if _, err := b.db.Collection(Answers).DeleteMany(ctx, bson.D{{Key: "_id.closing", Value: closing}}); err != nil {
			return err
		}
	}
	_, err := b.db.Collection(Markers).DeleteMany(ctx, bson.D{{Key: "reshape", Value: reshape}})
	return err
}

// Leftovers lists which closings there are answers to, and which reshapes there are markers of.
func (b Board) Leftovers(ctx context.Context) (answered, marked map[protocol.ID]bool, err error) {
	answers, err := all[protocol.Answer](ctx, b.db.Collection(Answers), bson.D{})
	if err != nil {
		return nil, nil, err
	}
	type marker struct {
		Reshape protocol.ID `bson:"reshape"`
	}
	markers, err := all[marker](ctx, b.db.Collection(Markers), bson.D{})
	if err != nil {
		return nil, nil, err
	}
	answered, marked = map[protocol.ID]bool{}, map[protocol.ID]bool{}
	for _, a := range answers {
		answered[a.ID.Closing] = true
	}
	for _, m := range markers {
		marked[m.Reshape] = true
	}
	return answered, marked, nil
}

// RaiseFloor makes v the floor of ns unless it is higher already.
func (b Board) RaiseFloor(ctx context.Context, ns string, v int64) error {
	_, err := b.db.Collection(Floors).UpdateByID(ctx, ns, bson.D{{Key: "$max", Value: bson.D{{Key: "v", Value: v}}}}, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) { // two made it at once
		_, err = b.db.Collection(Floors).UpdateByID(ctx, ns, bson.D{{Key: "$max", Value: bson.D{{Key: "v", Value: v}}}})
	}
	return err
}

// Floors lists all.
func (b Board) Floors(ctx context.Context) ([]protocol.Floor, error) {
	return all[protocol.Floor](ctx, b.db.Collection(Floors), bson.D{})
}

func all[T any](ctx context.Context, c *mongo.Collection, filter bson.D) ([]T, error) {
	cur, err := c.Find(ctx, filter)
	if err != nil {
		return nil, err
	}
	var rows []T
	err = cur.All(ctx, &rows)
	return rows, err
}
