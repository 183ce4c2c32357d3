package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestShardCollectionRefuses: what cannot be sharded rightly is refused with mongos' codes, and is not sharded then (mongos-behaviour §4.4).
func TestShardCollectionRefuses(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	db := p.client.Database("db")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	insert := func(coll string, docs ...any) {
		t.Helper()
		_, err := db.Collection(coll).InsertMany(ctx, docs)
		must(err)
	}
	index := func(coll string, keys bson.D, opts ...options.Lister[options.IndexOptions]) {
		t.Helper()
		m := mongo.IndexModel{Keys: keys}
		if len(opts) > 0 {
			m.Options = opts[0].(*options.IndexOptionsBuilder)
		}
		_, err := db.Collection(coll).Indexes().CreateOne(ctx, m)
		must(err)
	}
	must(db.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)))
	must(db.CreateCollection(ctx, "words", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	must(db.CreateView(ctx, "view", "full", bson.A{}))
	insert("full", st("k", 1))
	insert("indexed", st("k", 1), st("k", 2))
	index("indexed", st("k", 1))
	insert("arrays", st("k", bson.A{1, 2}))
	index("arrays", st("k", 1))
	index("unique", st("u", 1), options.Index().SetUnique(true))
	index("keyedunique", bson.D{{Key: "u", Value: 1}, {Key: "k", Value: 1}}, options.Index().SetUnique(true))
	index("partial", st("k", 1), options.Index().SetSparse(true))
	insert("partial", st("k", 1))

	hashed := func(field string) bson.E { return bson.E{Key: "key", Value: st(field, "hashed")} }
	for _, c := range []struct {
		ns   string
		args bson.D
		code int32
	}{
		{"db.capped", bson.D{hashed("k")}, 72},
		{"db.words", bson.D{hashed("k")}, 2},
		{"db.view", bson.D{hashed("k")}, 166},
		{"db.full", bson.D{hashed("k")}, 72}, // documents, and no index on the key
		{"db.partial", bson.D{hashed("k")}, 72},
		{"db.arrays", bson.D{hashed("k")}, 61},
		{"db.unique", bson.D{hashed("k")}, 72},
		{"db.new", bson.D{{Key: "key", Value: st("k", 1)}}, 2},
		{"db.new", bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: "hashed"}, {Key: "b", Value: 1}}}}, 2},
		{"db.new", bson.D{hashed("/worksFor/name")}, 2},
		{"db.new", bson.D{}, 40414},
		{"db.new", bson.D{{Key: "key", Value: 1}}, 14},
		{"db.new", bson.D{{Key: "key", Value: bson.D{}}}, 2},
		{"db.new", bson.D{hashed("k"), {Key: "unique", Value: true}}, 72},
		{"db.new", bson.D{hashed("k"), {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}}, 2},
		{"db.new", bson.D{hashed("k"), {Key: "numInitialChunks", Value: 2000000}}, 72},
		{"db", bson.D{hashed("k")}, 73},
		{"admin.x", bson.D{hashed("k")}, 20},
		{"config.x", bson.D{hashed("k")}, 20},
		{"db.system.x", bson.D{hashed("k")}, 20},
		{"db.indexed", bson.D{hashed("k")}, 0},
		{"db.indexed", bson.D{hashed("k")}, 0}, // once more
		{"db.indexed", bson.D{hashed("other")}, 23},
		{"db.keyedunique", bson.D{hashed("k")}, 0},
		{"db.new", bson.D{hashed("a.b"), {Key: "numInitialChunks", Value: 7}}, 0},
	} {
		if code := p.admin(t, append(bson.D{{Key: "shardCollection", Value: c.ns}}, c.args...)); code != c.code {
			t.Errorf("%s %v: code %d, want %d", c.ns, c.args, code, c.code)
		}
	}
	var refused mongo.CommandError
	err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "db.new2"}, hashed("/worksFor/name")}).Err()
	if !asCommandError(err, &refused) || !strings.Contains(refused.Message, "'worksFor.name'") {
		t.Errorf("the refusal of a path with slashes does not name the dotted form: %v", err)
	}
	// Beside the index on the key that shardCollection makes, clients may have one of their own.
	for name, opts := range map[string]*options.IndexOptionsBuilder{"once": options.Index().SetUnique(true), "expires": options.Index().SetExpireAfterSeconds(3600)} {
		if code := p.admin(t, bson.D{{Key: "shardCollection", Value: "db." + name}, hashed("k")}); code != 0 {
			t.Fatal(code)
		}
		index(name, st("k", 1), opts)
	}
	for ns, parts := range map[string]int{"db.indexed": 1, "db.keyedunique": 2, "db.new": 7} {
		if m := p.catalog.Snapshot().Map(ns); m == nil || !m.Sharded() || len(m.Partitions) != parts {
			t.Errorf("%s: %+v, want %d partitions", ns, m, parts)
		}
	}
	for _, ns := range []string{"db.capped", "db.words", "db.full", "db.arrays", "db.unique"} {
		if p.catalog.Snapshot().Map(ns).Sharded() {
			t.Errorf("%s is sharded", ns)
		}
	}
}

// TestShardingCommands: the small ones.
func TestShardingCommands(t *testing.T) {
	p := startProxy(t, 2)
	for _, c := range []struct {
		cmd  bson.D
		code int32
	}{
		{st("enableSharding", "fresh"), 0},
		{st("enableSharding", "fresh"), 0},
		{bson.D{{Key: "enableSharding", Value: "placed"}, {Key: "primaryShard", Value: "b2"}}, 0},
		{bson.D{{Key: "enableSharding", Value: "placed"}, {Key: "primaryShard", Value: "b1"}}, 48},
		{st("enableSharding", "PLACED"), 13297},
		{bson.D{{Key: "enableSharding", Value: "other"}, {Key: "primaryShard", Value: "b9"}}, 70},
		{st("enableSharding", "admin"), 72},
		{st("enableSharding", 1), 14},
		{st("flushRouterConfig", 1), 0},
		{st("flushRouterConfig", "db.c"), 0},
		{st("balancerStop", 1), 0},
	} {
		if code := p.admin(t, c.cmd); code != c.code {
			t.Errorf("%v: code %d, want %d", c.cmd, code, c.code)
		}
	}
	if got := p.catalog.Snapshot().Databases["placed"]; got == nil || got.Primary != "b2" {
		t.Errorf("placed: %+v", got)
	}
	admin := p.client.Database("admin")
	reply := func(cmd bson.D) bson.Raw {
		t.Helper()
		raw, err := admin.RunCommand(t.Context(), cmd).Raw()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return raw
	}
	if mode := reply(st("balancerStatus", 1)).Lookup("mode").StringValue(); mode != "off" {
		t.Errorf("the balancer's mode is %s after balancerStop", mode)
	}
	reply(st("balancerStart", 1))
	if mode := reply(st("balancerStatus", 1)).Lookup("mode").StringValue(); mode != "full" {
		t.Errorf("the balancer's mode is %s after balancerStart", mode)
	}
	m := reply(st("getShardMap", 1))
	for _, id := range []string{"b1", "b2", "config"} {
		if host, _ := m.Lookup("map", id).StringValueOK(); host == "" {
			t.Errorf("getShardMap has no %s: %v", id, m)
		}
	}
	p.shard(t, "db.c", "k", 2)
	reply(bson.D{{Key: "configureCollectionBalancing", Value: "db.c"}, {Key: "chunkSize", Value: 0.5}})
	if n := p.split.MaxPartitionBytes("db.c"); n != 512<<10 {
		t.Errorf("half a MB is %d bytes", n)
	}
	if n, ok := reply(st("balancerCollectionStatus", "db.c")).Lookup("chunkSize").AsFloat64OK(); !ok || n != 0.5 {
		t.Errorf("balancerCollectionStatus: chunkSize %v", n)
	}
}
