package router_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// shard makes db.c sharded by {field: "hashed"} in n partitions.
func (p *proxy) shard(t *testing.T, ns, field string, n int) {
	t.Helper()
	err := p.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardCollection", Value: ns},
		{Key: "key", Value: bson.D{{Key: field, Value: "hashed"}}}, {Key: "numInitialChunks", Value: n}}).Err()
	if err != nil {
		t.Fatal(err)
	}
}

// place puts documents into the partitions of db.c, past the proxy, by the key's position.
func (p *proxy) place(t *testing.T, ns string, docs ...bson.D) {
	t.Helper()
	m := p.catalog.Snapshot().Map(ns)
	for _, d := range docs {
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		pos, err := m.Key.Position(raw)
		if err != nil {
			t.Fatal(err)
		}
		part := m.Partitions[m.Index(pos)]
		p.insertAt(t, part.Backend, part.Physical, raw)
	}
}

func (p *proxy) insertAt(t *testing.T, backendID, physical string, doc bson.Raw) {
	t.Helper()
	var i int
	_, _ = fmt.Sscanf(backendID, "b%d", &i)
	c := connect(t, p.fleet.Servers[i-1].URI())
	defer func() { _ = c.Disconnect(context.Background()) }()
	if _, err := c.Database("db").Collection(physical).InsertOne(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
}

func ids(t *testing.T, cur *mongo.Cursor, err error) []int32 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var out []int32
	for cur.Next(context.Background()) {
		out = append(out, cur.Current.Lookup("_id").Int32())
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReadAcrossPartitions(t *testing.T) {
	p := startProxy(t, 3)
	ctx := t.Context()
	p.shard(t, "db.c", "k", 6)
	var docs []bson.D
	for i := range 40 {
		docs = append(docs, bson.D{{Key: "_id", Value: int32(i)}, {Key: "k", Value: int32(i)}, {Key: "v", Value: int32(i % 7)}, {Key: "a", Value: bson.D{{Key: "b", Value: int32(-i)}}}})
	}
	p.place(t, "db.c", docs...)
	c := p.client.Database("db").Collection("c")

	cur, err := c.Find(ctx, bson.D{}, options.Find().SetBatchSize(7))
	got := ids(t, cur, err)
	slices.Sort(got)
	if len(got) != 40 || got[0] != 0 || got[39] != 39 {
		t.Errorf("scan: %v", got)
	}
	cur, err = c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "v", Value: -1}, {Key: "_id", Value: 1}}).SetSkip(5).SetLimit(9).SetBatchSize(2))
	if got := ids(t, cur, err); !slices.Equal(got, sortedWant()) {
		t.Errorf("sorted: %v", got)
	}
	cur, err = c.Find(ctx, bson.D{{Key: "k", Value: int32(11)}})
	if got := ids(t, cur, err); !slices.Equal(got, []int32{11}) {
		t.Errorf("by key: %v", got)
	}
	t.Run("projection hides the sort field", func(t *testing.T) {
		for _, proj := range []bson.D{{{Key: "v", Value: 1}}, {{Key: "a", Value: 0}}, {{Key: "a.b", Value: 0}}, {{Key: "_id", Value: 0}, {Key: "v", Value: 1}}} {
			var rows []bson.D
			cur, err := c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "a.b", Value: 1}}).SetLimit(3).SetProjection(proj))
			if err != nil {
				t.Fatal(err)
			}
			if err := cur.All(ctx, &rows); err != nil {
				t.Fatal(err)
			}
			var want []bson.D
			for _, i := range []int32{39, 38, 37} {
				switch {
				case proj[0].Key == "_id":
					want = append(want, bson.D{{Key: "v", Value: i % 7}})
				case proj[0].Key == "v":
					want = append(want, bson.D{{Key: "_id", Value: i}, {Key: "v", Value: i % 7}})
				case proj[0].Key == "a":
					want = append(want, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "v", Value: i % 7}})
				default:
					want = append(want, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "v", Value: i % 7}, {Key: "a", Value: bson.D{}}})
				}
			}
			if !reflect.DeepEqual(rows, want) {
				t.Errorf("%v: got %v, want %v", proj, rows, want)
			}
		}
	})
	if n, err := c.CountDocuments(ctx, bson.D{{Key: "v", Value: 3}}); n != 6 || err != nil {
		t.Errorf("CountDocuments %d, %v", n, err)
	}
	if n, err := c.EstimatedDocumentCount(ctx); n != 40 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	var values []int32
	if err := c.Distinct(ctx, "v", bson.D{}).Decode(&values); err != nil || !slices.Equal(values, []int32{0, 1, 2, 3, 4, 5, 6}) {
		t.Errorf("distinct %v, %v", values, err)
	}
	if len(p.catalog.Snapshot().Map("db.c").Partitions) != 6 {
		t.Error("not six partitions")
	}
}

func TestAggregateAcrossPartitions(t *testing.T) {
	p := startProxy(t, 3)
	ctx := t.Context()
	p.shard(t, "db.c", "k", 6)
	var docs []bson.D
	for i := range 30 {
		docs = append(docs, bson.D{{Key: "_id", Value: int32(i)}, {Key: "k", Value: fmt.Sprint("key", i)}, {Key: "g", Value: int32(i % 4)}, {Key: "x", Value: float64(i) / 2}})
	}
	p.place(t, "db.c", docs...)
	for _, d := range docs {
		if _, err := p.direct.Database("db").Collection("direct").InsertOne(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	acc := func(op string, arg any) bson.D { return bson.D{{Key: op, Value: arg}} }
	group := bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$g"}, {Key: "s", Value: acc("$sum", "$x")}, {Key: "n", Value: acc("$sum", 1)},
		{Key: "av", Value: acc("$avg", "$x")}, {Key: "no", Value: acc("$avg", "$missing")}, {Key: "mi", Value: acc("$min", "$x")}, {Key: "ma", Value: acc("$max", "$k")},
		{Key: "c", Value: acc("$count", bson.D{})}, {Key: "same", Value: acc("$first", "$g")}, {Key: "set", Value: acc("$addToSet", "$g")}, {Key: "m", Value: acc("$mergeObjects", bson.D{{Key: "g", Value: "$g"}})}}}}
	sort := bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}
	for name, pipeline := range map[string]mongo.Pipeline{
		"group":             {group, sort},
		"match group":       {{{Key: "$match", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$gt", Value: 5}}}}}}, group, sort, {{Key: "$limit", Value: 2}}},
		"sort limit":        {{{Key: "$sort", Value: bson.D{{Key: "x", Value: -1}}}}, {{Key: "$skip", Value: 3}}, {{Key: "$limit", Value: 5}}},
		"sort project":      {{{Key: "$sort", Value: bson.D{{Key: "x", Value: -1}}}}, {{Key: "$project", Value: bson.D{{Key: "y", Value: bson.D{{Key: "$add", Value: bson.A{"$x", 1}}}}}}}},
		"count":             {{{Key: "$match", Value: bson.D{{Key: "g", Value: 1}}}}, {{Key: "$count", Value: "n"}}},
		"count nothing":     {{{Key: "$match", Value: bson.D{{Key: "g", Value: 99}}}}, {{Key: "$count", Value: "n"}}},
		"sortByCount":       {{{Key: "$sortByCount", Value: "$g"}}, {{Key: "$sort", Value: bson.D{{Key: "count", Value: -1}, {Key: "_id", Value: 1}}}}},
		"ordered push":      {{{Key: "$sort", Value: bson.D{{Key: "x", Value: 1}}}}, {{Key: "$group", Value: bson.D{{Key: "_id", Value: "$g"}, {Key: "all", Value: acc("$push", "$x")}, {Key: "f", Value: acc("$first", "$k")}}}}, sort},
		"buckets of groups": {group, sort, {{Key: "$bucketAuto", Value: bson.D{{Key: "groupBy", Value: "$s"}, {Key: "buckets", Value: 2}}}}},
		"window": {{{Key: "$sort", Value: bson.D{{Key: "x", Value: 1}}}}, {{Key: "$limit", Value: 20}}, {{Key: "$setWindowFields", Value: bson.D{{Key: "partitionBy", Value: "$g"},
			{Key: "sortBy", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "output", Value: bson.D{{Key: "upTo", Value: bson.D{{Key: "$sum", Value: "$x"},
				{Key: "window", Value: bson.D{{Key: "documents", Value: bson.A{"unbounded", "current"}}}}}}}}}}}, sort},
		"bucket":         {group, {{Key: "$bucket", Value: bson.D{{Key: "groupBy", Value: "$s"}, {Key: "boundaries", Value: bson.A{0, 50, 100000}}, {Key: "default", Value: "other"}}}}, sort},
		"sample of all":  {{{Key: "$sort", Value: bson.D{{Key: "x", Value: 1}}}}, {{Key: "$limit", Value: 5}}, {{Key: "$sample", Value: bson.D{{Key: "size", Value: 9}}}}, sort},
		"limit of limit": {{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}, {{Key: "$limit", Value: 10}}, {{Key: "$skip", Value: 4}}, {{Key: "$limit", Value: 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := run(t, p.client, "c", pipeline), run(t, p.direct, "direct", pipeline)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
	_, err := p.client.Database("db").Collection("c").Aggregate(ctx, mongo.Pipeline{{{Key: "$bucketAuto", Value: bson.D{{Key: "groupBy", Value: "$x"}, {Key: "buckets", Value: 2}}}}})
	var ce mongo.CommandError
	if !asCommandError(err, &ce) || ce.Code != 115 {
		t.Errorf("$bucketAuto: %v, want 115", err)
	}
}

func run(t *testing.T, c *mongo.Client, coll string, p mongo.Pipeline) []bson.D {
	t.Helper()
	cur, err := c.Database("db").Collection(coll).Aggregate(t.Context(), p, options.Aggregate().SetBatchSize(2))
	if err != nil {
		t.Fatal(err)
	}
	var rows []bson.D
	if err := cur.All(t.Context(), &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func asCommandError(err error, ce *mongo.CommandError) bool {
	e, ok := err.(mongo.CommandError)
	*ce = e
	return ok
}

// sortedWant is {v: -1, _id: 1} over forty documents with v = _id % 7, skip 5, limit 9.
func sortedWant() []int32 {
	var all []int32
	for v := int32(6); v >= 0; v-- {
		for id := v; id < 40; id += 7 {
			all = append(all, id)
		}
	}
	return all[5:14]
}
