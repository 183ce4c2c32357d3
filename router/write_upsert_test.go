package router

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestUpsertsThatAServerTakes are placed where the documents that the server makes belong.
func TestUpsertsThatAServerTakes(t *testing.T) {
	e := fleetEnv(t)
	e.shard("byid", "_id", 8)
	e.shard("byk", "k", 8)
	or := bson.A{d("e", d("$gt", 100)), d("e", nil)}
	for _, test := range []struct {
		coll   string
		filter bson.D
	}{
		{"byid", d("k", 2, "$or", or)},
		{"byid", d("k", 3, "$and", bson.A{d("e", nil), d("$nor", bson.A{d("e", 7)})})},
		{"byid", d("_id", d("$in", bson.A{77}))},
		{"byk", d("k", d("$in", bson.A{4}))},
		{"byk", d("$or", bson.A{d("k", 5)})},
		{"byk", d("k", d("$all", bson.A{6}))},
		{"byk", d("k", 7, "$or", or)},
	} {
		for n := 1; n <= 2; n++ { // the second finds the first one's document
			r, err := e.run(d("update", test.coll, "updates", bson.A{d("q", test.filter, "u", d("$inc", d("v", 1)), "upsert", true)}))
			if err != nil || len(e.writeCodes(r)) > 0 || r["n"] != int32(1) || (r["upserted"] != nil) != (n == 1) {
				t.Errorf("%s %v, time %d: %v %v", test.coll, test.filter, n, r, err)
			}
		}
		r, err := e.run(d("findAndModify", test.coll, "query", test.filter, "update", d("$inc", d("v", 1)), "upsert", true, "new", true))
		if value, _ := r["value"].(bson.D); err != nil || valueOf(value, "v") != int32(3) {
			t.Errorf("%s %v: %v %v", test.coll, test.filter, r, err)
		}
	}
	if n := len(e.all("byid")) + len(e.all("byk")); n != 7 { // all looks whether each lies where it belongs
		t.Errorf("%d documents, want 7", n)
	}
}

// TestUpdatesThatAServerRefuses have the server's codes, whatever the shard key.
func TestUpdatesThatAServerRefuses(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 8)
	expr := d("$expr", d("$eq", bson.A{"$a", 3}))
	for _, test := range []struct {
		stmt bson.D
		code int32
	}{
		{d("q", d("k", 1, "$expr", expr[0].Value), "u", d("$set", d("a", 1)), "upsert", true), 224},
		{d("q", d("a", 1, "$and", bson.A{expr}), "u", d("$set", d("k", 1)), "upsert", true), 224},
		{d("q", d("k", 1), "u", d("_id", 2, "k", 1, "$x", 1)), 52},
		{d("q", d("_id", 2), "u", d("_id", 2, "k", 1, "$x", 1)), 52},
		{d("q", d("k", 1), "u", d("$set", d("a", 1), "b", 1)), 12},
	} {
		r, err := e.raw(d("update", "c", "updates", bson.A{test.stmt}))
		if err != nil || e.writeCodes(r)[0] != test.code {
			t.Errorf("%v: %v %v, want %d", test.stmt, r, err, test.code)
		}
	}
	if got := writesOf(servers...); len(got) > 0 {
		t.Errorf("sent: %v", got)
	}
}
