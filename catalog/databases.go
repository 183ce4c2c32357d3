package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/shardway/shardway/wire"
)

type databaseDoc struct {
	Name    string      `bson:"_id"`
	Lower   string      `bson:"lower"`
	Primary string      `bson:"primary"`
	UUID    bson.Binary `bson:"uuid"`
	Created time.Time   `bson:"created"`
	Dropped bool        `bson:"dropped,omitempty"`
}

// NewUUID makes a random UUID as BSON has it.
func NewUUID() bson.Binary {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: b}
}

func (s *Store) readDatabases(ctx context.Context, next *Snapshot) error {
	var rows []databaseDoc
	if err := s.all(ctx, databasesColl, &rows); err != nil {
		return err
	}
	for _, d := range rows {
		next.Databases[d.Name] = &Database{Name: d.Name, Primary: d.Primary, UUID: d.UUID, Created: d.Created.UTC(), Dropped: d.Dropped}
	}
	return nil
}

// all reads a whole small collection.
func (s *Store) all(ctx context.Context, coll string, rows any) error {
	cur, err := s.db.Collection(coll).Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, rows)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", coll, err)
	}
	return nil
}

// LookupDatabase takes a database that the catalog has into the snapshot. One that does not exist is no error; that is read linearizably.
func (s *Store) LookupDatabase(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, linearizableWait)
	defer cancel()
	err := s.db.Collection(databasesColl, options.Collection().SetReadConcern(readconcern.Linearizable())).FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Err()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil
	case err != nil:
		return fmt.Errorf("look for database %s: %w", name, err)
	}
	return s.Refresh(ctx)
}

// CreateDatabase registers a database with its primary backend. One that exists keeps its primary, which is no error; a name that differs from an
// existing one only in case is 13297 DatabaseDifferCase.
func (s *Store) CreateDatabase(ctx context.Context, name, primary string) error {
	for other, known := range s.Snapshot().Databases {
		if other != name && !known.Dropped && strings.EqualFold(other, name) {
			return wire.Errorf(wire.DatabaseDifferCase, "db already exists with different case already have: [%s] trying to create [%s]", other, name)
		}
	}
	d := databaseDoc{Name: name, Lower: strings.ToLower(name), Primary: primary, UUID: NewUUID(), Created: time.Now().UTC()}
	_, err := s.db.Collection(databasesColl).InsertOne(ctx, d)
	if err != nil && !alreadyThere(err) {
		return fmt.Errorf("register database %s: %w", name, err)
	}
	if err != nil {
		// It was dropped once, or somebody was faster.
		_, err := s.db.Collection(databasesColl).UpdateOne(ctx, bson.D{{Key: "_id", Value: name}, {Key: "dropped", Value: true}},
			bson.D{{Key: "$unset", Value: bson.D{{Key: "dropped", Value: ""}}}, {Key: "$set", Value: bson.D{{Key: "uuid", Value: d.UUID}, {Key: "created", Value: d.Created}}}})
		if err != nil {
			return fmt.Errorf("register database %s anew: %w", name, err)
		}
	}
	return s.Refresh(ctx)
}

// DropDatabase notes that a database was dropped. Its document stays, and with it its primary; its maps stay too: each ends in a version that says dropped.
func (s *Store) DropDatabase(ctx context.Context, name string) error {
	_, err := s.db.Collection(databasesColl).UpdateByID(ctx, name, bson.D{{Key: "$set", Value: bson.D{{Key: "dropped", Value: true}}}})
	if err != nil {
		return fmt.Errorf("note that database %s was dropped: %w", name, err)
	}
	return s.Refresh(ctx)
}
