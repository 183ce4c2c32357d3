package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// Adopt registers the databases that a backend has already, as they are: their primary becomes that backend. It is run for
// every backend at start, and by addShard. The error is 96 OperationFailed when a database is on another backend as
// well (both are named), or has a collection whose name only partitions may have, or when the backend is another fleet's; nothing has been registered then.
func Adopt(ctx context.Context, table *partition.Table, cat *catalog.Store, b *backend.Backend) error {
	if err := member.Own(ctx, b, table.View().Catalog); err != nil {
		return err
	}
	fresh, err := adoptions(ctx, table, b)
	if err != nil {
		return err
	}
	for _, db := range fresh {
		if err := cat.CreateDatabase(ctx, db, b.ID()); err != nil {
			return err
		}
	}
	return nil
}

// adoptions lists the databases of b that are to be registered.
func adoptions(ctx context.Context, table *partition.Table, b *backend.Backend) ([]string, error) {
	view := table.View()
	names, err := databasesOf(ctx, b)
	if err != nil {
		return nil, err
	}
	var fresh []string
	for _, db := range names {
		isNew, err := adoptable(ctx, view.Catalog, b, db)
		if err != nil {
			return nil, err
		}
		if isNew {
			fresh = append(fresh, db)
		}
	}
	return fresh, nil
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

// adoptable reports whether db, found on b, is to be registered with b as its primary.
func adoptable(ctx context.Context, s *catalog.Snapshot, b *backend.Backend, db string) (bool, error) {
	known := s.Databases[db]
	if known != nil && known.Primary == b.ID() {
		return false, nil
	}
	colls, err := collectionNames(ctx, b, db)
	if err != nil {
		return false, err
	}
	physical, plain := "", ""
	for _, name := range colls {
		switch {
		case strings.HasPrefix(name, "system."):
			// The server's own; an empty system.views outlives a dropped database.
		case catalog.IsPhysicalName(name):
			physical = name
		case !ownedByMap(s, b.ID(), db, name):
			plain = name
		}
	}
	switch {
	case plain == "":
		return false, nil // partitions of ours, or what a sweep will take
	case known != nil:
		return false, wire.Errorf(wire.OperationFailed,
			"database '%s' is on backend '%s' and on backend '%s' (there with collection '%s'): a database can be adopted from one backend only; drop or rename one of the two",
			db, known.Primary, b.ID(), plain)
	case physical != "":
		return false, wire.Errorf(wire.OperationFailed,
			"database '%s' of backend '%s' has a collection '%s': names of that form are kept for partitions; rename it to have the database adopted", db, b.ID(), physical)
	}
	return true, nil
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
