package router

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// randomWrite makes a write that has one right outcome: one-document writes name the document, sorts are total, and the key of a document follows from its _id, so
// that no _id comes twice.
func randomWrite(r *rand.Rand) bson.D {
	const ids = 40
	id := func() any {
		n := r.IntN(ids)
		return []any{int32(n), int64(n), float64(n)}[r.IntN(3)]
	}
	keyOf := func(id any) any {
		var n int
		_, _ = fmt.Sscan(fmt.Sprint(id), &n)
		return []any{n % 7, fmt.Sprint("t", n%7), nil, n%3 == 0, bson.D{{Key: "x", Value: n % 5}}}[n%5]
	}
	doc := func() bson.D {
		i := id()
		out := d("_id", i, "k", keyOf(i), "v", r.IntN(10), "s", "text")
		if keyOf(i) == nil && r.IntN(2) == 0 {
			out = d("_id", i, "v", r.IntN(10)) // missing is null
		}
		return out
	}
	filter := func() bson.D {
		i := id()
		switch r.IntN(5) {
		case 0:
			return d("_id", i, "k", keyOf(i))
		case 1:
			return d("$and", bson.A{d("k", keyOf(i)), d("_id", i)})
		case 2:
			return d("_id", d("$in", bson.A{i}), "v", d("$gte", 0))
		}
		return d("_id", i)
	}
	many := func() bson.D {
		switch r.IntN(6) {
		case 0:
			return d("k", keyOf(id()))
		case 1:
			return d("v", d("$lt", r.IntN(10)))
		case 2:
			return d("k", d("$in", bson.A{keyOf(id()), keyOf(id()), 99}))
		case 3:
			return d("$or", bson.A{d("k", keyOf(id())), d("_id", id())})
		case 4:
			return d("k", d("$type", "string"))
		}
		return d("k", d("$in", bson.A{}))
	}
	change := func() any {
		switch r.IntN(7) {
		case 0:
			return d("$inc", d("v", 1))
		case 1:
			return d("$set", d("w", r.IntN(4)))
		case 2:
			return d("$inc", d("s", 1)) // fails where s is a text
		case 3:
			return bson.A{d("$set", d("y", d("$add", bson.A{"$v", 1})))}
		case 4:
			return d("$unset", d("w", ""))
		case 5:
			return d("$push", d("list", d("$each", bson.A{r.IntN(3)}, "$slice", -3)))
		}
		return d("$set", d("v", r.IntN(10)), "$setOnInsert", d("made", true))
	}
	ordered := r.IntN(2) == 0
	n := 1 + r.IntN(6)
	list := bson.A{}
	switch r.IntN(8) {
	case 0, 1:
		for range n {
			list = append(list, doc())
		}
		return d("insert", "c", "documents", list, "ordered", ordered)
	case 2, 3, 4:
		for range n {
			i := id()
			switch r.IntN(5) {
			case 0:
				// Not one that fails: how far it comes before is nobody's promise.
				list = append(list, d("q", many(), "u", d("$set", d("w", r.IntN(4)), "$inc", d("v", 1)), "multi", true))
			case 1:
				list = append(list, d("q", d("_id", i, "k", keyOf(i)), "u", change(), "upsert", true))
			case 2: // save, as ODMs do it
				list = append(list, d("q", d("_id", i), "u", d("_id", i, "k", keyOf(i), "v", r.IntN(10), "s", 1), "upsert", r.IntN(2) == 0))
			case 3:
				list = append(list, d("q", d("_id", i), "u", d("$set", d("k", keyOf(i), "v", 3)), "upsert", r.IntN(2) == 0))
			default:
				list = append(list, d("q", filter(), "u", change()))
			}
		}
		return d("update", "c", "updates", list, "ordered", ordered)
	case 5:
		for range n {
			if r.IntN(8) == 0 {
				list = append(list, d("q", d("$and", bson.A{many(), d("v", r.IntN(10))}), "limit", 0))
			} else {
				list = append(list, d("q", filter(), "limit", 1))
			}
		}
		return d("delete", "c", "deletes", list, "ordered", ordered)
	case 6:
		return d("findAndModify", "c", "query", many(), "sort", d("v", 1, "_id", -1), "update", change(), "new", r.IntN(2) == 0, "fields", d("v", 1))
	}
	return d("findAndModify", "c", "query", many(), "sort", d("w", -1, "_id", 1), "remove", true)
}

// normal is a reply without what servers word differently.
func normal(reply bson.M, err error) string {
	if err != nil {
		return fmt.Sprint("error ", codeOf(err))
	}
	out := ""
	for _, name := range []string{"ok", "n", "nModified", "upserted", "lastErrorObject", "value"} {
		out += fmt.Sprintf(" %s=%v", name, reply[name])
	}
	errs, _ := reply["writeErrors"].(bson.A)
	for _, x := range errs {
		out += fmt.Sprintf(" error %v %v %v", valueOf(x, "index"), valueOf(x, "code"), valueOf(x, "keyPattern"))
	}
	return out
}

// TestWritesAsOneServer runs random writes over partitions and on one server alone: the replies and the documents left are the same.
func TestWritesAsOneServer(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "k", 8)
	alone := &writeEnv{t: t, ctx: e.ctx, db: e.db + "alone", client: e.direct["b0"]}
	defer func() { _ = e.direct["b0"].Database(alone.db).Drop(e.ctx) }()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 5))
	for i := range 600 {
		cmd := randomWrite(r)
		got, want := normal(e.run(cmd)), normal(alone.run(cmd))
		if got != want {
			t.Fatalf("seed %d, operation %d: %v\nproxy  %s\nserver %s", seed, i, cmd, got, want)
		}
	}
	var got, want []string
	for _, doc := range e.all("c") { // which checks that each lies where it belongs
		got = append(got, doc.String())
	}
	cur, err := alone.client.Database(alone.db).Collection("c").Find(e.ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for cur.Next(e.ctx) {
		want = append(want, cur.Current.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("seed %d: the proxy's documents differ:\n%v\n%v", seed, got, want)
	}
}
