package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const reshapesColl = "reshapes"

// Phase is how far a reshape is. The order of the constants is the order in which they follow one another.
type Phase string

const (
	// Copying: outputs are being filled; everything can be abandoned.
	Copying Phase = "copying"
	// Closing: gates are being closed until the record's EndV, which somebody must insert, as a flip or burnt.
	Closing Phase = "closing"
	// Retiring: the flip is done; the inputs are left to be drained and dropped.
	Retiring Phase = "retiring"
)

// Reshape is the record of one reshape.
type Reshape struct {
	ID      bson.ObjectID  `bson:"_id"`
	NS      string         `bson:"ns"`
	Kind    string         `bson:"kind"`
	Inputs  []RecordedHome `bson:"inputs"`
	Outputs []RecordedHome `bson:"outputs"`
	Owner   string         `bson:"owner"`
	Epoch   int64          `bson:"epoch"`
	Phase   Phase          `bson:"phase"`
	EndV    int64          `bson:"endV,omitempty"`
	Started time.Time      `bson:"started"`
}

// RecordedHome is a physical collection in a record.
type RecordedHome struct {
	Backend  string `bson:"backend"`
	Physical string `bson:"physical"`
}

// ErrReshapeMoved says that a record was changed by somebody else: its owner is an owner no more.
var ErrReshapeMoved = errors.New("catalog: the record of the reshape has another owner or phase")

// InsertReshape records a new reshape.
func (s *Store) InsertReshape(ctx context.Context, r *Reshape) error {
	if _, err := s.db.Collection(reshapesColl).InsertOne(ctx, r); err != nil {
		return fmt.Errorf("record a reshape: %w", err)
	}
	return nil
}

// SwapReshape changes a record if owner, epoch and phase are still what r says, and then r itself. Otherwise it is ErrReshapeMoved.
func (s *Store) SwapReshape(ctx context.Context, r *Reshape, change func(*Reshape)) error {
	next := *r
	change(&next)
	res, err := s.db.Collection(reshapesColl).ReplaceOne(ctx,
		bson.D{{Key: "_id", Value: r.ID}, {Key: "owner", Value: r.Owner}, {Key: "epoch", Value: r.Epoch}, {Key: "phase", Value: r.Phase}}, next)
	if err != nil {
		return fmt.Errorf("change the record of a reshape: %w", err)
	}
	if res.MatchedCount == 0 {
		return ErrReshapeMoved
	}
	*r = next
	return nil
}

// DeleteReshape forgets a reshape that has left nothing to do.
func (s *Store) DeleteReshape(ctx context.Context, id bson.ObjectID) error {
	_, err := s.db.Collection(reshapesColl).DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
	return err
}

// Reshapes reads the records of all reshapes that are not over.
func (s *Store) Reshapes(ctx context.Context) ([]Reshape, error) {
	var all []Reshape
	cur, err := s.db.Collection(reshapesColl).Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &all)
	}
	if err != nil && !errors.Is(err, mongo.ErrNilDocument) {
		return nil, fmt.Errorf("read the records of reshapes: %w", err)
	}
	return all, nil
}
