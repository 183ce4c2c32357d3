package splitter

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

const (
	// primaryRounds is how often movePrimary looks for collections that were made while it moved the others.
	primaryRounds = 20
	// holdLimit is how long the making of collections in a database may be held up for the change of its primary.
	holdLimit = 5 * time.Second
)

// MovePrimary moves a database's unsharded collections to a backend, one after the other and each online, and makes that the database's primary.
// A collection gets its first map for it, with nothing copied, and is then moved as a partition is. One that failed half-way goes on when
// it is run again. 26 for a database, 70 for a backend that is not known, 115 when something of the database cannot be moved; nothing has been
// moved then.
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

// plainCollections lists the namespaces of a database that have no map yet and a collection on its primary. What cannot be moved is 115.
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
		if strings.HasPrefix(c.Name, "system.") && c.Type != "view" || catalog.IsPhysicalName(c.Name) || maps[ns] != nil {
			continue
		}
		if why := unmovable(c.Type, c.Options); why != "" {
			return nil, wire.Errorf(wire.CommandNotSupported, "database '%s' cannot be moved: '%s' is %s, and Shardway does not move these yet", db, ns, why)
		}
		plain = append(plain, ns)
	}
	return plain, nil
}

// unmovable says why a collection cannot be moved; "" when it can.
func unmovable(kind string, raw bson.Raw) string {
	var options bson.D
	if len(raw) > 0 && bson.Unmarshal(raw, &options) != nil {
		return "a collection with options that cannot be read"
	}
	coll, _ := field(options, "collation").(bson.D)
	switch {
	case kind == "view":
		return "a view"
	case kind == "timeseries":
		return "a time-series collection"
	case field(options, "capped") == true:
		return "a capped collection"
	case coll != nil && field(coll, "locale") != "simple":
		return "a collection with a default collation"
	}
	return ""
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
	unlock, err := s.lock(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	c := s.cfg.Table.View().Collection(ns)
	if c == nil || c.Map != nil {
		return nil
	}
	info, err := s.inspect(ctx, c)
	if err != nil || !info.exists || info.view {
		return err
	}
	m := nextMap(c)
	m.UUID = info.uuid
	p := c.Parts[0]
	m.Partitions = []catalog.Partition{{Backend: p.Backend, Physical: p.Physical}}
	return s.change(ctx, c, m, nil)
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

// switchPrimary changes a database's primary if it has no collection without a map any more. While it looks nobody can make one: the gates of all
// such namespaces are closed. It reports false when there is one.
func (s *Splitter) switchPrimary(ctx context.Context, db, from, to string) (done bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, holdLimit, wire.Errorf(wire.LockTimeout, "database '%s' is too busy to change its primary; try again", db))
	defer cancel()
	release, err := s.holdDatabase(ctx, db)
	if err != nil {
		return false, err
	}
	defer release()
	gates, open := s.cfg.Table.ClosePlain(db)
	defer open()
	if err := waitQuiet(ctx, gates); err != nil {
		return false, err
	}
	plain, err := s.plainCollections(ctx, db, from)
	if err != nil || len(plain) > 0 || len(s.unshardedElsewhere(db, to)) > 0 {
		return false, err
	}
	// From here on it goes forward only: an answer that was lost may have been a yes.
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.cfg.Catalog.SetPrimary(s.ctx, db, to)
		if err == nil {
			return true, nil
		}
		s.log.Error().Err(err).Str("db", db).Msg("the primary of a database could not be set yet")
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return false, err
		}
	}
}

// holdDatabase keeps others from changing the maps of a database's namespaces: who begins waits, and who is at a namespace without a
// map is waited for. It returns what lets them go on.
func (s *Splitter) holdDatabase(ctx context.Context, db string) (release func(), err error) {
	free := make(chan struct{})
	maps := s.cfg.Catalog.Snapshot().Maps
	s.mu.Lock()
	if s.held[db] != nil {
		s.mu.Unlock()
		return nil, wire.Errorf(wire.ConflictingOperationInProgress, "the primary of database '%s' is being changed already", db)
	}
	s.held[db] = free
	var busy []string
	for ns := range s.locks {
		if in, _ := catalog.SplitNS(ns); in == db && maps[ns] == nil {
			busy = append(busy, ns)
		}
	}
	s.mu.Unlock()
	var unlocks []func()
	release = func() {
		s.mu.Lock()
		delete(s.held, db)
		s.mu.Unlock()
		close(free)
		for _, f := range unlocks {
			f()
		}
	}
	for _, ns := range busy {
		unlock, err := s.take(ctx, ns, true)
		if err != nil {
			release()
			return nil, err
		}
		unlocks = append(unlocks, unlock)
	}
	return release, nil
}
