package router

import (
	"context"
	"errors"
	"strings"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// ensureDatabase registers db, on the backend with the least data, if the catalog does not know it yet. It is called
// before a write; reads of an unknown database find nothing and register nothing.
func (r *Router) ensureDatabase(ctx context.Context, db string) error {
	if r.cfg.Table.View().Catalog.Database(db) != nil {
		return nil
	}
	if db == "config" {
		return wire.Errorf(wire.CommandNotSupported, "database 'config' is the proxy's own and cannot be written to")
	}
	primary, err := r.cfg.Reshaper.LeastLoaded(ctx)
	if err != nil {
		return err
	}
	if db == "admin" {
		primary = r.cfg.CatalogBackend
	}
	if err := r.cfg.Catalog.CreateDatabase(ctx, db, primary); err != nil {
		return err
	}
	if r.cfg.Table.View().Catalog.Database(db) == nil {
		return wire.Errorf(wire.InternalError, "database '%s' was registered and is not to be seen", db)
	}
	return nil
}

// database returns a database that clients see, nil when there is none. One that another proxy was told to write to in the very moment in which it was dropped is marked as dropped and has
// something all the same: what is there decides, and the mark is taken away.
func (r *Router) database(ctx context.Context, name string) (*catalog.Database, error) {
	view := r.cfg.Table.View()
	d := view.Catalog.Databases[name]
	if d == nil || !d.Dropped {
		return d, nil
	}
	there := false
	for c := range view.Mapped {
		there = there || c.DB == name && !c.Dropped()
	}
	if !there {
		infos, err := r.rawCollections(ctx, name, d.Primary)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			coll := info.Lookup("name").StringValue()
			there = there || view.Catalog.Maps[name+"."+coll] == nil && !catalog.IsPhysicalName(coll) && !strings.HasPrefix(coll, "system.")
		}
	}
	if !there {
		return nil, nil
	}
	if err := r.cfg.Catalog.CreateDatabase(ctx, name, d.Primary); err != nil {
		return nil, err
	}
	return r.cfg.Table.View().Catalog.Databases[name], nil
}

// ensureCollection registers ns's database and, when its newest map says that it was dropped, has the collection made
// anew. It is called before a write that creates what it writes to. Where nothing is to be done it costs two look-ups.
func (r *Router) ensureCollection(ctx context.Context, db, ns string) error {
	if err := r.ensureDatabase(ctx, db); err != nil {
		return err
	}
	if c := r.cfg.Table.View().Collection(ns); c == nil || !c.Dropped() {
		return nil
	}
	return r.cfg.Reshaper.Create(ctx, ns, nil)
}

// errUnknownDB stops within when a read names a database that does not exist.
var errUnknownDB = errors.New("router: unknown database")

// allParts plans for every partition of a collection.
func allParts(c *partition.Collection) ([]*partition.Part, error) {
	if c == nil {
		return nil, errUnknownDB
	}
	return c.Parts, nil
}
