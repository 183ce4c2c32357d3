package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// Fleet is the collection of ours on a backend that says which backend of which fleet it is.
const Fleet = "fleet"

const fleetID = "fleet"

// identityDoc is the one document of Fleet. Versions before this one wrote the fleet as clusterId,
// and nothing else. They do not start on a backend without that field, which is right: they drop
// what no map names, without evidence.
type identityDoc struct {
	ID        string        `bson:"_id"`
	Fleet     bson.ObjectID `bson:"fleet,omitempty"`
	Backend   string        `bson:"backend,omitempty"`
	Token     bson.ObjectID `bson:"token,omitempty"`
	Seen      int64         `bson:"seen,omitempty"`
	Pulse     int64         `bson:"pulse,omitempty"`
	ClusterID bson.ObjectID `bson:"clusterId,omitempty"`
}

// Identity is what a server says of itself.
type Identity struct {
	// Fleet is the clusterId of the catalog that it belongs to; zero if it belongs to none.
	Fleet bson.ObjectID
	// Backend is its id in that fleet; empty if only an older version has marked it.
	Backend string
	// Token is a random id that the catalog remembers as well: a server with another one is another.
	Token bson.ObjectID
	// Seen is the highest number of a change of a map that concerned it, Pulse how far it has counted.
	Seen, Pulse int64
	// SetName and SetID are its replica set's; the id is zero where the server does not tell it.
	SetName string
	SetID   bson.ObjectID
}

// ReadIdentity reads what the server behind b says of itself.
func ReadIdentity(ctx context.Context, b *backend.Backend) (Identity, error) {
	var d identityDoc
	err := DB(b).Collection(Fleet).FindOne(ctx, bson.D{{Key: "_id", Value: fleetID}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return Identity{}, wire.Errorf(wire.OperationFailed, "which fleet backend '%s' belongs to cannot be read: %v", b.ID(), err)
	}
	i := Identity{Fleet: d.Fleet, Backend: d.Backend, Token: d.Token, Seen: d.Seen, Pulse: d.Pulse}
	if i.Fleet.IsZero() {
		i.Fleet = d.ClusterID
	}
	reply, err := b.Run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return Identity{}, wire.Errorf(wire.OperationFailed, "backend '%s' does not answer hello: %v", b.ID(), err)
	}
	i.SetName, _ = reply.Lookup("setName").StringValueOK()
	if i.SetName == "" {
		return i, nil
	}
	// Not every server knows the command, and not every user may run it.
	if reply, err := b.Run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}); err == nil {
		i.SetID, _ = reply.Lookup("config", "settings", "replicaSetId").ObjectIDOK()
	}
	return i, nil
}

// complete reports whether the server was marked with an id of its own.
func (i Identity) complete() bool { return !i.Token.IsZero() && i.Backend != "" }

// check refuses a server that is not what the catalog has as backend id. known is the catalog's
// document of that id, nil if there is none. It does not judge what is not complete.
func (i Identity) check(s *catalog.Snapshot, id, host string) error {
	known := s.Backends[id]
	switch {
	case !i.Fleet.IsZero() && i.Fleet != s.ClusterID:
		return wire.Errorf(wire.OperationFailed, "backend '%s' (%s) belongs to the fleet with the clusterId %s, and this catalog is that of %s: name that fleet's catalog (--catalog), "+
			"or, if that fleet is no more, drop the database '%s' on the backend", id, host, i.Fleet.Hex(), s.ClusterID.Hex(), catalog.MemberDB)
	case i.complete() && i.Backend != id:
		return wire.Errorf(wire.IllegalOperation, "the server at %s is the backend '%s' of this fleet, and it was given as '%s': one server has one id, and each id its own server; nothing was registered",
			host, i.Backend, id)
	case known == nil || known.Token.IsZero():
		return nil
	case !i.complete():
		return wire.Errorf(wire.IllegalOperation, "the server at %s was given as backend '%s', and does not have what that backend must have: its mark (database '%s') is missing. "+
			"It is another server, or was emptied, or was restored from a copy that is older than its joining the fleet; nothing was registered", host, id, catalog.MemberDB)
	case i.Token != known.Token:
		return wire.Errorf(wire.IllegalOperation, "the server at %s was the backend '%s' of this fleet once (mark %s); the catalog knows '%s' as another server (mark %s, last seen at %s); nothing was registered",
			host, id, i.Token.Hex(), id, known.Token.Hex(), known.Host)
	case known.SetName != "" && i.SetName != known.SetName, !known.SetID.IsZero() && !i.SetID.IsZero() && i.SetID != known.SetID:
		return wire.Errorf(wire.IllegalOperation, "backend '%s' (%s) has the right mark, but is the replica set %s, and the catalog knows it as %s: its files are a copy of the backend's, or the set was initiated anew. "+
			"If it is what the backend is from now on, unset setName and setId of {_id: '%s'} in %s.backends; nothing was registered",
			id, host, setText(i.SetName, i.SetID), setText(known.SetName, known.SetID), id, catalog.DB)
	}
	return nil
}

func setText(name string, id bson.ObjectID) string {
	switch {
	case name == "":
		return "of none (a standalone)"
	case id.IsZero():
		return "'" + name + "'"
	}
	return "'" + name + "' (" + id.Hex() + ")"
}

// claim marks a server as backend id of the fleet, and returns the mark that counts: one that is
// there stays.
func claim(ctx context.Context, b *backend.Backend, cluster bson.ObjectID) (Identity, error) {
	of := DB(b).Collection(Fleet)
	fields := bson.D{{Key: "fleet", Value: cluster}, {Key: "backend", Value: b.ID()}, {Key: "token", Value: bson.NewObjectID()}}
	// What an older version has written is completed.
	_, err := of.UpdateOne(ctx, bson.D{{Key: "_id", Value: fleetID}, {Key: "clusterId", Value: cluster}},
		bson.D{{Key: "$set", Value: fields}, {Key: "$unset", Value: bson.D{{Key: "clusterId", Value: ""}}}})
	if err == nil {
		_, err = of.UpdateByID(ctx, fleetID, bson.D{{Key: "$setOnInsert", Value: fields}}, options.UpdateOne().SetUpsert(true))
	}
	if err != nil && !mongo.IsDuplicateKeyError(err) { // two do it at once: one of them has done it
		return Identity{}, wire.Errorf(wire.OperationFailed, "backend '%s' cannot be marked as this fleet's: %v", b.ID(), err)
	}
	return ReadIdentity(ctx, b)
}

// Disown takes the mark of the fleet from a backend that leaves it, which may then belong to another.
func Disown(ctx context.Context, b *backend.Backend, s *catalog.Snapshot) error {
	res, err := DB(b).Collection(Fleet).DeleteOne(ctx, bson.D{{Key: "_id", Value: fleetID}, {Key: "fleet", Value: s.ClusterID}, {Key: "backend", Value: b.ID()}})
	if err != nil || res.DeletedCount == 0 {
		return err
	}
	_, err = DB(b).Collection(Collections).DeleteMany(ctx, bson.D{})
	return err
}

// ErrOther says that a server is not the backend that it is taken for.
var ErrOther = errors.New("the server is not the backend that it is taken for")

// own matches the document of Fleet on a backend that is what the snapshot knows it as.
func own(b *backend.Backend, s *catalog.Snapshot) bson.D {
	filter := bson.D{{Key: "_id", Value: fleetID}, {Key: "fleet", Value: s.ClusterID}, {Key: "backend", Value: b.ID()}}
	if known := s.Backends[b.ID()]; known != nil && !known.Token.IsZero() {
		filter = append(filter, bson.E{Key: "token", Value: known.Token})
	}
	return filter
}

// Current makes sure, right before something is done on a backend that cannot be undone, that the
// server is that backend still, and that the catalog is not older than what the backend has seen.
func Current(ctx context.Context, b *backend.Backend, store *catalog.Store) error {
	var d identityDoc
	err := DB(b).Collection(Fleet).FindOne(ctx, own(b, store.Snapshot())).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return fmt.Errorf("backend '%s' (%s): %w", b.ID(), b.HostString(), ErrOther)
	}
	if err != nil {
		return err
	}
	return notOlder(ctx, b.ID(), d.Seen, store)
}

// See notes on a backend that the change of a map with that number concerns it. A catalog that has
// not given out the number has been restored from an older copy.
func See(ctx context.Context, b *backend.Backend, store *catalog.Store, number int64) error {
	res, err := DB(b).Collection(Fleet).UpdateOne(ctx, own(b, store.Snapshot()), bson.D{{Key: "$max", Value: bson.D{{Key: "seen", Value: number}}}})
	if err == nil && res.MatchedCount == 0 {
		err = fmt.Errorf("backend '%s' (%s): %w", b.ID(), b.HostString(), ErrOther)
	}
	return err
}

// notOlder refuses a catalog that has not given out a number that a backend has seen.
func notOlder(ctx context.Context, id string, seen int64, store *catalog.Store) error {
	last, err := store.LastNumber(ctx)
	if err != nil {
		return err
	}
	if seen > last {
		return wire.Errorf(wire.OperationFailed, "the catalog is older than backend '%s': the backend has seen the change number %d, and the last one of the catalog is %d. "+
			"The catalog was restored from a copy; restore one that is newer. Nothing is changed and nothing is dropped", id, seen, last)
	}
	return nil
}

// Beat counts the pulse of a backend, first there and then in the catalog. A backend that has counted
// less than the catalog remembers does not catch up: it was restored from an older copy.
func Beat(ctx context.Context, b *backend.Backend, store *catalog.Store) error {
	known := store.Snapshot().Backends[b.ID()]
	if known == nil || known.Token.IsZero() {
		return nil
	}
	least, err := store.Pulse(ctx, b.ID(), known.Token)
	if err != nil {
		return err
	}
	filter := bson.D{{Key: "_id", Value: fleetID}, {Key: "token", Value: known.Token}}
	if least > 0 {
		filter = append(filter, bson.E{Key: "pulse", Value: bson.D{{Key: "$gte", Value: least}}})
	}
	var d identityDoc
	err = DB(b).Collection(Fleet).FindOneAndUpdate(ctx, filter,
		bson.D{{Key: "$inc", Value: bson.D{{Key: "pulse", Value: int64(1)}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d)
	if err != nil {
		return err
	}
	return store.NotePulse(ctx, b.ID(), known.Token, d.Pulse)
}

// hostsOf lists the hosts of "rs/h1:p,h2:p" or "h:p".
func hostsOf(host string) []string {
	if _, list, ok := strings.Cut(host, "/"); ok {
		host = list
	}
	return slices.DeleteFunc(strings.Split(strings.ToLower(host), ","), func(h string) bool { return h == "" })
}

func shareHost(a, b string) bool {
	theirs := hostsOf(b)
	return slices.ContainsFunc(hostsOf(a), func(h string) bool { return slices.Contains(theirs, h) })
}
