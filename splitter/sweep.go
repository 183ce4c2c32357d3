package splitter

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// sweeps sweeps at the start, again and again, and some time after homes were dropped, when what was on its way to them has arrived.
func (s *Splitter) sweeps(ctx context.Context) {
	s.Sweep(ctx)
	regular := time.NewTicker(s.cfg.SweepEvery)
	defer regular.Stop()
	var soon <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dropped:
			if soon == nil {
				soon = time.After(s.cfg.SweepAfter)
			}
			continue
		case <-soon:
		case <-regular.C:
		}
		soon = nil
		s.Sweep(ctx)
	}
}

// Sweep drops physical collections of changes that are over: what a change made that was given up, and
// what a write that arrived late has made anew (mongod makes a dropped collection anew for an insert).
// It takes only what a record on the backend says may be dropped (evidence.go). Anything else that no
// map names is reported and left alone.
func (s *Splitter) Sweep(ctx context.Context) {
	for _, b := range s.cfg.Backends.All() {
		bctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		if err := s.sweepOne(bctx, b); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("backend", b.ID()).Msg("not swept for collections that nothing names")
		}
		cancel()
	}
}

func (s *Splitter) sweepOne(ctx context.Context, b *backend.Backend) error {
	if err := member.Current(ctx, b, s.cfg.Catalog); err != nil {
		return err
	}
	board := member.BoardOf(b)
	if err := s.sweepBoard(ctx, board); err != nil {
		return err
	}
	found, err := s.survey(ctx, b)
	if err != nil {
		return err
	}
	s.report(b.ID(), found.left)
	if err := board.RecordUsed(ctx, found.used); err != nil {
		return err
	}
	for _, name := range found.gone {
		if err := board.RecordDropped(ctx, name); err != nil {
			return err
		}
	}
	for _, h := range found.drops {
		if err := s.sweepHome(ctx, h); err != nil {
			return err
		}
	}
	return board.ForgetDropped(ctx)
}

// sweepHome drops one physical collection that may be dropped, as its record says.
func (s *Splitter) sweepHome(ctx context.Context, h partition.Home) error {
	ns := h.DB + "." + catalog.LogicalName(h.Physical)
	needed, err := s.needed(ctx, ns, h)
	if err != nil || needed {
		return err
	}
	if err := s.upToDate(ctx, h); err != nil {
		return err
	}
	s.log.Info().Str("backend", h.Backend).Str("db", h.DB).Str("physical", h.Physical).Msg("dropping a physical collection of a change that is over")
	err = s.dropOnEvidence(ctx, h, catalog.ID{}, abandoned)
	if errors.Is(err, errNoEvidence) {
		return nil // its record has changed since it was read
	}
	return err
}

// upToDate refuses a catalog that knows less than a backend: a floor there says that a namespace
// after which a physical collection may be named has had a version which the catalog has not, as
// when that was restored from a backup.
func (s *Splitter) upToDate(ctx context.Context, h partition.Home) error {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return wire.Errorf(wire.ShardNotFound, "backend '%s' has left", h.Backend)
	}
	floors, err := member.BoardOf(b).Floors(ctx)
	if err != nil {
		return err
	}
	for _, f := range floors {
		if db, coll := catalog.SplitNS(f.NS); db != h.DB || !catalog.IsNamedAfter(h.Physical, db, coll) {
			continue
		}
		m, err := s.cfg.Catalog.NewestMap(ctx, f.NS)
		if err != nil {
			return err
		}
		if m == nil || m.V < f.V {
			return wire.Errorf(wire.OperationFailed, "the catalog is older than backend '%s': '%s' has had the version %d there; nothing is dropped", h.Backend, f.NS, f.V)
		}
	}
	return nil
}

// knownHomes are the physical collections of a database on a backend that the snapshot's maps name, for which the catalog need not be asked one by one.
func (s *Splitter) knownHomes(backendID, db string) map[string]bool {
	known := map[string]bool{}
	for ns, m := range s.cfg.Catalog.Snapshot().Maps {
		if in, _ := catalog.SplitNS(ns); in != db {
			continue
		}
		for _, p := range m.Partitions {
			if p.Backend == backendID {
				known[p.Physical] = true
			}
		}
	}
	return known
}

// needed reports whether a physical collection is named by the newest map of any namespace or by a live record. Records are read before the
// map: what a record names moves into the map, never the other way.
func (s *Splitter) needed(ctx context.Context, ns string, h partition.Home) (bool, error) {
	s.mu.Lock()
	_, busy := s.locks[ns]
	s.mu.Unlock()
	if busy {
		return true, nil // whoever changes the map of ns cleans up himself
	}
	records, err := s.cfg.Catalog.ReshapesNow(ctx)
	if err != nil {
		return true, err
	}
	for _, r := range records {
		for _, o := range append(append([]catalog.RecordedHome{}, r.Inputs...), r.Outputs...) {
			if o.Backend == h.Backend && o.Physical == h.Physical {
				return true, nil
			}
		}
	}
	return s.cfg.Catalog.Named(ctx, h.Backend, h.DB, h.Physical)
}
