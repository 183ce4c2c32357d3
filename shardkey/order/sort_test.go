package order

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/internal/sample"
	"github.com/shardway/shardway/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func parse(t *testing.T, spec bson.D) Sort {
	t.Helper()
	raw, err := bson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSort(raw)
	if err != nil {
		t.Fatalf("ParseSort(%v): %v", spec, err)
	}
	return s
}

func TestParseSort(t *testing.T) {
	good := []struct {
		spec    bson.D
		special Special
		fields  []string
	}{
		{bson.D{}, ByFields, []string{}},
		{bson.D{{Key: "a", Value: 1}, {Key: "b.c", Value: -1.0}}, ByFields, []string{"a", "b.c"}},
		{bson.D{{Key: "$natural", Value: -1}}, ByNatural, []string{}},
		{bson.D{{Key: "a", Value: 1}, {Key: "s", Value: bson.D{{Key: "$meta", Value: "textScore"}}}}, ByMeta, []string{"a"}},
	}
	for _, c := range good {
		s := parse(t, c.spec)
		if s.Special() != c.special || !slices.Equal(s.Fields(), c.fields) {
			t.Errorf("%v: special %v fields %q, want %v %q", c.spec, s.Special(), s.Fields(), c.special, c.fields)
		}
	}
	bad := []bson.D{
		{{Key: "a", Value: 0}}, {{Key: "a", Value: 2}}, {{Key: "a", Value: 1.5}}, {{Key: "a", Value: "asc"}}, {{Key: "", Value: 1}}, {{Key: "a.", Value: 1}},
		{{Key: "$a", Value: 1}}, {{Key: "a", Value: 1}, {Key: "a", Value: 1}}, {{Key: "a", Value: bson.D{}}}, {{Key: "$natural", Value: 1}, {Key: "a", Value: 1}},
	}
	for _, spec := range bad {
		raw, _ := bson.Marshal(spec)
		var e *wire.Error
		if _, err := ParseSort(raw); !errors.As(err, &e) || e.Code != wire.BadValue {
			t.Errorf("ParseSort(%v): %v, want BadValue", spec, err)
		}
	}
}

// TestSortMixed is case 7: mixed types, missing, empty and full arrays.
func TestSortMixed(t *testing.T) {
	docs := mixed()
	for _, c := range []struct {
		direction int
		want      []int32
	}{{1, []int32{5, 3, 4, 6, 11, 2, 1, 9, 10, 7, 8}}, {-1, []int32{8, 7, 10, 9, 1, 6, 2, 11, 3, 4, 5}}} {
		s := parse(t, bson.D{{Key: "v", Value: c.direction}, {Key: "_id", Value: 1}})
		if got := ids(sorted(s, docs)); !slices.Equal(got, c.want) {
			t.Errorf("direction %d: %v, want %v", c.direction, got, c.want)
		}
	}
}

func mixed() []bson.Raw {
	return []bson.Raw{
		sample.Document("_id", int32(1), "v", "s"), sample.Document("_id", int32(2), "v", int32(3)), sample.Document("_id", int32(3), "v", nil),
		sample.Document("_id", int32(4)), sample.Document("_id", int32(5), "v", bson.A{}), sample.Document("_id", int32(6), "v", bson.A{7, 1}),
		sample.Document("_id", int32(7), "v", true), sample.Document("_id", int32(8), "v", bson.DateTime(0)),
		sample.Document("_id", int32(9), "v", bson.D{{Key: "a", Value: 1}}), sample.Document("_id", int32(10), "v", bson.ObjectID{1}),
		sample.Document("_id", int32(11), "v", int64(2)),
	}
}

func sorted(s Sort, docs []bson.Raw) []bson.Raw {
	out := slices.Clone(docs)
	slices.SortStableFunc(out, func(a, b bson.Raw) int { return s.CompareKeys(s.AppendKey(nil, a), s.AppendKey(nil, b)) })
	return out
}

func ids(docs []bson.Raw) []int32 {
	var out []int32
	for _, d := range docs {
		out = append(out, d.Lookup("_id").Int32())
	}
	return out
}

func TestAppendKeyAllocatesNothing(t *testing.T) {
	s := parse(t, bson.D{{Key: "a.b", Value: 1}, {Key: "c", Value: -1}})
	doc := sample.Document("x", "yyyy", "a", bson.D{{Key: "b", Value: 3.5}}, "c", "text")
	key := make([]bsoncore.Value, 0, 2)
	if n := testing.AllocsPerRun(100, func() { key = s.AppendKey(key[:0], doc) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSortAsServer compares the order of random documents with a server's, for find and for $sort.
func TestSortAsServer(t *testing.T) {
	server := fleettest.Shared(t, 1)[0]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	coll := client.Database(fleettest.DB(t)).Collection("c")
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	var docs []bson.Raw
	var insert []any
	for i := range 400 {
		v := value(r, 2)
		for startsEmpty(v) {
			v = value(r, 2)
		}
		doc := sample.Document("_id", int32(i), "v", v, "w", nested(r))
		docs, insert = append(docs, doc), append(insert, doc)
	}
	if _, err := coll.InsertMany(ctx, insert); err != nil {
		t.Fatal(err)
	}
	specs := []bson.D{
		{{Key: "v", Value: 1}}, {{Key: "v", Value: -1}}, {{Key: "w.a", Value: 1}}, {{Key: "w.a", Value: -1}}, {{Key: "w.a.b", Value: 1}}, {{Key: "v.0", Value: 1}},
		{{Key: "w.a", Value: 1}, {Key: "v", Value: -1}},
	}
	for _, spec := range specs {
		spec = append(spec, bson.E{Key: "_id", Value: 1})
		s := parse(t, spec)
		want := ids(sorted(s, docs))
		t.Run(fmt.Sprintf("%v", spec), func(t *testing.T) {
			cursor, err := coll.Find(ctx, bson.D{}, options.Find().SetSort(spec))
			compareWithServer(t, ctx, cursor, err, want, docs, seed)
			cursor, err = coll.Aggregate(ctx, bson.A{bson.D{{Key: "$sort", Value: spec}}})
			compareWithServer(t, ctx, cursor, err, want, docs, seed)
		})
	}
}

// value is a random value that every server stores and sorts: no name twice in an object, none of the deprecated types, and of binary values, which
// stand-ins mix up, none.
func value(r *rand.Rand, depth int) bsoncore.Value {
	switch k := r.IntN(10); {
	case k < 3 && depth > 0:
		var values []bsoncore.Value
		for range r.IntN(3) {
			values = append(values, value(r, depth-1))
		}
		return bsoncore.Value{Type: bsoncore.TypeArray, Data: bsoncore.BuildArray(nil, values...)}
	case k < 6 && depth > 0:
		var pairs []any
		for _, name := range []string{"a", "b"} {
			if r.IntN(2) == 0 {
				pairs = append(pairs, name, value(r, depth-1))
			}
		}
		return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document(pairs...)}
	}
	for {
		v := sample.Scalar(r)
		if v.Type == bsoncore.TypeBinary || (v.Type == bsoncore.TypeTimestamp && binary.LittleEndian.Uint64(v.Data) == 0) {
			continue // Timestamp(0, 0) becomes the time of the insert
		}
		return v
	}
}

// startsEmpty reports whether the first element of an array is an empty array, which stand-ins sort by its position after null.
func startsEmpty(v bsoncore.Value) bool {
	if v.Type != bsoncore.TypeArray {
		return false
	}
	first, found := element.Lookup(v.Data, "0")
	return found && first.Type == bsoncore.TypeArray && len(first.Data) == 5
}

// nested is an object whose a is a scalar or an object; arrays above the last part of a path are TestSortLadders' (stand-ins differ from mongod
// there, and in two array fields of one sort).
func nested(r *rand.Rand) bsoncore.Value {
	inner := value(r, 0)
	if r.IntN(2) == 0 {
		inner = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document("b", value(r, 0))}
	}
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document("a", inner)}
}

func compareWithServer(t *testing.T, ctx context.Context, cursor *mongo.Cursor, err error, want []int32, docs []bson.Raw, seed uint64) {
	t.Helper()
	if err != nil {
		t.Errorf("the server refuses: %v", err)
		return
	}
	var got []bson.Raw
	if err := cursor.All(ctx, &got); err != nil {
		t.Error(err)
		return
	}
	bad := 0
	for i, id := range ids(got) {
		if id != want[i] {
			t.Errorf("seed %d, place %d: the server has %v, we have %v", seed, i, docs[id], docs[want[i]])
			if bad++; bad > 3 {
				return
			}
		}
	}
}
