package router

import (
	"context"
	"errors"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// lookup returns how to reach ns. That something does not exist is only believed after looking: another proxy may have made it, and have told a client, before
// this one has heard of it. It is nil for a database that does not exist.
func (r *Router) lookup(ctx context.Context, ns string) (*partition.Collection, error) {
	for {
		c := r.cfg.Table.View().Collection(ns)
		switch {
		case c == nil:
			return r.lookupDatabase(ctx, ns)
		case c.Absent == nil:
			return c, nil
		}
		err := r.stillAbsent(ctx, c)
		if errors.Is(err, partition.ErrReplan) {
			continue
		}
		return c, err
	}
}

// lookupDatabase asks the catalog for a database that this process does not know.
func (r *Router) lookupDatabase(ctx context.Context, ns string) (*partition.Collection, error) {
	db, _ := catalog.SplitNS(ns)
	if db == "config" || catalog.IsInternalDB(db) || r.cfg.Catalog == nil {
		return nil, nil
	}
	if err := r.cfg.Catalog.LookupDatabase(ctx, db); err != nil {
		return nil, wire.Errorf(wire.HostUnreachable, "whether database '%s' exists cannot be told: the catalog does not answer", db)
	}
	return r.cfg.Table.View().Collection(ns), nil
}

// stillAbsent passes the gate of a dropped collection: whoever makes it anew closes that first, in every proxy. The lease says that this one would have been told.
func (r *Router) stillAbsent(ctx context.Context, c *partition.Collection) error {
	at := []*partition.Part{c.Absent}
	if err := r.joined(ctx, at); err != nil {
		return err
	}
	if err := partition.Enter(ctx, at, partition.Read); err != nil {
		return err
	}
	defer partition.Leave(at, partition.Read)
	if r.cfg.Member == nil {
		return nil
	}
	if l := r.cfg.Member.Lease(c.Absent.Backend); !l.Valid() || !l.Admits(c.Absent) {
		return &leaseError{backend: c.Absent.Backend, unsent: true}
	}
	return nil
}
