package member

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// Fleet is the collection of ours on a backend that says which catalog it belongs to.
const Fleet = "fleet"

// ofFleet is its one document.
type ofFleet struct {
	ID        string        `bson:"_id"`
	ClusterID bson.ObjectID `bson:"clusterId"`
}

const fleetID = "fleet"

// Own makes sure that a backend belongs to the catalog that s is of, and to no other: what a catalog does not name on a backend of its own is dropped, so a proxy
// that was given the wrong catalog would drop everything. A backend that belongs to none is taken, unless it has partitions and none of them is in s. The error
// is 96 OperationFailed and says what to do.
func Own(ctx context.Context, b *backend.Backend, s *catalog.Snapshot) error {
	of := DB(b).Collection(Fleet)
	have := ofFleet{}
	err := of.FindOne(ctx, bson.D{{Key: "_id", Value: fleetID}}).Decode(&have)
	if errors.Is(err, mongo.ErrNoDocuments) {
		if err := noneForeign(ctx, b, s); err != nil {
			return err
		}
		err = of.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: fleetID}},
			bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "clusterId", Value: s.ClusterID}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&have)
		if mongo.IsDuplicateKeyError(err) { // two took it at once
			err = of.FindOne(ctx, bson.D{{Key: "_id", Value: fleetID}}).Decode(&have)
		}
	}
	if err != nil {
		return wire.Errorf(wire.OperationFailed, "which fleet backend '%s' belongs to cannot be read: %v", b.ID(), err)
	}
	if have.ClusterID != s.ClusterID {
		return wire.Errorf(wire.OperationFailed, "backend '%s' belongs to the fleet with the clusterId %s, and this catalog is that of %s: name that fleet's catalog (--catalog), "+
			"or, if that fleet is no more, drop the database '%s' on the backend", b.ID(), have.ClusterID.Hex(), s.ClusterID.Hex(), catalog.MemberDB)
	}
	return nil
}

// Disown takes the mark of the catalog that s is of from a backend, which may then belong to another.
func Disown(ctx context.Context, b *backend.Backend, s *catalog.Snapshot) error {
	_, err := DB(b).Collection(Fleet).DeleteOne(ctx, ofFleet{ID: fleetID, ClusterID: s.ClusterID})
	return err
}

// noneForeign refuses a backend that has partitions of which s names none.
func noneForeign(ctx context.Context, b *backend.Backend, s *catalog.Snapshot) error {
	for _, m := range s.Maps {
		for _, p := range m.Partitions {
			if p.Backend == b.ID() && catalog.IsPhysicalName(p.Physical) {
				return nil
			}
		}
	}
	dbs, err := b.Client().ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return wire.Errorf(wire.OperationFailed, "the databases of backend '%s' cannot be listed: %v", b.ID(), err)
	}
	for _, db := range dbs {
		if catalog.IsInternalDB(db) {
			continue
		}
		names, err := b.Client().Database(db).ListCollectionNames(ctx, bson.D{})
		if err != nil {
			return wire.Errorf(wire.OperationFailed, "the collections of database '%s' on backend '%s' cannot be listed: %v", db, b.ID(), err)
		}
		for _, name := range names {
			if catalog.IsPhysicalName(name) && !strings.HasPrefix(name, "system.") {
				return wire.Errorf(wire.OperationFailed, "backend '%s' has a partition '%s.%s', and this catalog names none on it: name the catalog of the fleet that it belongs to "+
					"(--catalog); collections of that form that are in no fleet must be renamed or dropped first", b.ID(), db, name)
			}
		}
	}
	return nil
}
