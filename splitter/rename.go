package splitter

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// Rename gives the collection from the name to, in the same database: to's next map names from's partitions, from's says that it
// was dropped, and both are inserted at one moment. Nothing is copied and no physical name changes. A collection to is 48
// NamespaceExists unless dropTarget, which drops it; a collection from that does not exist is 26 NamespaceNotFound.
func (s *Splitter) Rename(ctx context.Context, from, to string, dropTarget bool) error {
	if c := s.cfg.Table.View().Collection(to); c != nil && c.Sharded() && !dropTarget {
		return wire.Errorf(wire.NamespaceExists, "target namespace '%s' exists", to)
	}
	// A copy may take hours, and what it would make of the old names is of no use.
	s.cancelNS(from)
	s.cancelNS(to)
	unlock, err := s.lockBoth(ctx, from, to)
	if err != nil {
		return err
	}
	defer unlock()
	view := s.cfg.Table.View()
	source, target := view.Collection(from), view.Collection(to)
	switch {
	case source == nil || source.Dropped() || target == nil:
		return wire.Errorf(wire.NamespaceNotFound, "Source collection %s does not exist", from)
	case source.DB != target.DB:
		return wire.Errorf(wire.CommandFailed, "'%s' and '%s' are in different databases", from, to)
	}
	taken, gone := nextMap(target), nextMap(source)
	taken.Key, taken.Retired = source.Key, nil
	for _, p := range source.Parts {
		taken.Partitions = append(taken.Partitions, catalog.Partition{Range: p.Range, Backend: p.Backend, Physical: p.Physical, Birth: p.Info.Birth})
	}
	if source.Map != nil {
		taken.Hash, taken.UUID, taken.Retired = source.Map.Hash, source.Map.UUID, source.Map.Retired
	}
	gone.Dropped, gone.Retired = true, nil
	check := func(ctx context.Context) error { return s.renamable(ctx, source, target, dropTarget) }
	if err := s.changeBoth(ctx, source, gone, target, taken, check); err != nil {
		return err
	}
	s.dropUnnamed(context.WithoutCancel(ctx), to, homesOfParts(target.Parts))
	return nil
}

// renamable looks, behind closed gates, whether source exists and target does not.
func (s *Splitter) renamable(ctx context.Context, source, target *partition.Collection, dropTarget bool) error {
	info, err := s.inspect(ctx, source)
	if err != nil {
		return err
	}
	if !info.exists {
		return wire.Errorf(wire.NamespaceNotFound, "Source collection %s does not exist", source.NS)
	}
	if dropTarget || target.Dropped() {
		return nil
	}
	if info, err = s.inspect(ctx, target); err != nil {
		return err
	}
	if info.exists {
		return wire.Errorf(wire.NamespaceExists, "target namespace '%s' exists", target.NS)
	}
	return nil
}

// lockBoth takes the locks of two namespaces, always in the same order.
func (s *Splitter) lockBoth(ctx context.Context, a, b string) (unlock func(), err error) {
	if b < a {
		a, b = b, a
	}
	first, err := s.lock(ctx, a)
	if err != nil {
		return nil, err
	}
	second, err := s.lock(ctx, b)
	if err != nil {
		first()
		return nil, err
	}
	return func() { second(); first() }, nil
}

// changeBoth is change for two collections whose maps are inserted at one moment.
func (s *Splitter) changeBoth(ctx context.Context, a *partition.Collection, ma *catalog.Map, b *partition.Collection, mb *catalog.Map, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, wire.Errorf(wire.LockTimeout, "the collections %s and %s are too busy to change their maps", a.NS, b.NS))
	defer cancel()
	whole := context.WithoutCancel(ctx)
	gatesA, ok := s.cfg.Table.Close(a.NS, homesOfParts(a.Parts), ma.V, partition.ClosedAll)
	if !ok {
		return errMapMoved(a.NS)
	}
	gatesB, ok := s.cfg.Table.Close(b.NS, homesOfParts(b.Parts), mb.V, partition.ClosedAll)
	if !ok {
		return errors.Join(errMapMoved(b.NS), s.burn(whole, a, ma.V))
	}
	err := waitQuiet(ctx, append(gatesA, gatesB...))
	if err == nil {
		err = check(ctx)
	}
	if err == nil {
		err = s.cfg.Catalog.InsertMaps(ctx, ma, mb)
	}
	if err == nil {
		return nil
	}
	lost := errors.Is(err, catalog.ErrMapExists)
	// One of the two may have been inserted by somebody else, or both by us with the answer lost: burning ends either closing, and loses
	// to what is there.
	if burnt := errors.Join(s.burn(whole, a, ma.V), s.burn(whole, b, mb.V)); burnt != nil {
		return errors.Join(err, burnt)
	}
	switch {
	case s.inserted(ma) && s.inserted(mb):
		return nil
	case lost:
		return errMapMoved(a.NS)
	}
	return err
}
