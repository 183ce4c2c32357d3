package splitter

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// primaryRounds is how often movePrimary looks for collections that were made while it moved the others.
const primaryRounds = 20

// MovePrimary moves a database's unsharded collections and views to a backend, one after the other and each online, and makes that the database's primary.
// A collection gets its first map for it, with nothing copied, and is then moved as a partition is. Writes to a capped or a time-series collection wait while it is copied; one
// that would take longer than StandalonePause is refused (262). One that failed half-way goes on when it is run again. 26 for a database, 70 for a backend that is not known.
func (s *Splitter) MovePrimary(ctx context.Context, db, to string) error {
	known := s.cfg.Catalog.Snapshot()
	switch b := known.Backends[to]; {
	case s.cfg.Backends.Get(to) == nil:
		return wire.Errorf(wire.ShardNotFound, "shard '%s' does not exist", to)
	case known.Databases[db] == nil:
		return wire.Errorf(wire.NamespaceNotFound, "database '%s' is not known", db)
	case b != nil && b.Draining:
		return wire.Errorf(wire.IllegalOperation, "shard '%s' is draining and takes no database", to)
	}
	from := known.Databases[db].Primary
	if from != to {
		s.cfg.Catalog.AppendChange(ctx, s.cfg.Server, "movePrimary.start", db, bson.D{{Key: "from", Value: from}, {Key: "to", Value: to}})
	}
	err := s.movePrimary(ctx, db, from, to)
	switch {
	case err != nil:
		s.cfg.Catalog.AppendChange(context.WithoutCancel(ctx), s.cfg.Server, "movePrimary.error", db, bson.D{{Key: "from", Value: from}, {Key: "to", Value: to}, {Key: "errmsg", Value: err.Error()}})
	case from != to:
		s.cfg.Catalog.AppendChange(ctx, s.cfg.Server, "movePrimary.commit", db, bson.D{{Key: "from", Value: from}, {Key: "to", Value: to}})
	}
	return err
}

func (s *Splitter) movePrimary(ctx context.Context, db, from, to string) error {
	for range primaryRounds {
		if from != to {
			plain, err := s.plainCollections(ctx, db, from)
			if err != nil {
				return err
			}
			for _, ns := range plain {
				if err := s.firstMap(ctx, ns); err != nil {
					return err
				}
			}
		}
		for _, ns := range s.unshardedElsewhere(db, to) {
			if err := s.moveUnsharded(ctx, ns, to); err != nil {
				return err
			}
		}
		if from == to {
			return nil
		}
		done, err := s.switchPrimary(ctx, db, from, to)
		if done || err != nil {
			return err
		}
	}
	return wire.Errorf(wire.ConflictingOperationInProgress, "collections are made in database '%s' faster than they can be moved; try again", db)
}

// plainCollections lists the namespaces of a database that have no map yet and a collection or a view on its primary.
func (s *Splitter) plainCollections(ctx context.Context, db, primary string) ([]string, error) {
	b := s.cfg.Backends.Get(primary)
	if b == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", primary)
	}
	specs, err := b.Client().Database(db).ListCollectionSpecifications(ctx, bson.D{})
	if err != nil {
		return nil, wire.Errorf(wire.OperationFailed, "the collections of database '%s' cannot be listed: %v", db, err)
	}
	maps := s.cfg.Catalog.Snapshot().Maps
	var plain []string
	for _, c := range specs {
		ns := db + "." + c.Name
		if !strings.HasPrefix(c.Name, "system.") && !catalog.IsPhysicalName(c.Name) && maps[ns] == nil {
			plain = append(plain, ns)
		}
	}
	return plain, nil
}

// unshardedElsewhere lists a database's unsharded namespaces with a map that do not live on a backend.
func (s *Splitter) unshardedElsewhere(db, backendID string) []string {
	var all []string
	s.cfg.Table.View().Mapped(func(c *partition.Collection) bool {
		if c.DB == db && !c.Sharded() && !c.Dropped() && c.Parts[0].Backend != backendID {
			all = append(all, c.NS)
		}
		return true
	})
	return all
}

// firstMap gives a collection without a map its first: as it is, unsharded. One that has a map, or is gone, is left alone.
func (s *Splitter) firstMap(ctx context.Context, ns string) error {
	return s.change(ctx, ns, "firstMap", func(ctx context.Context, c *partition.Collection) (*edit, error) {
		if c == nil || c.Map != nil {
			return nil, nil
		}
		info, err := s.inspect(ctx, c)
		if err != nil || !info.exists {
			return nil, err
		}
		m := s.nextMap(c)
		m.UUID = info.uuid
		p := c.Parts[0]
		m.Partitions = []catalog.Partition{{Backend: p.Backend, Physical: p.Physical}}
		return &edit{m: m}, nil
	})
}

// errThere says that there is nothing to move.
var errThere = errors.New("there already")

// moveUnsharded brings an unsharded collection with a map to a backend. One that has been dropped or sharded meanwhile is left alone.
func (s *Splitter) moveUnsharded(ctx context.Context, ns, to string) error {
	err := s.reshape(ctx, ns, "move", func(c *partition.Collection) ([]*partition.Part, []output, error) {
		if c.Sharded() || c.Dropped() || c.Parts[0].Backend == to {
			return nil, nil, errThere
		}
		return c.Parts, []output{{Home: partition.Home{Backend: to}, rg: shardkey.Range{}}}, nil
	})
	if errors.Is(err, errThere) {
		return nil
	}
	return err
}

// errFull says that a database still has collections without a map.
var errFull = errors.New("collections without a map are left")

// switchPrimary changes a database's primary if it has no collection without a map any more: the database's own map says where it is, and its next version is
// inserted as any other map is, behind the closed gates of all the database's namespaces without a map, so that nobody makes a collection meanwhile. It reports false
// when there is one.
func (s *Splitter) switchPrimary(ctx context.Context, db, from, to string) (done bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, changeLimit, wire.Errorf(wire.LockTimeout, "database '%s' is too busy to change its primary; try again", db))
	defer cancel()
	unlock, err := s.lock(ctx, db)
	if err != nil {
		return false, err
	}
	defer unlock()
	for wait, try := s.cfg.Backoff, 1; ; wait, try = min(2*wait, 5*time.Second), try+1 {
		err := s.switchOnce(ctx, db, from, to, try)
		var again retryable
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, errFull):
			return false, nil
		case !errors.As(err, &again):
			return false, err
		}
		if perr := pause(ctx, wait); perr != nil {
			return false, errors.Join(perr, err)
		}
	}
}

func (s *Splitter) switchOnce(ctx context.Context, db, from, to string, try int) error {
	rec, err := s.record(ctx, db, "movePrimary", []partition.Home{{Backend: from, DB: db, Physical: catalog.PrimaryHome}}, nil)
	if err != nil {
		return err
	}
	kept, done := s.keep(ctx, rec, nil)
	defer done()
	if err := s.runSwitch(kept, rec, db, from, to, try); err != nil {
		return s.undo(context.WithoutCancel(ctx), rec, err)
	}
	s.finish(context.WithoutCancel(ctx), rec)
	return nil
}

func (s *Splitter) runSwitch(ctx context.Context, rec *catalog.Reshape, db, from, to string, try int) error {
	if err := s.awaitGone(ctx, []partition.Home{{Backend: from}}); err != nil {
		return retryable{err}
	}
	if err := s.cfg.Catalog.Refresh(ctx); err != nil {
		return retryable{err}
	}
	snap := s.cfg.Catalog.Snapshot()
	d := snap.Databases[db]
	if d == nil || d.Primary != from {
		return wire.Errorf(wire.ConflictingOperationInProgress, "the primary of database '%s' was changed by another operation meanwhile", db)
	}
	m := &catalog.Map{NS: db, V: 1, UUID: d.UUID, Epoch: bson.NewObjectID(), Reshape: rec.ID, Partitions: []catalog.Partition{{Backend: to, Physical: catalog.PrimaryHome}}}
	if old := snap.Primaries[db]; old != nil {
		m.V = old.V + 1
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.cfg.PauseBudget, errors.New("the gates were closed for longer than the pause budget"))
	defer cancel()
	err := s.owner().Close(budget, rec, m.V, map[string][]string{from: nil}, protocol.Closing{NS: db, DB: db, Abort: try > patientTries})
	if err == nil {
		err = s.nothingPlain(budget, db, from, to)
	}
	if errors.Is(err, errFull) {
		return err
	}
	if err != nil {
		return retryable{err}
	}
	return s.owner().Flip(context.WithoutCancel(ctx), rec, m)
}

// nothingPlain looks, behind closed gates, whether anything of a database would stay behind at its former primary. A change of the map of one of its namespaces
// that is gated there looks for this one (primaryStands); one of the two sees the other.
func (s *Splitter) nothingPlain(ctx context.Context, db, from, to string) error {
	all, err := s.cfg.Catalog.ReshapesNow(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if in, coll := catalog.SplitNS(r.NS); in == db && coll != "" && r.Phase != catalog.Retiring {
			return wire.Errorf(wire.ConflictingOperationInProgress, "the map of %s is being changed", r.NS)
		}
	}
	if err := s.cfg.Catalog.Refresh(ctx); err != nil {
		return err
	}
	plain, err := s.plainCollections(ctx, db, from)
	if err == nil && (len(plain) > 0 || len(s.unshardedElsewhere(db, to)) > 0) {
		err = errFull
	}
	return err
}

// cancelReshape asks for the reshape of a namespace to be given up, by whatever process runs it: one that is about to be dropped or renamed.
func (s *Splitter) cancelReshape(ctx context.Context, ns string) error {
	s.cancelNS(ns)
	return s.cfg.Catalog.CancelReshapes(ctx, ns)
}
