package router_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/router"
	"github.com/shardway/shardway/wire"
)

func e(k string, v any) bson.E { return bson.E{Key: k, Value: v} }

func TestCreateAndDropUnmapped(t *testing.T) {
	w := newDDLWorld(t)
	ctx := context.Background()
	db := w.client.Database(w.db)
	if got := w.collections(bson.D{}); len(got) != 0 {
		t.Fatalf("an unknown database has %v", got)
	}
	if err := db.CreateCollection(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	d := w.catalog.Snapshot().Databases[w.db]
	if d == nil {
		t.Fatal("the database was not registered")
	}
	if names, _ := w.on(d.Primary).ListCollectionNames(ctx, bson.D{}); !slices.Contains(names, "a") {
		t.Errorf("%s has %v, want the collection under its own name", d.Primary, names)
	}
	if got := w.must(bson.D{e("drop", "a")}); got.Lookup("ns").StringValue() != w.db+".a" {
		t.Errorf("drop answered %v", got)
	}
	if got := w.collections(bson.D{}); len(got) != 0 {
		t.Errorf("after the drop there is %v", got)
	}
	w.must(bson.D{e("drop", "a")})       // twice
	w.must(bson.D{e("drop", "neither")}) // never was
	// Made anew it has a fresh physical name, which nobody sees.
	if err := db.CreateCollection(ctx, "a", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)); err != nil {
		t.Fatal(err)
	}
	if got := w.collections(bson.D{}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed: %v, want a", got)
	}
	if m := w.catalog.Snapshot().Map(w.ns("a")); len(m.Partitions) != 1 || !catalog.IsPhysicalName(m.Partitions[0].Physical) {
		t.Errorf("a was not made under a fresh physical name: %+v", m)
	}
	specs, err := db.ListCollectionSpecifications(ctx, bson.D{e("name", "a")})
	if err != nil || len(specs) != 1 || specs[0].Name != "a" || specs[0].Type != "collection" {
		t.Fatalf("specifications: %+v, %v", specs, err)
	}
	if capped, _ := specs[0].Options.Lookup("capped").BooleanOK(); !capped {
		t.Errorf("the options of create did not arrive: %v", specs[0].Options)
	}
	if uuid := w.catalog.Snapshot().Maps[w.db+".a"].UUID; !slices.Equal(specs[0].UUID.Data, uuid.Data) {
		t.Errorf("the uuid is %x, want the map's %x", specs[0].UUID.Data, uuid.Data)
	}
	w.fails(bson.D{e("create", "a"), e("capped", true), e("size", 999999)}, wire.NamespaceExists)
}

func TestNames(t *testing.T) {
	w := newDDLWorld(t)
	for _, cmd := range []bson.D{
		{e("create", "x@1f.2.0")}, {e("drop", "x@1f.2.0")}, {e("listIndexes", "x@1f.2.0")}, {e("collStats", "x@1f.2.0")},
		{e("createIndexes", "x@1f.2.0"), e("indexes", bson.A{bson.D{e("key", bson.D{e("a", 1)}), e("name", "a_1")}})},
		{e("create", "system.foo")}, {e("create", "")}, {e("create", "a$b")}, {e("validate", 1)},
	} {
		w.fails(cmd, wire.InvalidNamespace)
	}
	for _, db := range []string{catalog.DB, catalog.MemberDB} {
		_, err := w.runOn(db, bson.D{e("create", "x")})
		w.hasCode(db, err, wire.InvalidNamespace)
	}
	_, err := w.runOn("local", bson.D{e("create", "x")})
	w.hasCode("local", err, wire.IllegalOperation)
	for _, db := range []string{"admin", "config"} {
		_, err := w.runOn(db, bson.D{e("drop", "x")})
		w.hasCode(db, err, wire.IllegalOperation)
		_, err = w.runOn(db, bson.D{e("dropDatabase", 1)})
		w.hasCode(db, err, wire.IllegalOperation)
	}
	for _, cmd := range []bson.D{
		{e("create", "x")}, {e("insert", "x"), e("documents", bson.A{bson.D{}})},
		{e("createIndexes", "x"), e("indexes", bson.A{bson.D{e("key", bson.D{e("a", 1)}), e("name", "a_1")}})},
	} {
		if _, err := w.runOn("config", cmd); err == nil {
			t.Errorf("%v on config was done", cmd)
		}
	}
	insert := bson.D{e("insert", "x"), e("documents", bson.A{bson.D{}})}
	_, err = w.runOn("config", insert)
	w.hasCode(insert, err, wire.CommandNotSupported) // with 20 drivers would tell of retryable writes
	for _, cmd := range []string{"reshardCollection", "updateZoneKeyRange", "moveCollection", "analyzeShardKey", "setFeatureCompatibilityVersion", "checkMetadataConsistency"} {
		_, err := w.runOn("admin", bson.D{e(cmd, "x.y")})
		w.hasCode(cmd, err, wire.CommandNotSupported)
	}
	listed, err := w.client.Database("config").ListCollectionNames(context.Background(), bson.D{})
	if err != nil || !slices.Contains(listed, "shards") || !slices.Contains(listed, "chunks") {
		t.Errorf("config lists %v, %v", listed, err)
	}
	if w.catalog.Snapshot().Databases["config"] != nil {
		t.Error("config was registered as a client's database")
	}
	w.fails(bson.D{e("drop", "system.users")}, wire.IllegalOperation)
	w.fails(bson.D{e("compact", "c")}, wire.CommandNotSupported)
	w.fails(bson.D{e("reIndex", "c")}, wire.CommandNotFound)
	w.fails(bson.D{e("dropDatabase", 2)}, wire.BadValue)
	w.fails(bson.D{e("renameCollection", w.db+".a"), e("to", w.db+".b")}, wire.Unauthorized)
}

func TestIndexesOnShardedCollection(t *testing.T) {
	w := newDDLWorld(t)
	ctx := context.Background()
	c := w.shard("people", "tenant")
	coll := w.client.Database(w.db).Collection("people")
	names, err := coll.Indexes().CreateMany(ctx, []mongo.IndexModel{
		{Keys: bson.D{e("tenant", 1)}}, {Keys: bson.D{e("age", -1)}},
		{Keys: bson.D{e("mail", 1), e("tenant", 1)}, Options: options.Index().SetUnique(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Partitions {
		for _, name := range names {
			if got := w.indexNames(p); !slices.Contains(got, name) {
				t.Errorf("%s has indexes %v, want %s too", p.Physical, got, name)
			}
		}
	}
	specs, err := coll.Indexes().ListSpecifications(ctx)
	if err != nil || len(specs) != 4 {
		t.Fatalf("listed %v, %v; want 4 indexes", specs, err)
	}
	reply := w.must(bson.D{e("createIndexes", "people"), e("indexes", bson.A{bson.D{e("key", bson.D{e("z", 1)}), e("name", "z_1")}})})
	if raw, _ := reply.Lookup("raw").Document().Elements(); len(raw) != 3 {
		t.Errorf("raw has %d backends, want 3: %v", len(raw), reply)
	}
	if _, err := reply.LookupErr("numIndexesAfter"); err == nil {
		t.Error("numIndexesAfter is at the top")
	}

	unique := func(spec ...bson.E) bson.D {
		return bson.D{e("createIndexes", "people"), e("indexes", bson.A{append(bson.D{e("name", "u"), e("unique", true)}, spec...)})}
	}
	w.fails(unique(e("key", bson.D{e("mail", 1)})), wire.CannotCreateIndex)
	w.fails(unique(e("key", bson.D{e("tenant", 1)}), e("collation", bson.D{e("locale", "de")})), wire.CannotCreateIndex)
	w.fails(bson.D{e("createIndexes", "people"), e("indexes", bson.A{})}, wire.BadValue)

	w.fails(bson.D{e("dropIndexes", "people"), e("index", "tenant_1")}, wire.CannotDropShardKeyIndex)
	w.fails(bson.D{e("dropIndexes", "people"), e("index", "none")}, wire.IndexNotFound)
	w.fails(bson.D{e("dropIndexes", "people"), e("index", "_id_")}, wire.InvalidOptions)
	// One partition lacks the index: the others' is enough.
	if err := w.on(c.Partitions[1].Backend).Collection(c.Partitions[1].Physical).Indexes().DropOne(ctx, "z_1"); err != nil {
		t.Fatal(err)
	}
	if err := coll.Indexes().DropOne(ctx, "z_1"); err != nil {
		t.Error(err)
	}
	if err := coll.Indexes().DropAll(ctx); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Partitions {
		if got := w.indexNames(p); !slices.Equal(got, []string{"_id_", "tenant_1"}) {
			t.Errorf("after dropping all there are %v, want _id_ and the shard key's", got)
		}
	}
	w.must(bson.D{e("dropIndexes", "people"), e("index", "*")}) // nothing left to drop
	w.fails(bson.D{e("listIndexes", "nobody")}, wire.NamespaceNotFound)
}

func TestCreateIndexesMakesTheCollection(t *testing.T) {
	w := newDDLWorld(t)
	ctx := context.Background()
	coll := w.client.Database(w.db).Collection("fresh")
	for range 2 { // the second time after a drop
		if _, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{e("a", 1)}, Options: options.Index().SetUnique(true)}); err != nil {
			t.Fatal(err)
		}
		if got := w.collections(bson.D{}); !slices.Equal(got, []string{"fresh"}) {
			t.Errorf("listed %v", got)
		}
		if err := coll.Drop(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListings(t *testing.T) {
	w := newDDLWorld(t)
	w.shard("people", "tenant")
	w.must(bson.D{e("create", "plain")})
	w.must(bson.D{e("create", "v"), e("viewOn", "plain"), e("pipeline", bson.A{})})
	for _, c := range []struct {
		filter bson.D
		want   []string
	}{
		{bson.D{}, []string{"people", "plain", "system.views", "v"}},
		{bson.D{e("name", "people")}, []string{"people"}},
		{bson.D{e("name", "nobody")}, nil},
		{bson.D{e("type", "view")}, []string{"v"}},
		{bson.D{e("name", bson.D{e("$in", bson.A{"people", "plain"})})}, []string{"people", "plain"}},
		{bson.D{e("name", bson.D{e("$regex", "^p")}), e("type", "collection")}, []string{"people", "plain"}},
	} {
		if got := w.collections(c.filter); !slices.Equal(got, c.want) {
			t.Errorf("filter %v lists %v, want %v", c.filter, got, c.want)
		}
	}
	reply := w.must(bson.D{e("listCollections", 1), e("nameOnly", true)})
	values, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
	for _, v := range values {
		if elems, _ := v.Document().Elements(); len(elems) != 2 {
			t.Errorf("nameOnly shows %v", v)
		}
	}
	w.checkDatabases()
}

func (w *ddlWorld) checkDatabases() {
	w.t.Helper()
	ctx := context.Background()
	res, err := w.client.ListDatabases(ctx, bson.D{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range res.Databases {
		if catalog.IsInternalDB(d.Name) || d.Name == "local" {
			w.t.Errorf("listDatabases shows %s", d.Name)
		}
	}
	names, err := w.client.ListDatabaseNames(ctx, bson.D{e("name", w.db)})
	if err != nil || !slices.Equal(names, []string{w.db}) {
		w.t.Errorf("by name: %v, %v", names, err)
	}
	names, err = w.client.ListDatabaseNames(ctx, bson.D{e("name", bson.D{e("$regex", "^"+w.db)})})
	if err != nil || !slices.Equal(names, []string{w.db}) {
		w.t.Errorf("by regex: %v, %v", names, err)
	}
	reply, err := w.runOn("admin", bson.D{e("listDatabases", 1), e("filter", bson.D{e("name", w.db)})})
	if err != nil {
		w.t.Fatal(err)
	}
	shards, err := reply.Lookup("databases", "0", "shards").Document().Elements()
	if err != nil || len(shards) != 3 {
		w.t.Errorf("the database is on %v, want on three backends", shards)
	}
}

func TestStats(t *testing.T) {
	w := newDDLWorld(t)
	c := w.shard("people", "tenant")
	w.fill(c, 10)
	st := w.must(bson.D{e("collStats", "people")})
	if n := st.Lookup("count").AsInt64(); n != 40 {
		t.Errorf("count is %d, want 40", n)
	}
	if !st.Lookup("sharded").Boolean() || st.Lookup("nchunks").AsInt64() != 4 || st.Lookup("ns").StringValue() != w.db+".people" {
		t.Errorf("collStats says %v", st)
	}
	shards, _ := st.Lookup("shards").Document().Elements()
	var sum int64
	for _, s := range shards {
		sum += s.Value().Document().Lookup("count").AsInt64()
	}
	if len(shards) != 3 || sum != 40 || st.Lookup("shards", "b1", "count").AsInt64() != 20 {
		t.Errorf("shards are %v", shards)
	}
	size, count := st.Lookup("size").AsFloat64(), st.Lookup("count").AsFloat64()
	if avg := st.Lookup("avgObjSize").AsFloat64(); avg != size/count {
		t.Errorf("avgObjSize is %v, want %v", avg, size/count)
	}
	w.fails(bson.D{e("collStats", "people"), e("scale", 0)}, 4390201)
	w.fails(bson.D{e("collStats", "people"), e("scale", "x")}, 4390200)
	if st := w.must(bson.D{e("collStats", "nobody")}); st.Lookup("count").AsInt64() != 0 {
		t.Errorf("collStats of nothing is %v", st)
	}

	w.must(bson.D{e("create", "plain")})
	if st := w.must(bson.D{e("collStats", "plain")}); st.Lookup("sharded").Boolean() || st.Lookup("primary").StringValue() != "b2" {
		t.Errorf("collStats of an unsharded collection says %v", st)
	}

	ds := w.must(bson.D{e("dbStats", 1)})
	if n := ds.Lookup("objects").AsInt64(); n != 40 || ds.Lookup("db").StringValue() != w.db {
		t.Errorf("dbStats says %v", ds)
	}
	if n := ds.Lookup("collections").AsInt64(); n != 2 {
		t.Errorf("dbStats counts %d collections, want 2, however many partitions they have", n)
	}
	if raw, _ := ds.Lookup("raw").Document().Elements(); len(raw) != 3 {
		t.Errorf("raw of dbStats has %d entries", len(raw))
	}

	all := w.must(bson.D{e("dataSize", w.db+".people")})
	if n := all.Lookup("numObjects").AsInt64(); n != 40 || all.Lookup("size").AsInt64() != int64(size) {
		t.Errorf("dataSize says %v, want 40 objects of %v bytes", all, size)
	}
	bound := func(v any) bson.D { return bson.D{e("tenant", v)} }
	ranged := func(lo, hi any) bson.D {
		return bson.D{e("dataSize", w.db+".people"), e("keyPattern", bson.D{e("tenant", "hashed")}), e("min", bound(lo)), e("max", bound(hi))}
	}
	half := w.must(ranged(bson.MinKey{}, int64(0)))
	if n := half.Lookup("numObjects").AsInt64(); n != 20 {
		t.Errorf("half of the chunks have %d objects, want 20", n)
	}
	w.fails(ranged(bson.MinKey{}, int64(77)), wire.InvalidOptions)

	v := w.must(bson.D{e("validate", "people")})
	if !v.Lookup("valid").Boolean() || v.Lookup("raw", "b1", "nrecords").AsInt64() != 20 || v.Lookup("raw", "b1", "ns").StringValue() != w.db+".people" {
		t.Errorf("validate says %v", v)
	}
	w.must(bson.D{e("planCacheClear", "people")})
	if p := w.must(bson.D{e("profile", -1)}); p.Lookup("was").AsInt64() != 0 {
		t.Errorf("profile says %v", p)
	}
	w.fails(bson.D{e("profile", 1)}, wire.BadValue)
}

func TestStatsStages(t *testing.T) {
	w := newDDLWorld(t)
	w.fill(w.shard("people", "tenant"), 10)
	aggregate := func(coll string, stages ...bson.D) []bson.Raw {
		t.Helper()
		cur, err := w.client.Database(w.db).Collection(coll).Aggregate(context.Background(), stages)
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.Raw
		if err := cur.All(context.Background(), &docs); err != nil {
			t.Fatal(err)
		}
		return docs
	}
	perShard := map[string]int64{}
	for _, d := range aggregate("people", bson.D{e("$collStats", bson.D{e("storageStats", bson.D{}), e("count", bson.D{})})}) {
		if showsPhysical(d) || d.Lookup("ns").StringValue() != w.ns("people") {
			t.Errorf("$collStats gives %v", d)
		}
		shard := d.Lookup("shard").StringValue()
		if _, twice := perShard[shard]; twice {
			t.Errorf("$collStats gives '%s' twice: the shell takes each document for a shard's whole", shard)
		}
		perShard[shard] = d.Lookup("storageStats", "count").AsInt64()
		if n := d.Lookup("count").AsInt64(); n != perShard[shard] {
			t.Errorf("$collStats counts %d and %d on '%s'", n, perShard[shard], shard)
		}
	}
	if perShard["b1"] != 20 || perShard["b2"] != 10 || perShard["b3"] != 10 {
		t.Errorf("$collStats counts %v", perShard)
	}
	sum := aggregate("people", bson.D{e("$collStats", bson.D{e("count", bson.D{})})},
		bson.D{e("$group", bson.D{e("_id", nil), e("n", bson.D{e("$sum", "$count")})})})
	if len(sum) != 1 || sum[0].Lookup("n").AsInt64() != 40 {
		t.Errorf("the counts sum up to %v, want 40", sum)
	}
	indexes := aggregate("people", bson.D{e("$indexStats", bson.D{})})
	perShard = map[string]int64{}
	for _, d := range indexes {
		if d.Lookup("name").StringValue() == "_id_" && d.Lookup("accesses", "ops").IsNumber() && d.Lookup("accesses", "since").Type == bson.TypeDateTime {
			perShard[d.Lookup("shard").StringValue()]++
		}
	}
	if len(indexes) != 3 || perShard["b1"] != 1 || perShard["b2"] != 1 || perShard["b3"] != 1 {
		t.Errorf("$indexStats gives %v", indexes)
	}
	named := aggregate("people", bson.D{e("$indexStats", bson.D{})}, bson.D{e("$match", bson.D{e("shard", "b1")})}, bson.D{e("$project", bson.D{e("name", 1)})})
	if len(named) != 1 || named[0].Lookup("name").StringValue() != "_id_" {
		t.Errorf("$indexStats of one shard gives %v", named)
	}
	w.must(bson.D{e("create", "plain")})
	if docs := aggregate("plain", bson.D{e("$collStats", bson.D{e("count", bson.D{})})}); len(docs) != 1 || docs[0].Lookup("shard").StringValue() != "b2" {
		t.Errorf("of an unsharded collection: %v", docs)
	}
	spread, err := w.runOn("admin", bson.D{e("aggregate", 1), e("pipeline", bson.A{bson.D{e("$shardedDataDistribution", bson.D{})},
		bson.D{e("$unwind", "$shards")}, bson.D{e("$match", bson.D{e("shards.shardName", "b1")})}}), e("cursor", bson.D{})})
	if err != nil || spread.Lookup("cursor", "firstBatch", "0", "ns").StringValue() != w.ns("people") ||
		spread.Lookup("cursor", "firstBatch", "0", "shards", "numOwnedDocuments").AsInt64() != 20 {
		t.Errorf("the distribution is %v, %v", spread, err)
	}
	missing := bson.D{e("aggregate", "c"), e("pipeline", bson.A{bson.D{e("$collStats", bson.D{})}}), e("cursor", bson.D{})}
	_, err = w.runOn("nowhere", missing)
	w.hasCode(missing, err, wire.NamespaceNotFound)
}

func TestDropShardedAndDatabase(t *testing.T) {
	w := newDDLWorld(t)
	c := w.shard("people", "tenant")
	w.must(bson.D{e("create", "plain")})
	w.must(bson.D{e("create", "v"), e("viewOn", "plain"), e("pipeline", bson.A{})})
	if reply := w.must(bson.D{e("drop", "people")}); reply.Lookup("nIndexesWas").AsInt64() != 1 {
		t.Errorf("drop answered %v", reply)
	}
	for _, p := range c.Partitions {
		w.gone(p.Backend, bson.D{e("name", p.Physical)})
	}
	w.shard("again", "k")
	if reply := w.must(bson.D{e("dropDatabase", 1)}); reply.Lookup("dropped").StringValue() != w.db {
		t.Errorf("dropDatabase answered %v", reply)
	}
	if w.catalog.Snapshot().Database(w.db) != nil {
		t.Error("the database is still registered")
	}
	for _, id := range w.ids {
		w.gone(id, bson.D{e("name", bson.D{e("$ne", "system.views")})})
	}
	w.must(bson.D{e("dropDatabase", 1)})
	w.must(bson.D{e("drop", "people")})
}

func TestRenameAndCollMod(t *testing.T) {
	w := newDDLWorld(t)
	c := w.shard("people", "tenant")
	w.must(bson.D{e("create", "plain")})
	w.must(bson.D{e("create", "other")})
	w.must(bson.D{e("create", "v"), e("viewOn", "plain"), e("pipeline", bson.A{})})
	rename := func(from, to string, more ...bson.E) error {
		_, err := w.runOn("admin", append(bson.D{e("renameCollection", from), e("to", to)}, more...))
		return err
	}
	for _, x := range []struct {
		from, to string
		code     wire.Code
	}{
		{w.ns("plain"), w.ns("plain"), wire.IllegalOperation},
		{w.ns("nobody"), w.ns("x"), wire.NamespaceNotFound},
		{w.ns("plain"), w.ns("other"), wire.NamespaceExists},
		{w.ns("v"), w.ns("w"), wire.CommandNotSupportedOnView},
		{w.ns("people"), w.db + "2.people", wire.CommandFailed},
		{w.ns("plain"), w.ns("x@1.1.1"), wire.InvalidNamespace},
		{w.ns("plain"), "shardway.x", wire.InvalidNamespace},
	} {
		w.hasCode(x, rename(x.from, x.to), x.code)
	}
	w.must(bson.D{e("collMod", "people"), e("validator", bson.D{e("a", bson.D{e("$exists", true)})})})
	for _, p := range c.Partitions {
		specs, err := w.on(p.Backend).ListCollectionSpecifications(context.Background(), bson.D{e("name", p.Physical)})
		if err != nil || len(specs) != 1 {
			t.Fatal(specs, err)
		}
		if _, err := specs[0].Options.LookupErr("validator"); err != nil {
			t.Errorf("%s has options %v, want the validator", p.Physical, specs[0].Options)
		}
	}
	w.fails(bson.D{e("collMod", "people"), e("index", bson.D{e("keyPattern", bson.D{e("mail", 1)}), e("unique", true)})}, wire.CannotCreateIndex)
	w.fails(bson.D{e("collMod", "nobody"), e("validator", bson.D{})}, wire.NamespaceNotFound)
	w.fails(bson.D{e("convertToCapped", "people"), e("size", 4096)}, wire.IllegalOperation)
}

// TestRename renames a sharded collection and one without a map: documents are found under the new name only, writes go on,
// and the old name is free.
func TestRename(t *testing.T) {
	w := newDDLWorld(t)
	ctx := context.Background()
	w.fill(w.shard("people", "_id"), 1)
	db := w.client.Database(w.db)
	if _, err := db.Collection("plain").InsertOne(ctx, bson.D{e("_id", 1)}); err != nil {
		t.Fatal(err)
	}
	count := func(coll string) int64 {
		t.Helper()
		n, err := db.Collection(coll).CountDocuments(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	rename := func(from, to string, more ...bson.E) {
		t.Helper()
		if _, err := w.runOn("admin", append(bson.D{e("renameCollection", w.ns(from)), e("to", w.ns(to))}, more...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		coll string
		n    int64
	}{{"people", 4}, {"plain", 1}} {
		to := x.coll + "2"
		rename(x.coll, to)
		if got, left := count(to), count(x.coll); got != x.n || left != 0 {
			t.Errorf("%s has %d documents and %s still %d, want %d and none", to, got, x.coll, left, x.n)
		}
		if _, err := db.Collection(x.coll).InsertOne(ctx, bson.D{e("_id", "new")}); err != nil {
			t.Error(err)
		}
		if got, left := count(to), count(x.coll); got != x.n || left != 1 {
			t.Errorf("after an insert into the old name %s has %d documents and %s %d", to, got, x.coll, left)
		}
		rename(to, x.coll, e("dropTarget", true)) // and back
		if got, left := count(x.coll), count(to); got != x.n || left != 0 {
			t.Errorf("back again %s has %d documents and %s %d", x.coll, got, to, left)
		}
	}
	if got := w.collections(bson.D{}); !slices.Equal(got, []string{"people", "plain"}) {
		t.Errorf("in the end there are %v", got)
	}
	if m := w.catalog.Snapshot().Map(w.ns("people")); !m.Sharded() || len(m.Partitions) != 4 {
		t.Errorf("people is no longer what it was: %+v", m)
	}
}

func TestViewsThatReadMappedCollections(t *testing.T) {
	w := newDDLWorld(t)
	w.must(bson.D{e("create", "plain")})
	w.must(bson.D{e("create", "v"), e("viewOn", "plain"), e("pipeline", bson.A{})})
	w.must(bson.D{e("create", "joins"), e("viewOn", "plain"), e("pipeline", bson.A{bson.D{e("$lookup",
		bson.D{e("from", "people"), e("localField", "a"), e("foreignField", "a"), e("as", "p")})}})})
	w.must(bson.D{e("create", "nested"), e("viewOn", "joins"), e("pipeline", bson.A{})})

	reading := func(coll string) error {
		_, err := w.run(bson.D{e("find", coll)})
		return err
	}
	for _, v := range []string{"v", "joins", "nested", "plain"} {
		if err := reading(v); err != nil {
			t.Errorf("nothing has a map, and reading %s fails: %v", v, err)
		}
	}
	w.shard("people", "tenant")
	for v, refused := range map[string]bool{"v": false, "plain": false, "joins": true, "nested": true} {
		err := reading(v)
		var ce mongo.CommandError
		got := errors.As(err, &ce) && ce.Code == int32(wire.CommandNotSupported) && strings.Contains(ce.Message, w.ns("people"))
		if got != refused || !refused && err != nil {
			t.Errorf("reading %s: %v; want it refused by name: %v", v, err, refused)
		}
	}
	for _, def := range []bson.D{
		{e("create", "x"), e("viewOn", "people")},
		{e("create", "x"), e("viewOn", "nested")},
		{e("create", "x"), e("viewOn", "plain"), e("pipeline", bson.A{bson.D{e("$unionWith", "people")}})},
		{e("create", "x"), e("viewOn", "plain"), e("pipeline", bson.A{bson.D{e("$facet", bson.D{e("f", bson.A{
			bson.D{e("$graphLookup", bson.D{e("from", "people"), e("startWith", "$a"), e("connectFromField", "a"), e("connectToField", "b"), e("as", "found")})}})})}})},
	} {
		w.must(def) // with a map of its own
		if m := w.catalog.Snapshot().Map(w.ns("x")); m == nil || m.Dropped {
			t.Errorf("%v: map %+v", def, m)
		}
		w.must(bson.D{e("drop", "x")})
	}
	w.fails(bson.D{e("collMod", "v"), e("viewOn", "people"), e("pipeline", bson.A{})}, wire.CommandNotSupported)
	w.must(bson.D{e("drop", "nested")}) // a refused view can be dropped
	w.must(bson.D{e("create", "fine"), e("viewOn", "v"), e("pipeline", bson.A{})})
}

func TestAdopt(t *testing.T) {
	w := newDDLWorld(t)
	ctx := context.Background()
	insert := func(id, db, coll string) {
		t.Helper()
		if _, err := w.direct[id].Database(db).Collection(coll).InsertOne(ctx, bson.D{}); err != nil {
			t.Fatal(err)
		}
	}
	adopt := func(numbers ...int) ([]string, error) {
		var all []*backend.Backend
		for _, i := range numbers {
			b, err := backend.Open(ctx, backend.Config{ID: w.ids[i], URI: w.fleet.Servers[i].URI()})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close(ctx)
			all = append(all, b)
		}
		found, err := router.FindDatabases(ctx, w.catalog, all...)
		if err != nil {
			return nil, err
		}
		return found.Strays, found.Register(ctx)
	}
	c := w.shard("people", "tenant") // partitions on all three are no conflict
	w.fill(c, 1)
	insert("b1", "old", "things")
	if strays, err := adopt(0, 1, 2); err != nil || len(strays) > 0 {
		t.Fatal(strays, err)
	}
	if d := w.catalog.Snapshot().Databases["old"]; d == nil || d.Primary != "b1" {
		t.Fatalf("adopted as %+v, want primary b1", d)
	}
	if _, err := adopt(0); err != nil {
		t.Errorf("a second time: %v", err)
	}
	// What a dropped database leaves of its views is not adopted, nor in the way.
	if err := w.direct["b3"].Database("old").CreateView(ctx, "v", "things", bson.A{}); err != nil {
		t.Fatal(err)
	}
	if err := w.direct["b3"].Database("old").Collection("v").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := adopt(2); err != nil {
		t.Errorf("an empty system.views: %v", err)
	}
	// Of a database that is known the catalog says where it lives; what lies elsewhere is in nobody's way.
	insert("b3", "old", "things")
	insert("b2", "new", "things")
	insert("b3", "new", "things")
	_, err := adopt(1, 2)
	if err == nil || wire.AsError(err).Code != wire.OperationFailed || !strings.Contains(err.Error(), "'b2'") || !strings.Contains(err.Error(), "'b3'") {
		t.Errorf("a database that nobody knows on two backends: %v", err)
	}
	if w.catalog.Snapshot().Databases["new"] != nil {
		t.Error("a refused backend's database was adopted")
	}
	if err := w.direct["b2"].Database("new").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if strays, err := adopt(1, 2); err != nil || len(strays) != 1 || !strings.Contains(strays[0], "old.things") || !strings.Contains(strays[0], "'b3'") {
		t.Errorf("a stray of a known database: %v, %v", strays, err)
	}
	if d := w.catalog.Snapshot().Databases["old"]; d == nil || d.Primary != "b1" {
		t.Errorf("the database with a stray is %+v, want primary b1", d)
	}
	insert("b3", "more", "things")
	insert("b3", "more", "odd@1.2.3")
	if _, err := adopt(2); err == nil || wire.AsError(err).Code != wire.OperationFailed {
		t.Errorf("a collection with a physical name: %v", err)
	}
}
