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

type backendDoc struct {
	ID           string         `bson:"_id"`
	URI          string         `bson:"uri"`
	Host         string         `bson:"host"`
	Draining     bool           `bson:"draining,omitempty"`
	DrainedAt    time.Time      `bson:"drainedAt,omitempty"`
	TopologyTime bson.Timestamp `bson:"topologyTime"`
	Token        bson.ObjectID  `bson:"token,omitempty"`
	SetName      string         `bson:"setName,omitempty"`
	SetID        bson.ObjectID  `bson:"setId,omitempty"`
}

func (s *Store) readBackends(ctx context.Context, next *Snapshot) error {
	var rows []backendDoc
	if err := s.all(ctx, backendsColl, &rows); err != nil {
		return err
	}
	for _, d := range rows {
		next.Backends[d.ID] = &Backend{ID: d.ID, URI: d.URI, Host: d.Host, Draining: d.Draining, DrainedAt: d.DrainedAt.UTC(), TopologyTime: d.TopologyTime,
			Token: d.Token, SetName: d.SetName, SetID: d.SetID}
	}
	return nil
}

// PutBackend adds a backend to the fleet, or changes its URI, its host and what it is known by;
// whether it drains stays as it was. A field of its identity that is zero in b is left as it is.
func (s *Store) PutBackend(ctx context.Context, b Backend) error {
	now := bson.Timestamp{T: uint32(time.Now().Unix()), I: 1}
	set := bson.D{{Key: "uri", Value: b.URI}, {Key: "host", Value: b.Host}}
	if !b.Token.IsZero() {
		set = append(set, bson.E{Key: "token", Value: b.Token})
	}
	if b.SetName != "" {
		set = append(set, bson.E{Key: "setName", Value: b.SetName})
	}
	if !b.SetID.IsZero() {
		set = append(set, bson.E{Key: "setId", Value: b.SetID})
	}
	_, err := s.db.Collection(backendsColl).UpdateByID(ctx, b.ID, bson.D{
		{Key: "$set", Value: set},
		{Key: "$setOnInsert", Value: bson.D{{Key: "topologyTime", Value: now}}},
	}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("register backend %s: %w", b.ID, err)
	}
	return s.Refresh(ctx)
}

type pulseDoc struct {
	ID    string        `bson:"_id"`
	Token bson.ObjectID `bson:"token"`
	N     int64         `bson:"n"`
}

// NotePulse remembers how far a backend has counted. The backend must have written it before, so
// that a backend that says less was restored from a copy that is older.
func (s *Store) NotePulse(ctx context.Context, id string, token bson.ObjectID, n int64) error {
	_, err := s.db.Collection(pulsesColl).UpdateOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "token", Value: token}},
		bson.D{{Key: "$max", Value: bson.D{{Key: "n", Value: n}}}}, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) { // of a backend that had the id before, or made by another proxy at this moment
		_, err = s.db.Collection(pulsesColl).ReplaceOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "token", Value: bson.D{{Key: "$ne", Value: token}}}}, pulseDoc{id, token, n})
	}
	if err != nil {
		return fmt.Errorf("note the pulse of backend %s: %w", id, err)
	}
	return nil
}

// Pulse returns what NotePulse has remembered of a backend; 0 if nothing.
func (s *Store) Pulse(ctx context.Context, id string, token bson.ObjectID) (int64, error) {
	var d pulseDoc
	err := s.db.Collection(pulsesColl).FindOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "token", Value: token}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return 0, fmt.Errorf("read the pulse of backend %s: %w", id, err)
	}
	return d.N, nil
}

// SetDraining says that a backend is to be emptied.
func (s *Store) SetDraining(ctx context.Context, id string) error {
	_, err := s.updateBackend(ctx, id, bson.D{}, bson.D{{Key: "draining", Value: true}, {Key: "drainedAt", Value: time.Time{}}})
	return err
}

// CancelDraining says that a backend is to stay after all. It reports whether it was being emptied.
func (s *Store) CancelDraining(ctx context.Context, id string) (was bool, err error) {
	return s.updateBackend(ctx, id, bson.D{{Key: "draining", Value: true}}, bson.D{{Key: "draining", Value: false}, {Key: "drainedAt", Value: time.Time{}}})
}

// SetDrained says since when a backend that is being emptied is empty (zero: it is not).
func (s *Store) SetDrained(ctx context.Context, id string, at time.Time) error {
	_, err := s.updateBackend(ctx, id, bson.D{{Key: "draining", Value: true}}, bson.D{{Key: "drainedAt", Value: at}})
	return err
}

// updateBackend changes a backend of which cond holds, and reports whether it was there.
func (s *Store) updateBackend(ctx context.Context, id string, cond, set bson.D) (bool, error) {
	res, err := s.db.Collection(backendsColl).UpdateOne(ctx, append(bson.D{{Key: "_id", Value: id}}, cond...), bson.D{{Key: "$set", Value: set}})
	if err != nil {
		return false, fmt.Errorf("mark backend %s: %w", id, err)
	}
	return res.MatchedCount == 1, s.Refresh(ctx)
}

// RemoveBackend takes a backend out of the fleet.
func (s *Store) RemoveBackend(ctx context.Context, id string) error {
	if _, err := s.db.Collection(backendsColl).DeleteOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
		return fmt.Errorf("remove backend %s: %w", id, err)
	}
	return s.Refresh(ctx)
}

// LastNumber is the highest number that NextNumber has returned, read linearizably; 0 if there is
// none. A backend that has seen a higher one knows more than this catalog does.
func (s *Store) LastNumber(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, linearizableWait)
	defer cancel()
	var d struct {
		N int64 `bson:"n"`
	}
	c := s.db.Collection(countersColl, options.Collection().SetReadConcern(readconcern.Linearizable()))
	err := c.FindOne(ctx, bson.D{{Key: "_id", Value: numbersID}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return 0, fmt.Errorf("read the last number: %w", err)
	}
	return d.N, nil
}
