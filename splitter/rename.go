package splitter

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	if err := errors.Join(s.cancelReshape(ctx, from), s.cancelReshape(ctx, to)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, changeLimit, wire.Errorf(wire.LockTimeout, "the collections %s and %s are too busy to change their maps", from, to))
	defer cancel()
	unlock, err := s.lockBoth(ctx, from, to)
	if err != nil {
		return err
	}
	defer unlock()
	for wait, try := s.cfg.Backoff, 1; ; wait, try = min(2*wait, 5*time.Second), try+1 {
		err := s.renameOnce(ctx, from, to, dropTarget, try)
		var again retryable
		if err == nil || !errors.As(err, &again) {
			return err
		}
		if perr := pause(ctx, wait); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// side is one of the two namespaces of a rename.
type side struct {
	c   *partition.Collection
	m   *catalog.Map
	rec *catalog.Reshape
	// replaced says that there was a collection, which another one takes the place of.
	replaced bool
}

// renameOnce is one attempt: two records, the closings of both, two maps inserted at one moment.
func (s *Splitter) renameOnce(ctx context.Context, from, to string, dropTarget bool, try int) error {
	source, err := s.current(ctx, from)
	if err != nil {
		return err
	}
	target, err := s.current(ctx, to)
	if err != nil {
		return err
	}
	switch {
	case source == nil || source.Dropped() || target == nil:
		return wire.Errorf(wire.NamespaceNotFound, "Source collection %s does not exist", from)
	case source.DB != target.DB:
		return wire.Errorf(wire.CommandFailed, "'%s' and '%s' are in different databases", from, to)
	}
	sides := []*side{{c: source}, {c: target}}
	// Always in the same order, so that two renames do not wait for each other.
	order := slices.Clone(sides)
	slices.SortFunc(order, func(a, b *side) int { return strings.Compare(a.c.NS, b.c.NS) })
	for _, x := range order {
		if x.rec, err = s.record(ctx, x.c.NS, "rename", homesOfParts(gated(x.c)), nil); err != nil {
			break
		}
		var done func()
		ctx, done = s.keep(ctx, x.rec, nil)
		defer done()
	}
	if err == nil {
		err = s.runRename(ctx, sides[0], sides[1], dropTarget, try)
	}
	whole := context.WithoutCancel(ctx)
	for _, x := range order {
		switch {
		case x.rec == nil:
		case err != nil:
			if uerr := s.undo(whole, x.rec, err); uerr == nil {
				err = nil // both maps stand, or none
			}
		default:
			s.finish(whole, x.rec)
		}
	}
	return err
}

func (s *Splitter) runRename(ctx context.Context, source, target *side, dropTarget bool, try int) error {
	homes := homesOfParts(append(slices.Clone(gated(source.c)), gated(target.c)...))
	if err := s.answerable(ctx, homes); err != nil {
		return err
	}
	if err := s.awaitGone(ctx, homes); err != nil {
		return retryable{err}
	}
	for _, x := range []*side{source, target} {
		now, err := s.current(ctx, x.c.NS)
		if err != nil {
			return retryable{err}
		}
		if versionOf(now) != versionOf(x.c) || !samePlace(now, x.c) {
			return retryable{errMapMoved(x.c.NS)}
		}
	}
	s.renamed(source, target)
	for _, x := range []*side{source, target} {
		if err := s.identify(ctx, x.rec); err != nil {
			return retryable{err}
		}
	}
	for _, x := range []*side{source, target} {
		if err := s.closeGates(ctx, x.rec, x.m.V, gated(x.c), try); err != nil {
			return err
		}
		if err := s.primaryStands(ctx, x.c); err != nil {
			return err
		}
	}
	var old [2][]catalog.OldHome
	for i, x := range []*side{source, target} {
		var err error
		if old[i], err = s.replaced(ctx, x.rec, x.m, gated(x.c)); err != nil {
			return err
		}
	}
	if err := s.renamable(ctx, source.c, target, dropTarget); err != nil {
		return err
	}
	source.m.Retired = newest(old[0], source.m.Retired)
	if target.replaced {
		target.m.Retired = newest(old[1], target.m.Retired)
	}
	err := s.cfg.Catalog.InsertMaps(context.WithoutCancel(ctx), source.m, target.m)
	if errors.Is(err, catalog.ErrMapExists) {
		return retryable{errMapMoved(source.c.NS)}
	}
	return err
}

// renamed makes the maps that a rename inserts.
func (s *Splitter) renamed(source, target *side) {
	taken, gone := s.nextMap(target.c), s.nextMap(source.c)
	taken.Key = source.c.Key
	wholly(taken.Retired) // of another key, perhaps
	taken.Retired = append(taken.Retired, gone.Retired...)
	for _, p := range source.c.Parts {
		taken.Partitions = append(taken.Partitions, catalog.Partition{Range: p.Range, Backend: p.Backend, Physical: p.Physical, Birth: p.Info.Birth})
	}
	if from := source.c.Map; from != nil {
		taken.Hash, taken.UUID = from.Hash, from.UUID
	}
	gone.Dropped = true
	wholly(gone.Retired)
	gone.Reshape, taken.Reshape = source.rec.ID, target.rec.ID
	source.m, target.m = gone, taken
}

// renamable looks, behind closed gates, whether source exists and target does not.
func (s *Splitter) renamable(ctx context.Context, source *partition.Collection, target *side, dropTarget bool) error {
	info, err := s.inspect(ctx, source)
	if err != nil {
		return err
	}
	if !info.exists {
		return wire.Errorf(wire.NamespaceNotFound, "Source collection %s does not exist", source.NS)
	}
	if target.c.Dropped() {
		return nil
	}
	if info, err = s.inspect(ctx, target.c); err != nil {
		return err
	}
	if info.exists && !dropTarget {
		return wire.Errorf(wire.NamespaceExists, "target namespace '%s' exists", target.c.NS)
	}
	target.replaced = info.exists
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
