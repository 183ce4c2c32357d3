package splitter

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// takeOvers looks again and again, until ctx ends, for records that their owners do not renew any more, and takes them over: a record of which nothing has
// changed for a lease and a margin, by this process's own clock.
func (s *Splitter) takeOvers(ctx context.Context) {
	seen := map[string]sighting{}
	for pause(ctx, s.cfg.Renew/2) == nil {
		now := time.Now()
		all, err := s.cfg.Catalog.Reshapes(ctx)
		if err != nil {
			continue
		}
		there := map[string]bool{}
		for i := range all {
			rec := &all[i]
			there[rec.Slot] = true
			at := sighting{rec.Owner, rec.Epoch, rec.Renewals, rec.Phase, now}
			if old, ok := seen[rec.Slot]; ok && old.same(at) {
				at.since = old.since
			}
			seen[rec.Slot] = at
			// One of this process's own is taken over as well: it may be here because a swap was done whose answer was lost.
			if now.Sub(at.since) < s.cfg.Lease+s.cfg.Margin {
				continue
			}
			if err := s.takeOver(ctx, rec); err != nil && !errors.Is(err, catalog.ErrReshapeMoved) {
				s.log.Warn().Err(err).Str("ns", rec.NS).Str("kind", rec.Kind).Msg("a change that another process began could not be ended yet")
			}
		}
		for id := range seen {
			if !there[id] {
				delete(seen, id)
			}
		}
	}
}

// sighting is how a record looked, and since when.
type sighting struct {
	owner    catalog.ID
	epoch    int64
	renewals int64
	phase    catalog.Phase
	since    time.Time
}

func (a sighting) same(b sighting) bool {
	return a.owner == b.owner && a.epoch == b.epoch && a.renewals == b.renewals && a.phase == b.phase
}

// takeOver ends a change whose owner is silent: forward if it has flipped, back otherwise. The monitor begins anew what is still to be done, with fresh outputs.
func (s *Splitter) takeOver(ctx context.Context, rec *catalog.Reshape) error {
	phase, former := rec.Phase, rec.Server
	flipped, err := s.owner().TakeOver(ctx, rec, s.id, s.cfg.Server)
	if err != nil {
		return err
	}
	s.log.Info().Str("ns", rec.NS).Str("kind", rec.Kind).Str("phase", string(phase)).Str("from", former).Time("began", rec.Started).Bool("flipped", flipped).Msg("a change of another process is taken over and ended")
	kept, done := s.keep(ctx, rec, nil)
	defer done()
	if rec.Kind == kindDDL {
		return s.finishDDL(kept, rec)
	}
	if !flipped {
		return s.clean(kept, rec)
	}
	if phase == catalog.Closing {
		if err := s.expireLike(kept, rec); err != nil {
			return err
		}
	}
	s.finish(context.WithoutCancel(ctx), rec)
	return nil
}

// expireLike gives the outputs of a flipped reshape the expiry that the indexes of its inputs have: its former owner may not have come to it.
func (s *Splitter) expireLike(ctx context.Context, rec *catalog.Reshape) error {
	if len(rec.Inputs) == 0 || len(rec.Outputs) == 0 {
		return nil
	}
	db, _ := catalog.SplitNS(rec.NS)
	info, err := s.inspectHome(ctx, partition.Home{Backend: rec.Inputs[0].Backend, DB: db, Physical: rec.Inputs[0].Physical})
	if err != nil {
		return err
	}
	outputs := make([]partition.Home, len(rec.Outputs))
	for i, h := range rec.Outputs {
		outputs[i] = partition.Home{Backend: h.Backend, DB: db, Physical: h.Physical}
	}
	return s.expire(ctx, info.indexes, outputs)
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
	body, err := s.cfg.Backends.Get(id).Run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
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
		h := partition.Home{Backend: id, DB: db, Physical: name}
		needed, err := s.needed(ctx, db+"."+catalog.LogicalName(name), h)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		s.log.Info().Str("backend", id).Str("db", db).Str("physical", name).Msg("dropping a physical collection that nothing names")
		var we *wire.Error
		if err := s.dropHome(ctx, h); err != nil && !(errors.As(err, &we) && we.Code == wire.NamespaceNotFound) {
			return err
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
