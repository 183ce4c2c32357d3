package splitter

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// sweepEvery is how often collections that nothing names are looked for.
const sweepEvery = time.Hour

// sweeps looks for such collections at the start, every hour, and some time after homes were dropped, when what was on its way to them has arrived.
func (s *Splitter) sweeps(ctx context.Context) {
	s.Sweep(ctx)
	hourly := time.NewTicker(sweepEvery)
	defer hourly.Stop()
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
		case <-hourly.C:
		}
		soon = nil
		s.Sweep(ctx)
	}
}

// Sweep drops physical collections that neither a newest map nor the record of a reshape names: mongod makes a dropped collection
// anew for a write that arrives late.
func (s *Splitter) Sweep(ctx context.Context) {
	for _, b := range s.cfg.Backends.All() {
		bctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		if err := s.sweepOne(bctx, b.ID()); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("backend", b.ID()).Msg("not swept for collections that nothing names")
		}
		cancel()
	}
}

func (s *Splitter) sweepOne(ctx context.Context, id string) error {
	b := s.cfg.Backends.Get(id)
	if b == nil {
		return nil // it has left
	}
	if err := member.Own(ctx, b, s.cfg.Catalog.Snapshot()); err != nil {
		return err
	}
	if err := s.sweepBoard(ctx, member.BoardOf(b)); err != nil {
		return err
	}
	body, err := b.Run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return err
	}
	var list struct {
		Databases []struct {
			Name string `bson:"name"`
		} `bson:"databases"`
	}
	if err := bson.Unmarshal(body, &list); err != nil {
		return err
	}
	for _, d := range list.Databases {
		if catalog.IsInternalDB(d.Name) || d.Name == "local" || d.Name == "config" || d.Name == "admin" {
			continue
		}
		if err := s.sweepDB(ctx, id, d.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Splitter) sweepDB(ctx context.Context, id, db string) error {
	all, err := s.cfg.Backends.Get(id).Client().Database(db).ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return err
	}
	known := s.knownHomes(id, db)
	for _, name := range all {
		// The buckets of a time-series collection go with it.
		if !catalog.IsPhysicalName(name) || known[name] || strings.HasPrefix(name, "system.") {
			continue
		}
		ns := db + "." + catalog.LogicalName(name)
		h := partition.Home{Backend: id, DB: db, Physical: name}
		needed, err := s.needed(ctx, ns, h)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		if err := s.upToDate(ctx, h); err != nil {
			return err
		}
		s.log.Info().Str("backend", id).Str("db", db).Str("physical", name).Msg("dropping a physical collection that nothing names")
		var we *wire.Error
		if err := s.dropHome(ctx, h); err != nil && !(errors.As(err, &we) && we.Code == wire.NamespaceNotFound) {
			return err
		}
	}
	return nil
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
