package splitter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// change closes the gates of a collection, waits until nobody is inside, runs check, and inserts the map, which opens
// them again or retires them. When anything fails before the insert the gates are opened by a burnt map.
func (s *Splitter) change(ctx context.Context, c *partition.Collection, m *catalog.Map, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, wire.Errorf(wire.LockTimeout, "the collection %s is too busy to change its map", c.NS))
	defer cancel()
	gates, ok := s.cfg.Table.Close(c.NS, homesOfParts(c.Parts), m.V, partition.ClosedAll)
	if !ok {
		return errMapMoved(c.NS)
	}
	err := waitQuiet(ctx, gates)
	if err == nil && check != nil {
		err = check(ctx)
	}
	if err == nil {
		err = s.cfg.Catalog.InsertMap(ctx, m)
	}
	if err == nil {
		return nil
	}
	lost := errors.Is(err, catalog.ErrMapExists)
	if burnt := s.burn(context.WithoutCancel(ctx), c, m.V); burnt != nil {
		return errors.Join(err, burnt)
	}
	switch {
	case s.inserted(m):
		return nil
	case lost:
		return errMapMoved(c.NS)
	}
	return err
}

// inserted reports whether a map of which an insert of its version was lost, by whomever, is the newest: then it was this map's own
// insert whose answer had not come. Each change of a layout has an epoch of its own.
func (s *Splitter) inserted(m *catalog.Map) bool {
	newest := s.cfg.Catalog.Snapshot().Maps[m.NS]
	return newest != nil && newest.V == m.V && newest.Epoch == m.Epoch
}

func errMapMoved(ns string) error {
	return wire.Errorf(wire.ConflictingOperationInProgress, "the map of %s was changed by another operation meanwhile; try again", ns)
}

func waitQuiet(ctx context.Context, gates []*partition.Gate) error {
	for _, g := range gates {
		if err := g.WaitQuiet(ctx); err != nil {
			return err
		}
	}
	return nil
}

// burn ends a closing by inserting version v with the partitions as they are; losing that insert ends it just as well. It goes on
// until one of the two is known, since gates stay closed until then.
func (s *Splitter) burn(ctx context.Context, c *partition.Collection, v int64) error {
	m := burnt(c, v)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := s.cfg.Catalog.InsertMap(ctx, m)
		if err == nil || errors.Is(err, catalog.ErrMapExists) {
			return nil
		}
		s.log.Error().Err(err).Str("ns", c.NS).Int64("v", v).Msg("a closing could not be ended yet")
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return fmt.Errorf("the closing of %s is left open for the next start: %w", c.NS, err)
		case <-ctx.Done():
			return fmt.Errorf("the closing of %s is still open: %w", c.NS, context.Cause(ctx))
		}
	}
}

// burnt is version v of a collection's map with nothing changed.
func burnt(c *partition.Collection, v int64) *catalog.Map {
	m := &catalog.Map{NS: c.NS, V: v, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(), Burnt: true}
	if old := c.Map; old != nil {
		m.UUID, m.Epoch, m.Key, m.Hash, m.Dropped, m.Retired = old.UUID, old.Epoch, old.Key, old.Hash, old.Dropped, old.Retired
		m.Partitions = old.Partitions
		return m
	}
	for _, p := range c.Parts {
		m.Partitions = append(m.Partitions, catalog.Partition{Backend: p.Backend, Physical: p.Physical})
	}
	return m
}

func homesOf(db string, parts []catalog.Partition) []partition.Home {
	homes := make([]partition.Home, len(parts))
	for i, p := range parts {
		homes[i] = partition.Home{Backend: p.Backend, DB: db, Physical: p.Physical}
	}
	return homes
}

func homesOfParts(parts []*partition.Part) []partition.Home {
	homes := make([]partition.Home, len(parts))
	for i, p := range parts {
		homes[i] = p.Home
	}
	return homes
}

// dropUnnamed drops physical collections, each after the newest map has been read and does not name it. What fails is left to the sweep.
func (s *Splitter) dropUnnamed(ctx context.Context, ns string, homes []partition.Home) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, h := range homes {
		dropped, err := s.dropIfUnnamed(ctx, h)
		if err != nil {
			s.log.Warn().Err(err).Str("ns", ns).Str("backend", h.Backend).Msg("a physical collection could not be dropped yet")
		}
		if dropped && err == nil {
			s.cfg.Table.Forget(h)
		}
	}
}

// dropIfUnnamed drops a physical collection unless the newest map of any namespace names it. A plain name that belongs to a namespace without
// a map is the collection itself.
func (s *Splitter) dropIfUnnamed(ctx context.Context, h partition.Home) (dropped bool, err error) {
	named, err := s.cfg.Catalog.Named(ctx, h.Backend, h.DB, h.Physical)
	if err != nil || named {
		return false, err
	}
	if !catalog.IsPhysicalName(h.Physical) {
		m, err := s.cfg.Catalog.NewestMap(ctx, h.DB+"."+h.Physical)
		if err != nil || m == nil {
			return false, err
		}
	}
	return true, s.dropHome(ctx, h)
}

func (s *Splitter) dropHome(ctx context.Context, h partition.Home) error {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil
	}
	_, err := b.Run(ctx, h.DB, bson.D{{Key: "drop", Value: h.Physical}, majority})
	var we *wire.Error
	if errors.As(err, &we) && we.Code == wire.NamespaceNotFound {
		return nil
	}
	return err
}

// majority is the write concern of everything that the proxy writes on its own account.
var majority = bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
