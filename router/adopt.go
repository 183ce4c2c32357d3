package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// Adoption is what Adopt found: databases that backends have already, and whose each is to be.
type Adoption struct {
	cat *catalog.Store
	// primaries has the backend of each database that is to be registered.
	primaries map[string]string
	// Strays are collections, "db.collection on backend 'id'", of databases that live elsewhere. They
	// are served to nobody and left alone.
	Strays []string
}

// FindDatabases looks for databases that backends have and the catalog does not know: each is to be
// registered with its backend as the primary. It registers nothing. The error is 96 OperationFailed
// when a database that nobody knows is on two backends (both are named), or has a collection whose
// name only partitions may have. Of a database that is known the catalog says where it lives.
func FindDatabases(ctx context.Context, cat *catalog.Store, backends ...*backend.Backend) (*Adoption, error) {
	a := &Adoption{cat: cat, primaries: map[string]string{}}
	s := cat.Snapshot()
	for _, b := range backends {
		names, err := databasesOf(ctx, b)
		if err != nil {
			return nil, err
		}
		for _, db := range names {
			if err := a.look(ctx, s, b, db); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

// Register registers what was found.
func (a *Adoption) Register(ctx context.Context) error {
	for _, db := range sorted(a.primaries) {
		if err := a.cat.CreateDatabase(ctx, db, a.primaries[db]); err != nil {
			return err
		}
	}
	return nil
}

// databasesOf lists a backend's databases that clients may have made.
func databasesOf(ctx context.Context, b *backend.Backend) ([]string, error) {
	reply, err := b.Run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return nil, err
	}
	values, err := reply.Lookup("databases").Array().Values()
	if err != nil {
		return nil, wire.Errorf(wire.InternalError, "backend '%s' answered listDatabases without a list", b.ID())
	}
	var names []string
	for _, v := range values {
		doc, _ := v.DocumentOK()
		name, _ := doc.Lookup("name").StringValueOK()
		switch {
		case name == "admin" || name == "config" || name == "local" || catalog.IsInternalDB(name):
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// look judges the database db on b.
func (a *Adoption) look(ctx context.Context, s *catalog.Snapshot, b *backend.Backend, db string) error {
	known := s.Databases[db]
	if known != nil && known.Primary == b.ID() {
		return nil
	}
	colls, err := collectionNames(ctx, b, db)
	if err != nil {
		return err
	}
	physical, plain := "", ""
	for _, name := range colls {
		switch {
		case strings.HasPrefix(name, "system."):
			// The server's own; an empty system.views outlives a dropped database.
		case catalog.IsPhysicalName(name):
			physical = name
		case ownedByMap(s, b.ID(), db, name):
		case known != nil:
			a.Strays = append(a.Strays, db+"."+name+" on backend '"+b.ID()+"'")
		default:
			plain = name
		}
	}
	switch other := a.primaries[db]; {
	case plain == "":
		return nil // partitions of ours, or what a sweep will take
	case other != "":
		return wire.Errorf(wire.OperationFailed,
			"database '%s' is on backend '%s' and on backend '%s' (there with collection '%s'): a database can be adopted from one backend only; drop or rename one of the two",
			db, other, b.ID(), plain)
	case physical != "":
		return wire.Errorf(wire.OperationFailed,
			"database '%s' of backend '%s' has a collection '%s': names of that form are kept for partitions; rename it to have the database adopted", db, b.ID(), physical)
	}
	a.primaries[db] = b.ID()
	return nil
}

func collectionNames(ctx context.Context, b *backend.Backend, db string) ([]string, error) {
	names, err := b.Client().Database(db).ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return nil, wire.Errorf(wire.OperationFailed, "the collections of database '%s' on backend '%s' cannot be listed: %v", db, b.ID(), err)
	}
	return names, nil
}

// ownedByMap reports whether a map's partition, or an old home of one, is the plainly named collection of db on a backend.
func ownedByMap(s *catalog.Snapshot, backendID, db, name string) bool {
	m := s.Maps[db+"."+name]
	if m == nil {
		return false
	}
	for _, p := range m.Partitions {
		if p.Backend == backendID && p.Physical == name {
			return true
		}
	}
	for _, h := range m.Retired {
		if h.Backend == backendID && h.Physical == name {
			return true
		}
	}
	return m.Dropped
}
