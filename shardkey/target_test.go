package shardkey

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shardway/shardway/shardkey/internal/sample"
	"github.com/shardway/shardway/shardkey/order"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// d is an ordered document of names and values in turn.
func d(pairs ...any) bson.D {
	out := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

func marshal(t testing.TB, doc any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestTarget is DESIGN's targeting and case 17; key k.
func TestTarget(t *testing.T) {
	p := pattern(t, "k")
	regex := bson.Regex{Pattern: "^a$"}
	bound := []struct {
		filter bson.D
		want   []any
	}{
		{d("k", 1), []any{1}},
		{d("x", 2, "k", "a", "$comment", "hello"), []any{"a"}},
		{d("k", nil), []any{nil}},
		{d("k", d("$eq", 1)), []any{1}},
		{d("k", d("$eq", 1, "$gt", 0)), []any{1}},
		{d("k", d("$eq", nil)), []any{nil}},
		{d("k", d("a", 1)), []any{d("a", 1)}},
		{d("k", d("$ref", "c", "$id", 1)), []any{d("$ref", "c", "$id", 1)}},
		{d("k", d("$in", bson.A{1, 2, 1.0, nil})), []any{1, 2, nil}},
		{d("k", d("$in", bson.A{})), nil},
		{d("k", 1, "k", 2), nil},
		{d("k", d("$in", bson.A{1, 2}), "$and", bson.A{d("k", d("$in", bson.A{2.0, 3}))}), []any{2}},
		{d("$and", bson.A{d("k", "a"), d("k", "a")}), []any{"a"}},
		{d("$and", bson.A{d("k", "a"), d("k", "b")}), nil},
		{d("$and", bson.A{d("x", 1), d("$and", bson.A{d("k", 5)})}), []any{5}},
		{d("$or", bson.A{d("k", "a"), d("k", "a")}), []any{"a"}},
		{d("$or", bson.A{d("k", 1, "x", 1), d("k", d("$in", bson.A{2, 3}))}), []any{1, 2, 3}},
		{d("$or", bson.A{d("k", 1), d("x", 1)}, "k", 7), []any{7}},
		{d("$expr", d("$eq", bson.A{"$k", "a"})), []any{"a"}},
		{d("$expr", d("$eq", bson.A{5, "$k"})), []any{5}},
		{d("$expr", d("$eq", bson.A{"$k", d("$literal", "$x")})), []any{"$x"}},
		{d("$expr", d("$and", bson.A{d("$gt", bson.A{"$x", 1}), d("$eq", bson.A{"$k", 5})})), []any{5}},
		{d("k", bson.MinKey{}), []any{bson.MinKey{}}},
	}
	for _, c := range bound {
		got := p.Target(marshal(t, c.filter), true)
		if !got.Bound || !slices.Equal(got.Positions, positions(c.want...)) || len(got.Values) != len(c.want) {
			t.Errorf("%v: %+v, want the positions of %v", c.filter, got, c.want)
		}
	}
	for _, filter := range []bson.D{
		{}, d("x", 1), d("k", regex), d("k", bson.A{1}), d("k", d("$gt", 1)), d("k", d("$ne", 1)), d("k", d("$exists", false)), d("k", d("$eq", regex)),
		d("k", d("$eq", bson.A{1})), d("k", d("$in", bson.A{1, regex})), d("k", d("$in", bson.A{1, bson.A{2}})), d("k", d("$not", d("$eq", 1))), d("k", d("$nin", bson.A{1})),
		d("k", bson.Undefined{}), d("k.x", 1), d("$or", bson.A{d("k", 1), d("x", 1)}), d("$or", bson.A{}), d("$nor", bson.A{d("k", 1)}), d("k", d("$elemMatch", d("$eq", 1))),
		d("$expr", d("$eq", bson.A{"$k", nil})), d("$expr", d("$eq", bson.A{"$k", "$x"})), d("$expr", d("$eq", bson.A{"$k", "$$v"})), d("$expr", d("$ne", bson.A{"$k", 1})),
		d("$expr", d("$or", bson.A{d("$eq", bson.A{"$k", 1}), true})), d("$expr", d("$eq", bson.A{"$k", d("$literal", regex)})), d("$expr", d("$eq", bson.A{"$k", d("$add", bson.A{1, 2})})),
		d("$where", "this.k == 1"), d("$text", d("$search", "k")),
	} {
		if got := p.Target(marshal(t, filter), true); got.Bound {
			t.Errorf("%v: bound to %v", filter, got.Values)
		}
	}
}

func TestTargetDotted(t *testing.T) {
	p := pattern(t, "a.b")
	for _, c := range []struct {
		filter bson.D
		want   []any
	}{
		{d("a.b", 1), []any{1}},
		{d("a", d("b", 1)), []any{1}},
		{d("a", d("c", 1, "b", 2)), []any{2}},
		{d("a", d("c", 1)), []any{nil}},
		{d("a", d("$eq", d("b", 1))), []any{1}},
		{d("a", d("$in", bson.A{d("b", 1), d("b", 2)})), []any{1, 2}},
		{d("a", d("b", 1), "a.b", 2), nil},
		{d("$expr", d("$eq", bson.A{"$a.b", 1})), []any{1}},
	} {
		got := p.Target(marshal(t, c.filter), true)
		if !got.Bound || !slices.Equal(got.Positions, positions(c.want...)) {
			t.Errorf("%v: %+v, want the positions of %v", c.filter, got, c.want)
		}
	}
	for _, filter := range []bson.D{d("a", 5), d("a", d("b", bson.A{1})), d("a", d("$gt", d("b", 1))), d("a.b.c", 1), d("ab", 1), d("b", 1), d("a", d("$in", bson.A{d("b", 1), 5}))} {
		if got := p.Target(marshal(t, filter), true); got.Bound {
			t.Errorf("%v: bound to %v", filter, got.Values)
		}
	}
}

// TestTargetCollation is case 11: under a collation a string binds nothing, a number does.
func TestTargetCollation(t *testing.T) {
	p := pattern(t, "k")
	for _, v := range []any{"ab", bson.Symbol("ab"), d("x", d("y", "ab")), d("x", bson.A{"ab"})} {
		for _, filter := range []bson.D{d("k", v), d("k", d("$eq", v)), d("k", d("$in", bson.A{1, v})), d("$expr", d("$eq", bson.A{"$k", d("$literal", v)}))} {
			if p.Target(marshal(t, filter), false).Bound {
				t.Errorf("%v is bound under a collation", filter)
			}
			if !p.Target(marshal(t, filter), true).Bound {
				t.Errorf("%v is not bound without", filter)
			}
		}
	}
	for _, v := range []any{1, nil, bson.ObjectID{}, d("x", 1), true} {
		if !p.Target(marshal(t, d("k", v)), false).Bound {
			t.Errorf("%v is not bound under a collation", v)
		}
	}
}

func TestTargetMalformed(t *testing.T) {
	p := pattern(t, "k")
	good := marshal(t, d("k", 1, "$and", bson.A{d("k", 1)}))
	for n := range len(good) {
		p.Target(good[:n], true)
	}
	deep := d("k", 1)
	for range 150 {
		deep = d("$and", bson.A{deep})
	}
	if p.Target(marshal(t, deep), true).Bound {
		t.Error("bound beyond the depth that is read")
	}
}

// matches is a naive reference: it evaluates what random filters are made of, for documents without arrays.
func matches(filter bson.Raw, doc bson.Raw, path string) bool {
	elems, _ := bsoncore.Document(filter).Elements()
	for _, e := range elems {
		v := e.Value()
		ok := true
		switch e.Key() {
		case "$and":
			for _, b := range each(v) {
				ok = ok && matches(bson.Raw(b.Data), doc, path)
			}
		case "$or":
			ok = false
			for _, b := range each(v) {
				ok = ok || matches(bson.Raw(b.Data), doc, path)
			}
		default:
			ok = matchesValue(v, field(doc, e.Key()))
		}
		if !ok {
			return false
		}
	}
	return true
}

func each(v bsoncore.Value) []bsoncore.Value {
	values, _ := v.Array().Values()
	return values
}

func field(doc bson.Raw, path string) bsoncore.Value {
	v, err := pattern(nil, path).Value(doc)
	if err != nil {
		panic(err)
	}
	return v
}

func matchesValue(want, have bsoncore.Value) bool {
	if want.Type != bsoncore.TypeEmbeddedDocument || !isOperators(want.Data) {
		return equal(want, have)
	}
	elems, _ := want.Document().Elements()
	for _, e := range elems {
		ok := false
		switch v := e.Value(); e.Key() {
		case "$eq":
			ok = equal(v, have)
		case "$in":
			ok = slices.ContainsFunc(each(v), func(x bsoncore.Value) bool { return equal(x, have) })
		case "$ne":
			ok = !equal(v, have)
		case "$gte":
			ok = order.Compare(have, v) >= 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// key returns a random value that a key may have and a filter may ask for.
func key(r *rand.Rand) bsoncore.Value {
	for {
		v := sample.Scalar(r)
		if r.IntN(8) == 0 {
			v = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document("x", sample.Number(r))}
		}
		if v.Type != bsoncore.TypeRegex {
			return v
		}
	}
}

func randomFilter(r *rand.Rand, path string, depth int) bson.Raw {
	var pairs []any
	for range 1 + r.IntN(2) {
		name := path
		if r.IntN(3) == 0 {
			name = "z"
		}
		var list []bsoncore.Value
		for range r.IntN(4) {
			list = append(list, key(r))
		}
		array := bsoncore.Value{Type: bsoncore.TypeArray, Data: bsoncore.BuildArray(nil, list...)}
		var branches []bsoncore.Value
		for range 1 + r.IntN(3) {
			if depth > 0 {
				branches = append(branches, bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: randomFilter(r, path, depth-1)})
			}
		}
		operator := func(op string, v bsoncore.Value) bsoncore.Value {
			return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document(op, v)}
		}
		switch k := r.IntN(9); {
		case k < 2 && depth > 0:
			pairs = append(pairs, []string{"$and", "$or"}[k], bsoncore.Value{Type: bsoncore.TypeArray, Data: bsoncore.BuildArray(nil, branches...)})
		case k < 4:
			pairs = append(pairs, name, key(r))
		case k < 6:
			pairs = append(pairs, name, operator("$in", array))
		default:
			pairs = append(pairs, name, operator([]string{"$eq", "$ne", "$gte"}[k-6], key(r)))
		}
	}
	return sample.Document(pairs...)
}

// checkTarget holds the one property that matters: whatever matches is where the target says.
func checkTarget(r *rand.Rand) error {
	const path = "a.b"
	p := pattern(nil, path)
	filter := randomFilter(r, path, 2)
	target := p.Target(filter, true)
	if !target.Bound {
		return nil
	}
	if !slices.IsSorted(target.Positions) || len(slices.Compact(slices.Clone(target.Positions))) != len(target.Positions) {
		return fmt.Errorf("%v: positions %v", filter, target.Positions)
	}
	for range 20 {
		// Half of the documents take a value from the filter, or few would match.
		v := key(r)
		if len(target.Values) > 0 && r.IntN(2) == 0 {
			v = target.Values[r.IntN(len(target.Values))]
		}
		doc := sample.Document("a", bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document("b", v)}, "z", key(r))
		pos, err := p.Position(doc)
		if err != nil {
			return err
		}
		if matches(filter, doc, path) && !slices.Contains(target.Positions, pos) {
			return fmt.Errorf("%v matches %v at %x, the target is %x", filter, doc, pos, target.Positions)
		}
	}
	return nil
}

func TestTargetHoldsMatches(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	for range 5000 {
		if err := checkTarget(r); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	f.Add(uint64(1), []byte(marshal(f, d("k", d("$in", bson.A{1, "a"}), "$or", bson.A{d("k", 1)}))))
	f.Fuzz(func(t *testing.T, seed uint64, filter []byte) {
		if err := checkTarget(rand.New(rand.NewPCG(seed, 4))); err != nil {
			t.Fatal(err)
		}
		p := pattern(t, "k")
		if target := p.Target(filter, true); !target.Bound && len(target.Positions) > 0 {
			t.Fatal("positions without being bound")
		}
	})
}

func TestUpdateEffect(t *testing.T) {
	p := pattern(t, "a.b")
	effects := []struct {
		u    any
		kind EffectKind
		want any
	}{
		{d("$set", d("x", 1)), Untouched, nil},
		{d("$set", d("a.c", 1), "$inc", d("n", 1), "$unset", d("a.bb", "")), Untouched, nil},
		{d("$set", d("a.b", 1)), SetsTo, 1},
		{d("$set", d("a", d("c", 1, "b", 2))), SetsTo, 2},
		{d("$set", d("a", d("c", 1))), SetsTo, nil},
		{d("$set", d("a", 5)), SetsTo, nil},
		{d("$set", d("a", bson.A{1})), MayChange, nil},
		{d("$set", d("a.b", bson.A{1})), MayChange, nil},
		{d("$set", d("a.b.c", 1)), MayChange, nil},
		{d("$setOnInsert", d("a.b", 1), "$set", d("x", 1)), OnlyOnInsert, 1},
		{d("$setOnInsert", d("a", d("b", 3))), OnlyOnInsert, 3},
		{d("$unset", d("a", "")), SetsTo, nil},
		{d("$unset", d("a.b", "")), SetsTo, nil},
		{d("$inc", d("a.b", 1)), MayChange, nil},
		{d("$push", d("a", 1)), MayChange, nil},
		{d("$rename", d("x", "a.b")), MayChange, nil},
		{d("$rename", d("a", "x")), MayChange, nil},
		{d("$rename", d("x", "y")), Untouched, nil},
		{d("$min", d("a.b.c", 1)), MayChange, nil},
		{d("a", d("b", 7), "x", 1), Replaces, 7},
		{d(), Replaces, nil},
		{bson.A{d("$set", d("x", 1)), d("$unset", "y"), d("$addFields", d("a", d("c", 1)))}, Untouched, nil},
		{bson.A{d("$set", d("a.b", 1))}, SetsTo, 1},
		{bson.A{d("$set", d("a.b", 1)), d("$set", d("x", 2))}, SetsTo, 1},
		{bson.A{d("$set", d("a.b", 1)), d("$set", d("a.b", 2))}, SetsTo, 2},
		{bson.A{d("$set", d("a.b", "$y")), d("$set", d("a.b", 2))}, Computed, nil},
		{bson.A{d("$set", d("a.b", "text"))}, SetsTo, "text"},
		{bson.A{d("$set", d("a.b", d("$literal", "$text")))}, SetsTo, "$text"},
		{bson.A{d("$set", d("a.b", "$a.b"))}, Untouched, nil},
		{bson.A{d("$set", d("a", d("b", "$a.b", "c", 1)))}, Untouched, nil},
		{bson.A{d("$set", d("a", "$a"))}, Untouched, nil},
		{bson.A{d("$set", d("a.b", bson.A{1}))}, Computed, nil},
		{bson.A{d("$set", d("a.b", d("c", 1)))}, Computed, nil},
		{bson.A{d("$set", d("a.b.c", 1))}, Computed, nil},
		{bson.A{d("$set", d("a.b", d("$add", bson.A{"$x", 1})))}, Computed, nil},
		{bson.A{d("$set", d("a", d("b", "$x")))}, Computed, nil},
		{bson.A{d("$set", d("a", d("$literal", 1)))}, SetsTo, nil},
		{bson.A{d("$set", d("a", d("$literal", d("b", 1))))}, Computed, nil},
		{bson.A{d("$set", d("a", "$x"))}, Computed, nil},
		{bson.A{d("$unset", bson.A{"x", "a"})}, SetsTo, nil},
		{bson.A{d("$unset", "a.b.c")}, Computed, nil},
		{bson.A{d("$unset", bson.A{"x", "a.c"})}, Untouched, nil},
		{bson.A{d("$project", d("x", 1))}, Computed, nil},
		{bson.A{d("$project", d("x", 1, "a", 1))}, Untouched, nil},
		{bson.A{d("$project", d("x", d("$add", bson.A{"$y", 1}), "a.b", true))}, Untouched, nil},
		{bson.A{d("$project", d("a", "$a"))}, Untouched, nil},
		{bson.A{d("$project", d("a", "$x"))}, Computed, nil},
		{bson.A{d("$project", d("a", d("b", 1)))}, Computed, nil},
		{bson.A{d("$project", d("x", 0))}, Untouched, nil},
		{bson.A{d("$project", d("x", 0, "a.b", 0))}, Computed, nil},
		{bson.A{d("$project", d("x", 0, "a.b.c", 0))}, Computed, nil},
		{bson.A{d("$replaceWith", "$x")}, Computed, nil},
		{bson.A{d("$replaceWith", "$$ROOT")}, Untouched, nil},
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{d("x", 0), "$$ROOT"}))}, Untouched, nil},
		{bson.A{d("$replaceRoot", d("newRoot", d("$mergeObjects", bson.A{"$$ROOT", d("x", "$y")})))}, Untouched, nil},
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{d("a", 0), "$$ROOT"}))}, Computed, nil}, // where a is missing
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{"$$ROOT", d("a", d("c", 1))}))}, Computed, nil},
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{"$$ROOT", "$x"}))}, Computed, nil},
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{"$$ROOT", d("$literal", d("a", 1))}))}, Computed, nil},
		{bson.A{d("$replaceWith", d("$mergeObjects", bson.A{d("x", 1)}))}, Computed, nil},
		{bson.A{d("$replaceWith", d("x", 1))}, Computed, nil},
		{bson.A{d("$brandNew", d("x", 1))}, Computed, nil},
		{bson.A{d("$set", d("x", 1)), d("$replaceWith", "$x"), d("$set", d("a.b", 2))}, Computed, nil},
	}
	for _, c := range effects {
		v := sample.Of(c.u)
		got := p.UpdateEffect(bson.RawValue{Type: bson.Type(v.Type), Value: v.Data})
		if got.Kind != c.kind || got.Err != nil {
			t.Errorf("%v: %+v, want kind %d", c.u, got, c.kind)
		}
		if (c.kind == SetsTo || c.kind == OnlyOnInsert || c.kind == Replaces) && !got.Value.Equal(sample.Of(c.want)) {
			t.Errorf("%v: value %v, want %v", c.u, got.Value, c.want)
		}
	}
	v := sample.Of(d("a", bson.A{}))
	if got := p.UpdateEffect(bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}); got.Kind != Replaces || got.Err == nil {
		t.Errorf("a replacement with an array on the path: %+v", got)
	}
	v = sample.Of(d("x", 1))
	if got := pattern(t, "_id").UpdateEffect(bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}); got.Kind != Untouched {
		t.Errorf("a replacement without _id, which is the key: %+v", got)
	}
}
