package router

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

var _ = register(shardingCommands)

func shardingCommands(r *Router) []Command {
	return []Command{
		{Name: "enableSharding", Admin: true, Writes: true, Help: "registers a database", Run: r.enableSharding},
		{Name: "shardCollection", Aliases: []string{"shardcollection"}, Admin: true, Writes: true, Help: "gives a collection a shard key", Run: r.shardCollection},
		{Name: "listShards", Admin: true, Help: "lists the backends", Run: r.listShards},
		{Name: "getShardMap", Admin: true, Help: "tells the backends' addresses", Run: r.getShardMap},
		{Name: "flushRouterConfig", Aliases: []string{"flushrouterconfig"}, Admin: true, Help: "reads the catalog again", Run: r.flushRouterConfig},
		{Name: "balancerStart", Admin: true, Writes: true, Help: "lets partitions be split and moved by themselves", Run: r.balancerSwitch(false)},
		{Name: "balancerStop", Admin: true, Writes: true, Help: "stops splits and moves by themselves", Run: r.balancerSwitch(true)},
		{Name: "balancerStatus", Admin: true, Help: "tells whether the balancer runs", Run: r.balancerStatus},
		{Name: "balancerCollectionStatus", Admin: true, Help: "tells whether a collection is as it should be", Run: r.balancerCollectionStatus},
		{Name: "configureCollectionBalancing", Admin: true, Writes: true, Help: "sets a collection's chunkSize in MB", Run: r.configureCollectionBalancing},
	}
}

// adminNS reads the namespace that an admin command names in its first element.
func (q *Request) adminNS() (string, error) {
	ns, ok := q.First.StringValueOK()
	if !ok {
		return "", typeMismatch(q.Name, q.First, "string")
	}
	db, coll := catalog.SplitNS(ns)
	if err := checkDB(db); err != nil {
		return "", err
	}
	if coll == "" {
		return "", wire.Errorf(wire.InvalidNamespace, "Invalid namespace specified '%s': it needs a database and a collection", ns)
	}
	return ns, checkCollection(db, coll)
}

func (r *Router) enableSharding(ctx context.Context, q *Request) (Reply, error) {
	db, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("enableSharding", q.First, "string")
	}
	if err := checkDB(db); err != nil {
		return Reply{}, err
	}
	if db == "admin" || db == "config" {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "Enabling sharding on the '%s' database is not allowed", db)
	}
	want, given := bsoncore.Document(q.Msg.Body).Lookup("primaryShard").StringValueOK()
	if given && r.cfg.Backends.Get(want) == nil {
		return Reply{}, wire.Errorf(wire.ShardNotFound, "shard '%s' does not exist", want)
	}
	known := r.cfg.Table.View().Catalog.Database(db)
	switch {
	case known != nil && given && known.Primary != want:
		return Reply{}, wire.Errorf(wire.NamespaceExists, "database '%s' exists already with primary '%s'", db, known.Primary)
	case known == nil && given:
		if err := r.cfg.Catalog.CreateDatabase(ctx, db, want); err != nil {
			return Reply{}, err
		}
		// One that was dropped before has come back with its former primary.
		if d := r.cfg.Catalog.Snapshot().Databases[db]; d != nil && d.Primary != want {
			if err := r.cfg.Reshaper.MovePrimary(ctx, db, want); err != nil {
				return Reply{}, err
			}
		}
	case known == nil:
		if err := r.ensureDatabase(ctx, db); err != nil {
			return Reply{}, err
		}
	}
	return Reply{Body: okBody}, nil
}

func (r *Router) shardCollection(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.adminNS()
	if err != nil {
		return Reply{}, err
	}
	db, coll := catalog.SplitNS(ns)
	if db == "admin" || db == "config" || strings.HasPrefix(coll, "system.") {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "can't shard the namespace '%s'", ns)
	}
	key, parts, err := shardArgs(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	if err := r.ensureDatabase(ctx, db); err != nil {
		return Reply{}, err
	}
	if err := r.cfg.Reshaper.ShardCollection(ctx, ns, key, parts); err != nil {
		return Reply{}, err
	}
	r.cfg.Catalog.AppendChange(ctx, r.cfg.Server, "shardCollection.end", ns, bson.D{{Key: "key", Value: key.Raw()}})
	body := bsoncore.NewDocumentBuilder().AppendString("collectionsharded", ns).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

// shardArgs reads the key and numInitialChunks of a shardCollection (mongos-behaviour §4.4).
func shardArgs(body bson.Raw) (key shardkey.Pattern, parts int, err error) {
	d := bsoncore.Document(body)
	kv, e := d.LookupErr("key")
	if e != nil {
		return key, 0, wire.Errorf(40414, "BSON field 'shardCollection.key' is missing but a required field")
	}
	doc, err := documentField("shardCollection.key", kv)
	if err != nil {
		return key, 0, err
	}
	if key, err = shardkey.ParsePattern(doc); err != nil {
		return key, 0, err
	}
	if path := key.Path(); path[0] == '/' { // as Azure Cosmos DB writes it; taken literally it is a field that no document has
		return key, 0, wire.Errorf(wire.BadValue, "the shard key '%s' begins with '/': nested fields are written with dots, here '%s'",
			path, strings.ReplaceAll(strings.Trim(path, "/"), "/", "."))
	}
	if v, e := d.LookupErr("unique"); e == nil && isTrue(v) {
		return key, 0, wire.Errorf(wire.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	if v, e := d.LookupErr("collation"); e == nil {
		if other, err := notSimple(v); err != nil || other {
			return key, 0, wire.Errorf(wire.BadValue, "The collation for shardCollection must be {locale: 'simple'}, but found: %s", v)
		}
	}
	for _, name := range []string{"timeseries", "presplitHashedZones"} {
		if v, e := d.LookupErr(name); e == nil && (v.Type != bsoncore.TypeBoolean || v.Boolean()) {
			return key, 0, wire.Errorf(wire.CommandNotSupported, "shardCollection with %s is not supported", name)
		}
	}
	if v, e := d.LookupErr("numInitialChunks"); e == nil {
		n, err := wholeNumber("numInitialChunks", v, wire.InvalidOptions)
		if err != nil {
			return key, 0, err
		}
		if n > 1000000 {
			return key, 0, wire.Errorf(wire.InvalidOptions, "numInitialChunks cannot be more than 1000000")
		}
		parts = int(n)
	}
	return key, parts, nil
}

// shardDoc is a backend in the shape of config.shards.
func (r *Router) shardDoc(id string) bsoncore.Document {
	b := bsoncore.NewDocumentBuilder().AppendString("_id", id)
	host, draining, tt := "", false, bson.Timestamp{}
	if known := r.cfg.Table.View().Catalog.Backends[id]; known != nil {
		host, draining, tt = known.Host, known.Draining, known.TopologyTime
	}
	if live := r.cfg.Backends.Get(id); live != nil && live.HostString() != "" {
		host = live.HostString()
	}
	b.AppendString("host", host).AppendInt32("state", 1).AppendTimestamp("topologyTime", tt.T, tt.I)
	if draining {
		b.AppendBoolean("draining", true)
	}
	return b.Build()
}

func (r *Router) listShards(context.Context, *Request) (Reply, error) {
	list := bsoncore.NewArrayBuilder()
	for _, b := range r.cfg.Backends.All() {
		list.AppendDocument(r.shardDoc(b.ID()))
	}
	body := bsoncore.NewDocumentBuilder().AppendArray("shards", list.Build()).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

func (r *Router) getShardMap(context.Context, *Request) (Reply, error) {
	m, hosts, conns := bsoncore.NewDocumentBuilder(), bsoncore.NewDocumentBuilder(), bsoncore.NewDocumentBuilder()
	add := func(id, host string) {
		m.AppendString(id, host)
		conns.AppendString(host, id)
		_, list, ok := strings.Cut(host, "/")
		if !ok {
			list = host
		}
		for _, h := range strings.Split(list, ",") {
			if h != "" {
				hosts.AppendString(h, id)
			}
		}
	}
	for _, b := range r.cfg.Backends.All() {
		add(b.ID(), b.HostString())
	}
	if c := r.cfg.Backends.Get(r.cfg.CatalogBackend); c != nil {
		m.AppendString("config", c.HostString())
	}
	body := bsoncore.NewDocumentBuilder().AppendDocument("map", m.Build()).AppendDocument("hosts", hosts.Build()).
		AppendDocument("connStrings", conns.Build()).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

func (r *Router) flushRouterConfig(ctx context.Context, _ *Request) (Reply, error) {
	if err := r.cfg.Catalog.Refresh(ctx); err != nil {
		return Reply{}, err
	}
	body := bsoncore.NewDocumentBuilder().AppendBoolean("flushed", true).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

func (r *Router) balancerSwitch(stop bool) Handler {
	return func(ctx context.Context, _ *Request) (Reply, error) {
		return Reply{Body: okBody}, r.cfg.Catalog.SetBalancerStopped(ctx, stop)
	}
}

func (r *Router) balancerStatus(context.Context, *Request) (Reply, error) {
	mode := "full"
	if r.cfg.Table.View().Catalog.BalancerStopped {
		mode = "off"
	}
	rounds := int64(time.Since(r.started) / (10 * time.Second))
	body := bsoncore.NewDocumentBuilder().AppendString("mode", mode).AppendBoolean("inBalancerRound", false).
		AppendInt64("numBalancerRounds", rounds).AppendInt64("term", 1).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

func (r *Router) balancerCollectionStatus(_ context.Context, q *Request) (Reply, error) {
	ns, err := q.adminNS()
	if err != nil {
		return Reply{}, err
	}
	c := r.cfg.Table.View().Collection(ns)
	if c == nil || !c.Sharded() {
		return Reply{}, wire.Errorf(wire.NamespaceNotSharded, "Expected collection %s to be sharded", ns)
	}
	body := bsoncore.NewDocumentBuilder().AppendDouble("chunkSize", float64(r.cfg.Reshaper.MaxPartitionBytes(ns))/(1<<20))
	draining := false
	for _, p := range c.Parts {
		b := r.cfg.Table.View().Catalog.Backends[p.Backend]
		draining = draining || b != nil && b.Draining
	}
	body.AppendBoolean("balancerCompliant", !draining)
	if draining {
		body.AppendString("firstComplianceViolation", "draining")
	}
	if jumbo := jumboChunks(c, r.cfg.Reshaper.CannotSplit(c)); len(jumbo) > 0 {
		body.AppendArray("jumboChunks", jumbo)
	}
	return Reply{Body: bson.Raw(body.AppendDouble("ok", 1).Build())}, nil
}

// jumboChunks lists the partitions of c that are over their limit and cannot be split, which MongoDB calls jumbo chunks: bounds, shard and bytes. It is nil
// when there are none.
func jumboChunks(c *partition.Collection, bytes map[partition.Home]int64) bsoncore.Array {
	if len(bytes) == 0 {
		return nil
	}
	list := bsoncore.NewArrayBuilder()
	for _, p := range c.Parts {
		if n, jumbo := bytes[p.Home]; jumbo {
			list.AppendDocument(bsoncore.NewDocumentBuilder().
				AppendDocument("min", bsoncore.BuildDocument(nil, p.Range.AppendLower(nil, c.Key.Path()))).
				AppendDocument("max", bsoncore.BuildDocument(nil, p.Range.AppendUpper(nil, c.Key.Path()))).
				AppendString("shard", p.Backend).AppendInt64("bytes", n).Build())
		}
	}
	return list.Build()
}

func (r *Router) configureCollectionBalancing(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.adminNS()
	if err != nil {
		return Reply{}, err
	}
	c := r.cfg.Table.View().Collection(ns)
	if c == nil || !c.Sharded() {
		return Reply{}, wire.Errorf(wire.NamespaceNotSharded, "Expected collection %s to be sharded", ns)
	}
	set := r.cfg.Table.View().Catalog.Collections[ns]
	set.NS = ns
	elems, _ := bsoncore.Document(q.Msg.Body).Elements()
	for _, e := range elems[1:] {
		switch v := e.Value(); e.Key() {
		case "chunkSize":
			mb, ok := v.AsFloat64OK()
			if !ok || mb < 0 || mb > 1<<40 {
				return Reply{}, wire.Errorf(wire.InvalidOptions, "chunkSize must be a number of MB, not negative")
			}
			set.MaxPartitionBytes = int64(mb * (1 << 20))
		case "noBalance":
			set.NoBalance = isTrue(v)
		case "defragmentCollection", "enableAutoMerger":
			if isTrue(v) {
				return Reply{}, wire.Errorf(wire.CommandNotSupported, "configureCollectionBalancing with %s is not supported: partitions are whole collections and do not fragment", e.Key())
			}
		}
	}
	return Reply{Body: okBody}, r.cfg.Catalog.SetCollection(ctx, set)
}
