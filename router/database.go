package router

import (
	"context"
	"errors"

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
