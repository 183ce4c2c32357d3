package router_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/wire"
)

// outcome is what a command gave: the documents of its first batch, sorted where the order is open, or its code.
func (p *proxy) outcome(t *testing.T, cmd bson.D, ordered bool) string {
	t.Helper()
	raw, err := p.client.Database("db").RunCommand(t.Context(), cmd).Raw()
	var ce mongo.CommandError
	switch {
	case err != nil && asCommandError(err, &ce):
		if showsPhysical(ce.Raw) {
			t.Errorf("%v: the error shows a physical name: %v", cmd, ce.Raw)
		}
		return fmt.Sprint("code ", ce.Code)
	case err != nil:
		t.Fatalf("%v: %v", cmd, err)
	}
	if showsPhysical(raw) {
		t.Errorf("%v: the reply shows a physical name: %v", cmd, raw)
	}
	var list []string
	rows := raw.Lookup("values")
	if batch, err := raw.LookupErr("cursor", "firstBatch"); err == nil {
		rows = batch
		if ns := raw.Lookup("cursor", "ns").StringValue(); ns != "db."+cmd[0].Value.(string) {
			t.Errorf("%v: the cursor's ns is %s", cmd, ns)
		}
	} else if n, err := raw.LookupErr("n"); err == nil {
		return fmt.Sprint("n ", n)
	}
	values, _ := rows.Array().Values()
	for _, v := range values {
		list = append(list, v.String())
	}
	if !ordered {
		slices.Sort(list)
	}
	return strings.Join(list, " ")
}

// TestViews: a view on a sharded collection answers as one on an unsharded collection with the same documents does, which its backend reads by itself.
func TestViews(t *testing.T) {
	p := startProxy(t, 3)
	ctx := t.Context()
	db := p.client.Database("db")
	docs := []any{}
	for i := range int32(30) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "g", Value: i % 4}, {Key: "tags", Value: bson.A{i % 3, "t"}}, {Key: "in", Value: bson.D{{Key: "x", Value: i / 10}}}})
	}
	if _, err := db.Collection("flat").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	odd := bson.A{st("$match", st("g", st("$gt", 0))), st("$set", st("double", st("$multiply", bson.A{"$_id", 2})))}
	create := func(name, on string, pipeline bson.A, more ...bson.E) {
		t.Helper()
		if err := db.RunCommand(ctx, append(bson.D{{Key: "create", Value: name}, {Key: "viewOn", Value: on}, {Key: "pipeline", Value: pipeline}}, more...)).Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	create("flatview", "flat", odd)
	create("early", "sharded", odd) // before it has a map
	create("flatnested", "flatview", bson.A{st("$project", st("tags", 0))})
	create("earlynested", "early", bson.A{st("$project", st("tags", 0))})
	p.shard(t, "db.sharded", "_id", 5)
	if _, err := db.Collection("sharded").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	create("late", "sharded", odd)
	create("latenested", "late", bson.A{st("$project", st("tags", 0))})
	sortID := bson.E{Key: "sort", Value: st("_id", 1)}
	cursor := bson.E{Key: "cursor", Value: bson.D{}}
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	for _, c := range []struct {
		name    string
		rest    bson.D
		ordered bool
	}{
		{"find", bson.D{}, false},
		{"find", bson.D{e("filter", st("in.x", 1)), sortID, e("skip", 2), e("limit", 4), e("projection", st("double", 1))}, true},
		{"find", bson.D{sortID, e("limit", 1), e("singleBatch", true)}, true},
		{"find", bson.D{e("filter", st("_id", 7))}, true},
		{"find", bson.D{sortID, e("batchSize", 3)}, true},
		{"find", bson.D{e("batchSize", 0)}, true},
		{"find", bson.D{e("filter", st("_id", st("$nonsense", 1)))}, true},
		{"find", bson.D{e("collation", bson.D{e("locale", "en"), e("strength", 2)})}, true},
		{"find", bson.D{e("collation", bson.D{e("locale", "simple")}), e("filter", st("_id", 3))}, true},
		{"aggregate", bson.D{e("pipeline", bson.A{st("$group", bson.D{e("_id", "$g"), e("n", st("$sum", "$double"))})}), cursor}, false},
		{"aggregate", bson.D{e("pipeline", bson.A{st("$sort", st("_id", -1)), st("$limit", 3)}), cursor}, true},
		{"aggregate", bson.D{e("pipeline", bson.A{}), e("cursor", bson.D{e("batchSize", 0)})}, true},
		{"count", bson.D{}, true},
		{"count", bson.D{e("query", st("g", 2)), e("skip", 2), e("limit", 3)}, true},
		{"count", bson.D{e("query", st("g", 77))}, true},
		{"distinct", bson.D{e("key", "tags")}, false},
		{"distinct", bson.D{e("key", "in.x"), e("query", st("g", 1))}, false},
		{"distinct", bson.D{e("key", "none")}, false},
		{"findAndModify", bson.D{e("query", st("_id", 1)), e("remove", true)}, true},
	} {
		for i, flat := range []string{"flatview", "flatnested"} {
			want := p.outcome(t, append(bson.D{e(c.name, flat)}, c.rest...), c.ordered)
			for _, name := range []string{"early", "late"} {
				if i == 1 {
					name += "nested"
				}
				if got := p.outcome(t, append(bson.D{e(c.name, name)}, c.rest...), c.ordered); got != want {
					t.Errorf("%s %v on %s:\n got %s\nwant %s", c.name, c.rest, name, got, want)
				}
			}
		}
	}
	for _, option := range []bson.E{e("returnKey", true), e("min", st("_id", 1)), e("showRecordId", true), e("tailable", true)} { // mongod's, which the test server takes
		if got := p.outcome(t, bson.D{e("find", "late"), option}, true); got != "code 168" {
			t.Errorf("%v: %s", option, got)
		}
	}
	if _, err := db.Collection("late").InsertOne(ctx, st("_id", 100)); err == nil || !strings.Contains(err.Error(), "db.late is a view") {
		t.Errorf("an insert: %v", err)
	}
	// Batches: getMore goes by the view's name.
	cur, err := db.Collection("late").Find(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	cur.SetBatchSize(4)
	var all []bson.D
	if err := cur.All(ctx, &all); err != nil || len(all) != 22 {
		t.Errorf("%d documents, %v", len(all), err)
	}
	_, code := p.docs(t, "db", "flat", st("$lookup", bson.D{e("from", "late"), e("localField", "_id"), e("foreignField", "_id"), e("as", "f")}))
	if code != int32(wire.CommandNotSupported) {
		t.Errorf("a view that is joined: code %d", code)
	}
	names, err := db.ListCollectionNames(ctx, st("type", "view"))
	slices.Sort(names)
	if want := []string{"early", "earlynested", "flatnested", "flatview", "late", "latenested"}; err != nil || !reflect.DeepEqual(names, want) {
		t.Errorf("views %v, want %v; %v", names, want, err)
	}
	if err := db.Collection("late").Drop(ctx); err != nil {
		t.Error(err)
	}
	if n, err := db.Collection("latenested").CountDocuments(ctx, bson.D{}); n != 0 || err != nil {
		t.Errorf("a view on a view that is gone: %d, %v", n, err)
	}
}

// TestViewOnADroppedCollection: it is empty while there is none, and shows what is made anew.
func TestViewOnADroppedCollection(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	db := p.client.Database("db")
	insert := func(n int32) {
		t.Helper()
		if _, err := db.Collection("base").InsertOne(ctx, st("_id", n)); err != nil {
			t.Fatal(err)
		}
	}
	count := func(view string, want int) {
		t.Helper()
		var got []bson.D
		cur, err := db.Collection(view).Find(ctx, bson.D{})
		if err == nil {
			err = cur.All(ctx, &got)
		}
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v; want %d documents", view, got, err, want)
		}
	}
	insert(1)
	if err := db.CreateView(ctx, "v", "base", bson.A{}); err != nil {
		t.Fatal(err)
	}
	count("v", 1)
	if err := db.Collection("base").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	count("v", 0)
	if err := db.CreateView(ctx, "w", "base", bson.A{}); err != nil { // while there is none
		t.Fatal(err)
	}
	count("w", 0)
	insert(1)
	insert(2)
	count("v", 2)
	count("w", 2)
	if err := db.CreateView(ctx, "w", "base", bson.A{st("$limit", 1)}); err == nil {
		t.Error("another view was made under a name that there is")
	}
	if code := p.admin(t, bson.D{{Key: "renameCollection", Value: "db.w"}, {Key: "to", Value: "db.z"}}); code != int32(wire.CommandNotSupportedOnView) {
		t.Errorf("a view is renamed: code %d", code)
	}
	if code := p.admin(t, bson.D{{Key: "shardCollection", Value: "db.w"}, {Key: "key", Value: st("_id", "hashed")}}); code != int32(wire.CommandNotSupportedOnView) {
		t.Errorf("a view is sharded: code %d", code)
	}
	if err := db.Collection("w").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateView(ctx, "w", "base", bson.A{st("$limit", 1)}); err != nil {
		t.Fatal(err)
	}
	count("w", 1)
}
