package router_test

import (
	"reflect"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/wire"
)

// docs runs a pipeline through the proxy on db.coll and returns the documents, or the error's code.
func (p *proxy) docs(t *testing.T, db, coll string, stages ...bson.D) ([]bson.D, int32) {
	t.Helper()
	cur, err := p.client.Database(db).Collection(coll).Aggregate(t.Context(), mongo.Pipeline(stages))
	if err == nil {
		var out []bson.D
		if err = cur.All(t.Context(), &out); err == nil {
			return out, 0
		}
	}
	var ce mongo.CommandError
	if !asCommandError(err, &ce) {
		t.Fatal(err)
	}
	if showsPhysical(ce.Raw) && ce.Code != int32(wire.InvalidNamespace) { // which repeats the client's own words
		t.Errorf("the error shows a physical name: %v", ce.Raw)
	}
	return nil, ce.Code
}

func st(name string, arg any) bson.D { return bson.D{{Key: name, Value: arg}} }

// TestForeignCollections: what a pipeline names beside its collection is read and written where it is, or refused, never met empty.
func TestForeignCollections(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	for db, id := range map[string]string{"one": "b1", "two": "b2"} {
		if err := p.catalog.CreateDatabase(ctx, db, id); err != nil {
			t.Fatal(err)
		}
	}
	insert := func(db, coll string, docs ...any) {
		t.Helper()
		if _, err := p.client.Database(db).Collection(coll).InsertMany(ctx, docs); err != nil {
			t.Fatal(err)
		}
	}
	id := func(n int32) bson.D { return bson.D{{Key: "_id", Value: n}} }
	insert("one", "a", id(1))
	insert("one", "b", bson.D{{Key: "_id", Value: int32(1)}, {Key: "x", Value: "b"}})
	insert("two", "far", id(1))
	// again was dropped and made anew: it has a physical name.
	insert("one", "again", id(7))
	if err := p.client.Database("one").Collection("again").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	lookup := func(from any) bson.D {
		return st("$lookup", bson.D{{Key: "from", Value: from}, {Key: "localField", Value: "_id"}, {Key: "foreignField", Value: "_id"}, {Key: "as", Value: "f"}})
	}
	count := st("$project", bson.D{{Key: "n", Value: st("$size", "$f")}})
	n := func(n int32) []bson.D { return []bson.D{{{Key: "_id", Value: int32(1)}, {Key: "n", Value: n}}} }
	expect := func(what string, got []bson.D, code int32, want []bson.D, wantCode wire.Code) {
		t.Helper()
		if code != int32(wantCode) || code == 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, code %d; want %v, code %d", what, got, code, want, wantCode)
		}
	}
	got, code := p.docs(t, "one", "a", lookup("b"), count)
	expect("beside", got, code, n(1), 0)
	got, code = p.docs(t, "one", "a", lookup("again"), count)
	expect("dropped", got, code, n(0), 0)
	insert("one", "again", id(1))
	got, code = p.docs(t, "one", "a", lookup("again"), count)
	expect("made anew", got, code, n(1), 0)
	got, code = p.docs(t, "one", "a", st("$facet", bson.D{{Key: "y", Value: bson.A{lookup("again"), count}}}))
	expect("in a facet", got, code, []bson.D{{{Key: "y", Value: bson.A{n(1)[0]}}}}, 0)
	got, code = p.docs(t, "one", "a", st("$unionWith", "again"))
	expect("union", got, code, []bson.D{id(1), id(1)}, 0)
	for what, stage := range map[string]bson.D{
		"other backend": st("$unionWith", bson.D{{Key: "coll", Value: "a"}, {Key: "pipeline", Value: bson.A{lookup(bson.D{{Key: "db", Value: "two"}, {Key: "coll", Value: "far"}})}}}),
		"out":           st("$out", bson.D{{Key: "db", Value: "two"}, {Key: "coll", Value: "o"}}),
		"merge":         st("$merge", bson.D{{Key: "into", Value: bson.D{{Key: "db", Value: "two"}, {Key: "coll", Value: "o"}}}}),
	} {
		got, code = p.docs(t, "one", "a", stage)
		expect(what, got, code, nil, wire.CommandNotSupported)
	}
	_, code = p.docs(t, "one", "a", st("$unionWith", "again@1.1.0"))
	expect("physical name", nil, code, nil, wire.InvalidNamespace)
	_, code = p.docs(t, "one", "a", st("$changeStream", bson.D{}))
	expect("change stream", nil, code, nil, wire.CommandNotSupported)

	t.Run("out and merge", func(t *testing.T) {
		_, code := p.docs(t, "one", "a", st("$merge", "again"))
		expect("merge", nil, code, nil, 0)
		got, code := p.docs(t, "one", "again", st("$match", bson.D{}))
		expect("merged", got, code, []bson.D{id(1)}, 0)
		_, code = p.docs(t, "one", "a", st("$set", bson.D{{Key: "x", Value: 5}}), st("$out", "again"))
		expect("out", nil, code, nil, 0)
		got, code = p.docs(t, "one", "again")
		expect("written", got, code, []bson.D{{{Key: "_id", Value: int32(1)}, {Key: "x", Value: int32(5)}}}, 0)
		_, code = p.docs(t, "one", "a", st("$out", bson.D{{Key: "db", Value: "fresh"}, {Key: "coll", Value: "o"}}))
		expect("to a new database", nil, code, nil, 0)
		got, code = p.docs(t, "fresh", "o")
		expect("there", got, code, []bson.D{id(1)}, 0)
	})
	t.Run("a partition away from home", func(t *testing.T) {
		p.shard(t, "one.s", "_id", 2)
		insert("one", "s", id(1), id(2), id(3), id(4), id(5), id(6))
		here, refused := 0, 0
		for i := int32(1); i <= 6; i++ {
			got, code := p.docs(t, "one", "s", st("$match", id(i)), lookup("b"))
			switch {
			case code == int32(wire.CommandNotSupported):
				refused++
			case code == 0 && len(got) == 1:
				here++
			default:
				t.Errorf("%d: %v, code %d", i, got, code)
			}
		}
		if here == 0 || refused == 0 {
			t.Errorf("%d joined, %d refused: want some of each", here, refused)
		}
		_, code := p.docs(t, "one", "a", lookup("s"))
		expect("sharded", nil, code, nil, wire.CommandNotSupported)
		_, code = p.docs(t, "one", "a", st("$merge", "s"))
		expect("merge into sharded", nil, code, nil, wire.CommandNotSupported)
		_, code = p.docs(t, "one", "a", st("$out", "s"))
		expect("out to sharded", nil, code, nil, 28769)
		_, code = p.docs(t, "one", "a", st("$merge", bson.D{{Key: "into", Value: "again"}, {Key: "on", Value: "x"}}))
		expect("merge on fields without a unique index", nil, code, nil, 51190)
	})
}
