package splitter

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// maxParts bounds numInitialChunks: 8192 for each backend, and a million in all (mongos-behaviour §4.4).
func (s *Splitter) maxParts() int { return min(1000000, 8192*max(1, len(s.cfg.Backends.All()))) }

// ShardCollection gives ns, whose database is registered, a shard key. An empty or absent collection gets parts partitions (0: one for each backend) over
// even ranges, dealt in contiguous groups; one with documents gets one partition that is the collection as it is, nothing copied. With the same key
// already it does nothing; with another one it is 23 AlreadyInitialized.
func (s *Splitter) ShardCollection(ctx context.Context, ns string, key shardkey.Pattern, parts int) error {
	if parts < 0 || parts > s.maxParts() {
		return wire.Errorf(wire.InvalidOptions, "numInitialChunks cannot be more than either: 8192 * number of shards or 1000000, and not negative: %d", parts)
	}
	return s.change(ctx, ns, "shardCollection", func(ctx context.Context, c *partition.Collection) (*edit, error) {
		if c == nil {
			return nil, wire.Errorf(wire.NamespaceNotFound, "the database of '%s' is not known", ns)
		}
		if c.Sharded() {
			if c.Key.Equal(key) {
				return nil, nil
			}
			return nil, wire.Errorf(wire.AlreadyInitialized, "sharding already enabled for collection %s with shard key %s", ns, c.Key)
		}
		info, err := s.inspect(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := info.shardable(ns, key); err != nil {
			return nil, err
		}
		if info.documents {
			if parts > 0 {
				return nil, wire.Errorf(wire.InvalidOptions, "numInitialChunks is not supported when the collection is not empty")
			}
			return s.shardInPlace(c, key, info)
		}
		return s.shardEmpty(ctx, c, key, parts, info)
	})
}

// shardInPlace makes an existing collection, as it is, the one partition of its first sharded map.
func (s *Splitter) shardInPlace(c *partition.Collection, key shardkey.Pattern, info collectionInfo) (*edit, error) {
	if !info.indexed(key) {
		return nil, wire.Errorf(wire.InvalidOptions, "Please create an index that starts with the proposed shard key before sharding the collection: %s", key)
	}
	m := s.nextMap(c)
	m.Key, m.Hash = &key, shardkey.HashName
	m.UUID = info.uuid
	p := c.Parts[0]
	m.Partitions = []catalog.Partition{{Backend: p.Backend, Physical: p.Physical, Birth: p.Info.Birth}}
	return &edit{m: m, check: func(ctx context.Context) error {
		again, err := s.inspect(ctx, c)
		if err != nil {
			return err
		}
		if err := again.shardable(c.NS, key); err != nil { // an index may have come
			return err
		}
		return s.noArrays(ctx, p.Home, key)
	}}, nil
}

// shardEmpty makes fresh, empty partitions and puts them in the place of what there was.
func (s *Splitter) shardEmpty(ctx context.Context, c *partition.Collection, key shardkey.Pattern, parts int, info collectionInfo) (*edit, error) {
	m, err := s.emptyMap(ctx, c, key, parts)
	if err != nil {
		return nil, err
	}
	homes := homesOf(c.DB, m.Partitions)
	e := &edit{m: m, outputs: homes,
		make: func(ctx context.Context) error {
			for _, h := range homes {
				if _, err := s.create(ctx, h, info, &key); err != nil {
					return err
				}
			}
			return nil
		}}
	e.check = func(ctx context.Context) error {
		again, err := s.inspect(ctx, c)
		e.fresh = c.Map == nil && !again.exists
		switch {
		case err != nil:
			return err
		case again.documents:
			return wire.Errorf(wire.ConflictingOperationInProgress, "documents were inserted into %s while it was being sharded; try again", c.NS)
		case info.differs(again):
			return retryable{wire.Errorf(wire.ConflictingOperationInProgress, "indexes or options of %s were changed while it was being sharded", c.NS)}
		}
		return nil
	}
	return e, nil
}

// emptyMap lays out fresh partitions: even ranges, dealt to the backends in contiguous groups.
func (s *Splitter) emptyMap(ctx context.Context, c *partition.Collection, key shardkey.Pattern, parts int) (*catalog.Map, error) {
	loads, err := s.loads(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(loads))
	for i, l := range loads {
		ids[i] = l.id
	}
	slices.Sort(ids)
	if parts == 0 {
		parts = len(ids)
	}
	number, err := s.cfg.Catalog.NextNumber(ctx)
	if err != nil {
		return nil, err
	}
	m := s.nextMap(c)
	m.Key, m.Hash = &key, shardkey.HashName
	group := max(1, parts/len(ids))
	for i, r := range shardkey.Even(parts) {
		m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: ids[i/group%len(ids)], Physical: catalog.PhysicalName(c.DB, c.Name, number, 0, i)})
	}
	return m, nil
}

// Drop drops a collection: its newest map, the first one if it had none, says so, then its physical collections go. One that was dropped
// already, or whose database is unknown, is no error.
func (s *Splitter) Drop(ctx context.Context, ns string) error {
	if err := s.cancelReshape(ctx, ns); err != nil {
		return err
	}
	return s.change(ctx, ns, "drop", func(_ context.Context, c *partition.Collection) (*edit, error) {
		if c == nil || c.Dropped() {
			return nil, nil
		}
		m := s.nextMap(c)
		m.Dropped = true
		wholly(m.Retired) // the next key may be another one
		return &edit{m: m}, nil
	})
}

// Create makes a collection anew, empty and unsharded, under a fresh physical name on its database's primary when its newest map says that it was
// dropped; one that exists or has no map is left alone. options are the fields of a create command after its first; nil for none.
func (s *Splitter) Create(ctx context.Context, ns string, options bson.Raw) error {
	var like collectionInfo
	if len(options) > 0 {
		if err := bson.Unmarshal(options, &like.options); err != nil {
			return wire.Errorf(wire.InvalidBSON, "the options of create are not a valid document")
		}
	}
	return s.change(ctx, ns, "create", func(ctx context.Context, c *partition.Collection) (*edit, error) {
		if c == nil {
			return nil, nil
		}
		var e edit
		home := partition.Home{DB: c.DB}
		switch {
		case c.Dropped():
			home.Backend = c.Absent.Backend
		case c.Map == nil && field(like.options, "viewOn") != nil:
			home.Backend = c.Parts[0].Backend
			e.check = func(ctx context.Context) error { return s.nothingAt(ctx, c.Parts[0].Home) }
		default:
			return nil, nil
		}
		number, err := s.cfg.Catalog.NextNumber(ctx)
		if err != nil {
			return nil, err
		}
		home.Physical = catalog.PhysicalName(c.DB, c.Name, number, 0, 0)
		e.m, e.outputs = s.nextMap(c), []partition.Home{home}
		e.m.Partitions = []catalog.Partition{{Backend: home.Backend, Physical: home.Physical}}
		e.make = func(ctx context.Context) error {
			_, err := s.create(ctx, home, like, nil)
			return err
		}
		return &e, nil
	})
}

// nothingAt is 48 NamespaceExists if there is something at a home.
func (s *Splitter) nothingAt(ctx context.Context, h partition.Home) error {
	info, err := s.inspectHome(ctx, h)
	if err == nil && info.exists {
		err = wire.Errorf(wire.NamespaceExists, "a collection or view '%s.%s' exists already", h.DB, h.Physical)
	}
	return err
}

// nextMap begins the map that follows a collection's newest one. Old homes that are out of the retry window are forgotten.
func (s *Splitter) nextMap(c *partition.Collection) *catalog.Map {
	m := &catalog.Map{NS: c.NS, V: 1, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID()}
	for _, o := range c.Old {
		if o.Matters(s.cfg.RetryWindow) {
			m.Retired = append(m.Retired, o.OldHome)
		}
	}
	if c.Map != nil {
		m.V = c.Map.V + 1
		if !c.Map.Dropped {
			m.UUID = c.Map.UUID
		}
	}
	return m
}
