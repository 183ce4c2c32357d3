package member

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Collections is the collection of ours on a backend that records what became of the physical
// collections there. It is the evidence without which none is dropped: that no map names a collection
// may have other reasons, such as a wrong configuration or a catalog that was restored.
const Collections = "collections"

// State is what became of a physical collection.
type State string

// A collection goes from one state to the next and never back.
const (
	// Made: a change of a map makes it, or is about to. Once that change is over without having put
	// it into a map, it may be dropped.
	Made State = "made"
	// Used: a map names it, or has named it. It may not be dropped.
	Used State = "used"
	// Retired: the change that made it was given up, or a change has replaced it: it may be dropped.
	Retired State = "retired"
	// Dropped: it was dropped. What has its name now was made anew by a write that came late.
	Dropped State = "dropped"
)

// Collection is the record of one physical collection.
type Collection struct {
	// Name is "db.physical".
	Name  string `bson:"_id"`
	State State  `bson:"state"`
	// UUID is the collection's own; nil until it is known, and for views.
	UUID *bson.Binary `bson:"uuid,omitempty"`
	// Reshape is the change that has brought it to its state.
	Reshape bson.ObjectID `bson:"reshape"`
	// At is when it came to the state Dropped, by the server's own clock.
	At time.Time `bson:"at,omitempty"`
}

// keepDropped is how long records of dropped collections are kept, by the server's clock: two
// sweeps, an hour apart, find what late writes have made anew. The records' number is that of the partitions on the
// backend and of those that were dropped in this time.
const keepDropped = 2*time.Hour + 10*time.Minute

// RecordMade records, before they are made, collections that a change is about to make.
func (b Board) RecordMade(ctx context.Context, reshape bson.ObjectID, names []string) error {
	docs := make([]any, len(names))
	for i, name := range names {
		docs[i] = Collection{Name: name, State: Made, Reshape: reshape}
	}
	if len(docs) == 0 {
		return nil
	}
	// Names are never used twice, so that an equal one is an error.
	_, err := b.db.Collection(Collections).InsertMany(ctx, docs)
	return err
}

// RecordUUIDs completes the records of collections that exist; a view has no UUID (nil). Those that have no record, as they
// were made by an older version or by a client, get one that says they are used.
func (b Board) RecordUUIDs(ctx context.Context, reshape bson.ObjectID, uuids map[string]*bson.Binary) error {
	var writes []mongo.WriteModel
	for name, uuid := range uuids {
		update := bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "state", Value: Used}, {Key: "reshape", Value: reshape}}}}
		if uuid != nil {
			update = append(update, bson.E{Key: "$set", Value: bson.D{{Key: "uuid", Value: *uuid}}})
		}
		writes = append(writes, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: name}}).SetUpsert(true).SetUpdate(update))
	}
	if len(writes) == 0 {
		return nil
	}
	_, err := b.db.Collection(Collections).BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	return err
}

// RecordUsed says of collections that were made that a map names them.
func (b Board) RecordUsed(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := b.db.Collection(Collections).UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: names}}}, {Key: "state", Value: Made}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: Used}}}})
	return err
}

// RecordRetired says of a collection that a change is done with it, if its record is in one of the
// states from. It returns the record after that; nil if the record is in another state, or is not
// there.
func (b Board) RecordRetired(ctx context.Context, name string, reshape bson.ObjectID, from ...State) (*Collection, error) {
	var c Collection
	err := b.db.Collection(Collections).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: name}, {Key: "state", Value: bson.D{{Key: "$in", Value: from}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: Retired}, {Key: "reshape", Value: reshape}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&c)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &c, err
}

// RecordDropped says of a collection that it was dropped.
func (b Board) RecordDropped(ctx context.Context, name string) error {
	_, err := b.db.Collection(Collections).UpdateOne(ctx, bson.D{{Key: "_id", Value: name}, {Key: "state", Value: bson.D{{Key: "$ne", Value: Used}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: Dropped}}}, {Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}}}})
	return err
}

// Record returns the record of a collection; nil if there is none.
func (b Board) Record(ctx context.Context, name string) (*Collection, error) {
	var c Collection
	err := b.db.Collection(Collections).FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&c)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &c, err
}

// Records lists all, by name.
func (b Board) Records(ctx context.Context) (map[string]Collection, error) {
	rows, err := all[Collection](ctx, b.db.Collection(Collections), bson.D{})
	found := make(map[string]Collection, len(rows))
	for _, c := range rows {
		found[c.Name] = c
	}
	return found, err
}

// ForgetDropped removes the records of collections that were dropped long ago, by the server's clock.
func (b Board) ForgetDropped(ctx context.Context) error {
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
	}
	if err := b.db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return err
	}
	_, err := b.db.Collection(Collections).DeleteMany(ctx, bson.D{{Key: "state", Value: Dropped}, {Key: "at", Value: bson.D{{Key: "$lt", Value: hello.LocalTime.Add(-keepDropped)}}}})
	return err
}
