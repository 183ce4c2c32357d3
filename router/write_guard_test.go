package router

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// TestUpdatesThatKeepTheKey: an update that could set the shard key is applied where it does not change it, in every form, and refused where it does.
func TestUpdatesThatKeepTheKey(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 6)
	merge := func(objects ...any) bson.A {
		return bson.A{d("$replaceWith", d("$mergeObjects", bson.A(objects)))}
	}
	const changes = 66
	fold := bson.E{Key: "collation", Value: d("locale", "en", "strength", 2)}
	for name, c := range map[string]struct {
		q, u  any
		more  bson.D
		code  int32 // 0 if it passes
		n     int32
		field string // is there afterwards, in n documents
	}{
		"defaults":             {d("_id", 1), merge(d("x", 0), "$$ROOT"), nil, 0, 1, "x"},
		"defaults of many":     {d(), merge(d("x", 0), "$$ROOT"), d("multi", true), 0, 4, "x"},
		"default of the key":   {d("_id", 1), merge(d("k", 0, "x", 0), "$$ROOT"), nil, 0, 1, "x"},
		"default of no key":    {d("_id", 4), merge(d("k", 0, "x", 0), "$$ROOT"), nil, changes, 0, "x"},
		"default of many keys": {d(), merge(d("k", 0, "x", 0), "$$ROOT"), d("multi", true), changes, 0, "x"},
		"the same":             {d("_id", 2), bson.A{d("$set", d("k", "two", "x", 1))}, nil, 0, 1, "x"},
		"itself":               {d("_id", 2), bson.A{d("$set", d("k", "$k", "x", 1))}, nil, 0, 1, "x"},
		"another":              {d("_id", 2), bson.A{d("$set", d("k", "three", "x", 1))}, nil, changes, 0, "x"},
		"computed the same":    {d("n", 1), bson.A{d("$set", d("k", d("$add", bson.A{"$n", 0}), "x", 1))}, nil, 0, 1, "x"},
		"computed as a double": {d("n", 1), bson.A{d("$set", d("k", d("$toDouble", "$n"), "x", 1))}, nil, 0, 1, "x"},
		"computed another":     {d("n", 1), bson.A{d("$set", d("k", d("$add", bson.A{"$n", 1}), "x", 1))}, nil, changes, 0, "x"},
		"computed an array":    {d("n", 1), bson.A{d("$set", d("k", bson.A{"$k"}, "x", 1))}, nil, changes, 0, "x"},
		"another letter case":  {d("_id", 2), bson.A{d("$set", d("k", d("$toUpper", "$k"), "x", 1))}, bson.D{fold}, changes, 0, "x"},
		"project":              {d("_id", 3), bson.A{d("$project", d("k", 1, "x", "$n"))}, nil, 0, 1, "x"},
		"project away":         {d("_id", 3), bson.A{d("$project", d("x", "$n"))}, nil, changes, 0, "x"},
		"project nothing away": {d("_id", 4), bson.A{d("$project", d("x", "$n"))}, nil, 0, 1, "x"},
		"bound":                {d("k", "two"), bson.A{d("$replaceWith", d("k", d("$concat", bson.A{"tw", "o"}), "x", 1))}, nil, 0, 1, "x"},
		"many to what one has": {d("n", 2), d("$set", d("k", "two", "x", 1)), d("multi", true), 0, 1, "x"},
		"many, one by one":     {d(), d("$set", d("k", "two", "x", 1)), d("multi", true), changes, 0, "x"},
		"many to null":         {d("n", 4), d("$unset", d("k", 1), "$set", d("x", 1)), d("multi", true), 0, 1, "x"},
		"many, pipeline":       {d("n", 2), bson.A{d("$set", d("k", "two", "x", 1))}, d("multi", true), 0, 1, "x"},
		"many of none":         {d("n", 99), d("$set", d("k", "two", "x", 1)), d("multi", true), 0, 0, "x"},
		"many of none, upsert": {d("n", 99), d("$set", d("k", "two", "x", 1)), d("multi", true, "upsert", true), 0, 1, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := coll.DeleteMany(e.ctx, d()); err != nil {
				t.Fatal(err)
			}
			if _, err := coll.InsertMany(e.ctx, []any{d("_id", 1, "k", int32(1), "n", 1), d("_id", 2, "k", "two", "n", 2), d("_id", 3, "k", 3.0, "n", 3), d("_id", 4, "n", 4)}); err != nil {
				t.Fatal(err)
			}
			before := keysByID(e)
			r, err := e.run(d("update", "c", "updates", bson.A{append(d("q", c.q, "u", c.u), c.more...)}))
			if err != nil {
				t.Fatal(err)
			}
			code := int32(0)
			if codes := e.writeCodes(r); len(codes) > 0 {
				code = codes[0]
			}
			if code != c.code || r["n"] != c.n {
				t.Errorf("%v, want code %d and n %d", r, c.code, c.n)
			}
			var have int32
			for _, doc := range e.all("c") {
				if _, err := doc.LookupErr(c.field); err == nil {
					have++
				}
			}
			if have != c.n {
				t.Errorf("%d documents were updated, want %d", have, c.n)
			}
			for id, k := range keysByID(e) {
				if b, was := before[id]; was && !e.snap.Maps[e.db+".c"].Key.EqualValues(b, k) {
					t.Errorf("document %s had the key %v and has %v", id, b, k)
				}
			}
		})
	}
}

// keysByID are the shard key values, k, of all documents of c, null where there is none.
func keysByID(e *writeEnv) map[string]bsoncore.Value {
	keys := map[string]bsoncore.Value{}
	for _, doc := range e.all("c") {
		v, err := bsoncore.Document(doc).LookupErr("k")
		if err != nil {
			v = bsoncore.Value{Type: bsoncore.TypeNull}
		}
		keys[doc.Lookup("_id").String()] = v
	}
	return keys
}

// TestUpsertsThatComputeTheKey: an upsert is placed by what its filter or its update plainly says of the key, and refused if its pipeline then makes another.
func TestUpsertsThatComputeTheKey(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "k", 6)
	for name, c := range map[string]struct {
		q, u any
		code wire.Code
		want any // the new document's key
	}{
		"from the filter":      {d("_id", 1, "k", "one"), bson.A{d("$replaceWith", d("$mergeObjects", bson.A{d("x", 0), "$$ROOT"}))}, 0, "one"},
		"computed as filtered": {d("_id", 2, "k", "two"), bson.A{d("$set", d("k", d("$toLower", "TWO")))}, 0, "two"},
		"computed otherwise":   {d("_id", 3, "k", "two"), bson.A{d("$set", d("k", d("$toLower", "THREE")))}, wire.ShardKeyNotFound, nil},
		"computed from none":   {d("_id", 4), bson.A{d("$set", d("k", d("$toLower", "THREE")))}, wire.ShardKeyNotFound, nil},
		"a constant":           {d("_id", 5), bson.A{d("$set", d("k", 5))}, 0, int32(5)},
		"another than filters": {d("_id", 6, "k", 6), d("$set", d("k", 66, "x", 1)), 0, int32(66)},
		"a document as filter": {d("_id", 7, "k", 7), d("_id", 7, "k", 77), 0, int32(77)},
		"a range as filter":    {d("_id", 8, "k", d("$gt", 9)), d("$set", d("k", 8)), 0, int32(8)},
		"a constant otherwise": {d("_id", 9, "k", 9), bson.A{d("$set", d("k", 99))}, 0, int32(99)},
	} {
		for _, command := range []string{"update", "findAndModify"} {
			t.Run(command+" "+name, func(t *testing.T) {
				if _, err := e.client.Database(e.db).Collection("c").DeleteMany(e.ctx, d()); err != nil {
					t.Fatal(err)
				}
				run := d("update", "c", "updates", bson.A{d("q", c.q, "u", c.u, "upsert", true)})
				if command != "update" {
					run = d("findAndModify", "c", "query", c.q, "update", c.u, "upsert", true)
				}
				r, err := e.run(run)
				code := codeOf(err)
				if codes := e.writeCodes(r); err == nil && len(codes) > 0 {
					code = wire.Code(codes[0])
				}
				docs := e.all("c")
				if code != c.code || c.code == 0 && len(docs) != 1 || c.code != 0 && len(docs) != 0 {
					t.Fatalf("%v %v, documents %v", r, err, docs)
				}
				if c.code != 0 {
					return
				}
				doc := bson.M{}
				if err := bson.Unmarshal(docs[0], &doc); err != nil || doc["k"] != c.want || doc["_id"] != int32(c.q.(bson.D)[0].Value.(int)) {
					t.Errorf("%v, want the key %v", doc, c.want)
				}
				// Found by its key: it is in the partition where the key belongs.
				if n, err := e.client.Database(e.db).Collection("c").CountDocuments(e.ctx, d("k", c.want)); n != 1 || err != nil {
					t.Errorf("%d found by the key, %v", n, err)
				}
			})
		}
	}
}

// TestUpdatesOfAKeyInID: no update changes _id, whatever it looks like, so none needs to be refused for what it may do.
func TestUpdatesOfAKeyInID(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 6)
	if _, err := coll.InsertMany(e.ctx, []any{d("_id", 1, "n", 1), d("_id", 2, "n", 2)}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		q, u  any
		multi bool
		code  int32
		n     int32
	}{
		"whole":        {d("n", 1), bson.A{d("$replaceWith", d("n", 1, "x", 1))}, false, 0, 1},
		"whole by id":  {d("_id", 1), bson.A{d("$project", d("n", 1))}, false, 0, 1},
		"whole, many":  {d(), bson.A{d("$replaceWith", d("n", "$n", "x", 1))}, true, 0, 2},
		"set the same": {d("n", 1), d("$set", d("_id", 1, "x", 2)), true, 0, 1},
		"set another":  {d("n", 1), d("$set", d("_id", 3)), false, 66, 0},
		"replace":      {d("_id", 1), d("_id", 3, "n", 1), false, 66, 0},
	} {
		r, err := e.run(d("update", "c", "updates", bson.A{d("q", c.q, "u", c.u, "multi", c.multi)}))
		code := int32(0)
		if codes := e.writeCodes(r); err == nil && len(codes) > 0 {
			code = codes[0]
		}
		if err != nil || code != c.code || r["n"] != c.n {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	for _, multi := range []bool{false, true} { // an upsert's new document may get another _id than it was placed by
		r, err := e.run(d("update", "c", "updates", bson.A{d("q", d("_id", 5), "u", bson.A{d("$replaceWith", d("_id", 9, "n", 5))}, "multi", multi, "upsert", true)}))
		if codes := e.writeCodes(r); err != nil || codes[0] != 61 && codes[0] != 66 || len(e.all("c")) != 2 {
			t.Errorf("upsert, multi %v: %v %v, %d documents", multi, r, err, len(e.all("c")))
		}
	}
}
