package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
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

// Reshape is the record of one change of a map that closes gates: a reshape, or one that copies nothing.
type Reshape struct {
	ID ID `bson:"reshape"`
	// Slot is what at most one record may have: the namespace until the change is retiring, the reshape's id from then on.
	Slot    string         `bson:"_id"`
	NS      string         `bson:"ns"`
	Kind    string         `bson:"kind"`
	Inputs  []RecordedHome `bson:"inputs"`
	Outputs []RecordedHome `bson:"outputs"`
	// Owner is the process that runs it, by an id that it took at its start; Server is that process's name.
	Owner  ID     `bson:"owner"`
	Server string `bson:"server"`
	// Epoch counts the owners. Renewals counts the owner's signs of life; unchanged for a lease and a margin, the record may be taken over.
	Epoch    int64 `bson:"epoch"`
	Renewals int64 `bson:"renewals"`
	Phase    Phase `bson:"phase"`
	// EndV is the version that ends the closings, from the phase Closing on; Closings are where they stand.
	EndV     int64             `bson:"endV,omitempty"`
	Closings []RecordedClosing `bson:"closings,omitempty"`
	// Cancel asks the owner to give up, unless the change has been made.
	Cancel bool `bson:"cancel,omitempty"`
	// Command is a DDL command that is to reach all partitions or none; empty for changes of maps.
	Command bson.Raw  `bson:"command,omitempty"`
	Started time.Time `bson:"started"`
	// Progress, for people.
	Documents int64 `bson:"documents,omitempty"`
	Bytes     int64 `bson:"bytes,omitempty"`
	Total     int64 `bson:"total,omitempty"`
}

// ID is the id of a record and of a process.
type ID = bson.ObjectID

// RecordedClosing is a closing in a record.
type RecordedClosing struct {
	Backend string `bson:"backend"`
	ID      ID     `bson:"id"`
}

// RecordedHome is a physical collection in a record.
type RecordedHome struct {
	Backend  string `bson:"backend"`
	Physical string `bson:"physical"`
}

// ErrReshapeMoved says that a record was changed by somebody else: its owner is an owner no more.
var ErrReshapeMoved = errors.New("catalog: the record of the reshape has another owner or phase")

// ErrSlotTaken says that another change of the namespace's map is going on.
var ErrSlotTaken = errors.New("catalog: another change of the namespace is recorded")

// InsertReshape records a new reshape; ErrSlotTaken while another one has its slot. After any other error it is not known whether it is recorded.
func (s *Store) InsertReshape(ctx context.Context, r *Reshape) error {
	if r.Slot == "" {
		r.Slot = r.NS
	}
	_, err := s.db.Collection(reshapesColl).InsertOne(ctx, r)
	if mongo.IsDuplicateKeyError(err) {
		return ErrSlotTaken
	}
	if err != nil {
		return fmt.Errorf("record a reshape: %w", err)
	}
	return nil
}

// mine matches a record as its owner knows it. Renewals and Cancel are not part of it: they change beside the swaps.
func mine(r *Reshape) bson.D {
	return bson.D{{Key: "_id", Value: r.Slot}, {Key: "reshape", Value: r.ID}, {Key: "owner", Value: r.Owner}, {Key: "epoch", Value: r.Epoch}, {Key: "phase", Value: r.Phase}}
}

// SwapReshape changes a record if owner, epoch and phase are still what r says, and then r itself. Otherwise it is ErrReshapeMoved. A swap whose
// answer was lost may be repeated. What others ask for in the record (Cancel) is kept.
func (s *Store) SwapReshape(ctx context.Context, r *Reshape, change func(*Reshape)) error {
	next := *r
	change(&next)
	if next.Slot != r.Slot {
		return s.changeSlot(ctx, r, next)
	}
	set := bson.D{{Key: "owner", Value: next.Owner}, {Key: "server", Value: next.Server}, {Key: "epoch", Value: next.Epoch},
		{Key: "phase", Value: next.Phase}, {Key: "endV", Value: next.EndV}, {Key: "closings", Value: next.Closings}, {Key: "outputs", Value: next.Outputs}}
	res, err := s.db.Collection(reshapesColl).UpdateOne(ctx, mine(r), bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "renewals", Value: int64(1)}}}})
	if err != nil {
		return fmt.Errorf("change the record of a reshape: %w", err)
	}
	if res.MatchedCount == 0 {
		return ErrReshapeMoved
	}
	*r = next
	return nil
}

// changeSlot gives up a record's slot: the record is there under its next slot before it goes from the one it had. Whoever finds both does the same again.
func (s *Store) changeSlot(ctx context.Context, r *Reshape, next Reshape) error {
	if _, err := s.db.Collection(reshapesColl).InsertOne(ctx, next); err != nil && !alreadyThere(err) {
		return fmt.Errorf("change the record of a reshape: %w", err)
	}
	res, err := s.db.Collection(reshapesColl).DeleteOne(ctx, mine(r))
	if err != nil {
		return fmt.Errorf("change the record of a reshape: %w", err)
	}
	if res.DeletedCount == 0 {
		return ErrReshapeMoved
	}
	*r = next
	return nil
}

// RenewReshape is the owner's sign of life, with how far it is for people to read. It reports whether somebody asks for the reshape to be given up.
func (s *Store) RenewReshape(ctx context.Context, r *Reshape) (cancel bool, err error) {
	var now Reshape
	err = s.db.Collection(reshapesColl).FindOneAndUpdate(ctx,
		bson.D{{Key: "reshape", Value: r.ID}, {Key: "owner", Value: r.Owner}, {Key: "epoch", Value: r.Epoch}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "renewals", Value: int64(1)}}}, {Key: "$set", Value: bson.D{
			{Key: "documents", Value: r.Documents}, {Key: "bytes", Value: r.Bytes}, {Key: "total", Value: r.Total}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&now)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, ErrReshapeMoved
	}
	if err != nil {
		return false, fmt.Errorf("renew the record of a reshape: %w", err)
	}
	return now.Cancel, nil
}

// CancelReshapes asks the owners of a namespace's reshapes to give up those that have not closed their gates yet.
func (s *Store) CancelReshapes(ctx context.Context, ns string) error {
	_, err := s.db.Collection(reshapesColl).UpdateMany(ctx, bson.D{{Key: "_id", Value: ns}, {Key: "phase", Value: Copying}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "cancel", Value: true}}}})
	return err
}

// DeleteReshape forgets a record of that owner and epoch that has left nothing to do; one that somebody else has taken over is left alone.
func (s *Store) DeleteReshape(ctx context.Context, r *Reshape) error {
	_, err := s.db.Collection(reshapesColl).DeleteMany(ctx, bson.D{{Key: "reshape", Value: r.ID}, {Key: "owner", Value: r.Owner}, {Key: "epoch", Value: r.Epoch}})
	return err
}

// Reshapes reads the records of all reshapes that are not over.
func (s *Store) Reshapes(ctx context.Context) ([]Reshape, error) {
	return readReshapes(ctx, s.db.Collection(reshapesColl))
}

// ReshapesNow is Reshapes linearizably: whoever has written a record of his own before, and looks for those of others, finds each that was written before his, and of two who do so at
// the same time one finds the other's. A primary that has been deposed without knowing it does not answer, and a new one shows all that was acknowledged.
func (s *Store) ReshapesNow(ctx context.Context) ([]Reshape, error) {
	ctx, cancel := context.WithTimeout(ctx, linearizableWait)
	defer cancel()
	return readReshapes(ctx, s.db.Collection(reshapesColl, options.Collection().SetReadConcern(readconcern.Linearizable())))
}

func readReshapes(ctx context.Context, c *mongo.Collection) ([]Reshape, error) {
	var all []Reshape
	cur, err := c.Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the records of reshapes: %w", err)
	}
	return all, nil
}
