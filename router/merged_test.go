package router_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/wire"
)

// TestGroupsInParts: more groups than are combined at once come out whole, each once, with and without stages behind them.
func TestGroupsInParts(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	p.shard(t, "db.c", "_id", 4)
	c := p.client.Database("db").Collection("c")
	const groups, times = 1500, 4
	long := strings.Repeat("x", 900)
	var docs []any
	for i := range groups * times {
		g := any(int32(i % groups))
		if i/groups%2 == 1 {
			g = float64(i % groups) // equal to the int32, so of the same group
		}
		docs = append(docs, bson.D{{Key: "_id", Value: int32(i)}, {Key: "g", Value: g}, {Key: "s", Value: long}, {Key: "n", Value: int32(i / groups)}})
	}
	if _, err := c.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	group := st("$group", bson.D{{Key: "_id", Value: "$g"}, {Key: "n", Value: st("$sum", "$n")}, {Key: "s", Value: st("$min", "$s")}, {Key: "all", Value: st("$push", "$n")}})
	check := func(what string, got []bson.D, code int32) {
		t.Helper()
		if code != 0 || len(got) != groups {
			t.Fatalf("%s: %d groups, code %d, want %d", what, len(got), code, groups)
		}
		seen := map[int]bool{}
		for _, d := range got {
			id, ok := d[0].Value.(int32)
			if f, isFloat := d[0].Value.(float64); isFloat {
				id, ok = int32(f), true
			}
			if !ok || seen[int(id)] || d[1].Value != int32(0+1+2+3) {
				t.Fatalf("%s: %v", what, d)
			}
			seen[int(id)] = true
		}
	}
	got, code := p.docs(t, "db", "c", group)
	check("group", got, code)
	got, code = p.docs(t, "db", "c", group, st("$match", bson.D{{Key: "n", Value: 6}}))
	check("streamed on", got, code)
	got, code = p.docs(t, "db", "c", group, st("$sort", bson.D{{Key: "_id", Value: -1}}))
	check("sorted", got, code)
	for i, d := range got {
		if fmt.Sprint(d[0].Value) != fmt.Sprint(groups-1-i) {
			t.Fatalf("sorted: %v at %d", d[0].Value, i)
		}
	}
}

// TestSumTypes: a sum has the type that one server gives it, though a partition's sum has another.
func TestSumTypes(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	p.shard(t, "db.c", "_id", 3)
	const big = int32(2147483647)
	sets := map[string][]any{
		"ints that overflow on the way": append(slices.Repeat([]any{big}, 15), append(slices.Repeat([]any{-big}, 15), int32(5))...),
		"ints that overflow":            {big, big},
		"a long":                        {int64(1), int32(1)},
		"nothing":                       {"s", nil},
		"double":                        {int32(1), 2.5},
	}
	n := int32(0)
	for name, values := range sets {
		for _, v := range values {
			d := bson.D{{Key: "_id", Value: n}, {Key: "g", Value: name}, {Key: "x", Value: v}}
			n++
			for _, c := range []*mongo.Collection{p.client.Database("db").Collection("c"), p.direct.Database("db").Collection("plain")} {
				if _, err := c.InsertOne(ctx, d); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	pipeline := mongo.Pipeline{st("$group", bson.D{{Key: "_id", Value: "$g"}, {Key: "s", Value: st("$sum", "$x")}, {Key: "a", Value: st("$avg", "$x")}}), st("$sort", bson.D{{Key: "_id", Value: 1}})}
	got, want := run(t, p.client, "c", pipeline), run(t, p.direct, "plain", pipeline)
	if len(want) != len(sets) || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestReadEdges(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	p.shard(t, "db.c", "_id", 4)
	db := p.client.Database("db")
	var docs []any
	for i := range int32(30) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: bson.D{{Key: "b", Value: -i}, {Key: "c", Value: i}}}})
	}
	if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	seen := map[int32]bool{}
	for range 8 {
		got, code := p.docs(t, "db", "c", st("$sample", bson.D{{Key: "size", Value: 12}}))
		distinct := map[any]bool{}
		for _, d := range got {
			distinct[d[0].Value] = true
			seen[d[0].Value.(int32)] = true
		}
		if code != 0 || len(got) != 12 || len(distinct) != 12 || len(got[0]) != 2 {
			t.Fatalf("$sample: code %d, %v", code, got)
		}
	}
	if len(seen) < 20 { // of 30, each missed by all eight samples with probability 0.6^8
		t.Errorf("eight samples of 12 saw %d of 30 documents", len(seen))
	}
	var rows []bson.D
	cur, err := db.Collection("c").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "a.b", Value: 1}}).SetLimit(1).SetProjection(bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 0}}}}))
	if err == nil {
		err = cur.All(ctx, &rows)
	}
	if want := []bson.D{{{Key: "_id", Value: int32(29)}, {Key: "a", Value: bson.D{{Key: "c", Value: int32(29)}}}}}; err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("nested exclusion: %v, %v; want %v", rows, err, want)
	}
	fails := func(what string, cmd bson.D, code wire.Code) {
		t.Helper()
		var ce mongo.CommandError
		if err := db.RunCommand(ctx, cmd).Err(); !asCommandError(err, &ce) || ce.Code != int32(code) {
			t.Errorf("%s: %v, want code %d", what, err, code)
		}
	}
	find := func(more ...bson.E) bson.D { return append(bson.D{{Key: "find", Value: "c"}}, more...) }
	fails("returnKey", find(bson.E{Key: "sort", Value: bson.D{{Key: "a", Value: 1}}}, bson.E{Key: "returnKey", Value: true}), wire.CommandNotSupported)
	fails("negative batchSize", find(bson.E{Key: "batchSize", Value: -1}), 51024)
	fails("sort under a collation", find(bson.E{Key: "sort", Value: bson.D{{Key: "a", Value: 1}}}, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}), wire.NotImplemented)
	fails("another cluster's time", find(bson.E{Key: "readConcern", Value: bson.D{{Key: "afterClusterTime", Value: bson.Timestamp{T: 4000000000}}}}), wire.InvalidOptions)
	fails("an unknown cursor", bson.D{{Key: "getMore", Value: int64(987654321987)}, {Key: "collection", Value: "c"}}, wire.CursorNotFound)

	t.Run("a cursor and its session", func(t *testing.T) {
		id := p.openCursor(t, find(bson.E{Key: "batchSize", Value: 2}))
		// The driver gives each of these a session of its own.
		fails("another session", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}}, 50801)
	})
	t.Run("explain", func(t *testing.T) {
		reply, err := db.RunCommand(ctx, bson.D{{Key: "explain", Value: bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{st("$group", bson.D{{Key: "_id", Value: "$a"}})}}, {Key: "cursor", Value: bson.D{}}}}}).Raw()
		if err != nil {
			t.Fatal(err)
		}
		shards, _ := reply.Lookup("shards").Document().Elements()
		names := map[string]bool{}
		for _, s := range shards {
			names[s.Key()] = true
		}
		if len(shards) != 4 || len(names) != 4 {
			t.Errorf("explain names %d shards, %d of them different; want 4", len(shards), len(names))
		}
		if merger, err := reply.LookupErr("splitPipeline", "mergerPart"); err != nil || showsPhysical(reply) {
			t.Errorf("explain: %v, %v", merger, reply)
		}
		fails("explain of what is not supported", bson.D{{Key: "explain", Value: bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{st("$facet", bson.D{})}}, {Key: "cursor", Value: bson.D{}}}}}, wire.CommandNotSupported)
	})
}

// openCursor runs a command in a session of its own and returns its cursor's id.
func (p *proxy) openCursor(t *testing.T, cmd bson.D) int64 {
	t.Helper()
	s, err := p.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.EndSession(t.Context()) })
	reply, err := p.client.Database("db").RunCommand(mongo.NewSessionContext(t.Context(), s), cmd).Raw()
	if err != nil {
		t.Fatal(err)
	}
	id := reply.Lookup("cursor", "id").Int64()
	if id == 0 {
		t.Fatal("no cursor")
	}
	return id
}

// TestPartialResults: with allowPartialResults a backend that is down is left out, and the reply says so; otherwise the read fails.
func TestPartialResults(t *testing.T) {
	p := startProxy(t, 3)
	ctx := t.Context()
	p.shard(t, "db.c", "_id", 3)
	db := p.client.Database("db")
	var docs []any
	for i := range int32(60) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	if err := p.fleet.Servers[2].Kill(); err != nil {
		t.Fatal(err)
	}
	find := bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "maxTimeMS", Value: 3000}}
	if reply, err := db.RunCommand(ctx, find).Raw(); err == nil {
		t.Errorf("without a backend: %v", reply)
	}
	reply, err := db.RunCommand(ctx, append(find, bson.E{Key: "allowPartialResults", Value: true})).Raw()
	if err != nil {
		t.Fatal(err)
	}
	batch, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
	if partial, _ := reply.Lookup("cursor", "partialResultsReturned").BooleanOK(); !partial || len(batch) == 0 || len(batch) >= 60 {
		t.Errorf("%d documents, partialResultsReturned %v", len(batch), partial)
	}
	// By key: nothing is read where the one backend is down, and all where it is not.
	found, partials := 0, 0
	for i := range int32(20) {
		cmd := bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: i}}}, {Key: "allowPartialResults", Value: true}, {Key: "maxTimeMS", Value: 1000}}
		reply, err := db.RunCommand(ctx, cmd).Raw()
		if err != nil {
			t.Fatalf("_id %d: %v", i, err)
		}
		batch, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
		partial, _ := reply.Lookup("cursor", "partialResultsReturned").BooleanOK()
		if (len(batch) == 1) == partial {
			t.Errorf("_id %d: %d documents, partialResultsReturned %v", i, len(batch), partial)
		}
		found += len(batch)
		if partial {
			partials++
		}
	}
	if found == 0 || partials == 0 {
		t.Errorf("%d of 20 found, %d partial", found, partials)
	}
}
