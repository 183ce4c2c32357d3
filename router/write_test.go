package router

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shardway/shardway/wire"
)

// d is a document of names and values in turn.
func d(pairs ...any) bson.D {
	out := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

// TestBatchErrorIndex is case 21.
func TestBatchErrorIndex(t *testing.T) {
	e := fleetEnv(t)
	for _, c := range []struct {
		ordered bool
		n       int32
		errs    []int32
		left    int
	}{{false, 10, []int32{4, 9}, 12}, {true, 4, []int32{4}, 6}} {
		coll := e.shard(fmt.Sprintf("c%v", c.ordered), "_id", 7)
		if _, err := coll.InsertMany(e.ctx, []any{d("_id", 4), d("_id", 9)}); err != nil {
			t.Fatal(err)
		}
		docs := bson.A{}
		for i := range 12 {
			docs = append(docs, d("_id", i))
		}
		reply, err := e.run(d("insert", coll.Name(), "documents", docs, "ordered", c.ordered))
		if err != nil {
			t.Fatal(err)
		}
		codes := e.writeCodes(reply)
		if got := slices.Sorted(maps.Keys(codes)); reply["n"] != c.n || !slices.Equal(got, c.errs) || codes[4] != 11000 {
			t.Errorf("ordered %v: %v", c.ordered, reply)
		}
		first := reply["writeErrors"].(bson.A)[0].(bson.D)
		if !slices.ContainsFunc(first, func(x bson.E) bool { return x.Key == "keyPattern" }) {
			t.Errorf("no keyPattern in %v", first)
		}
		if got := len(e.all(coll.Name())); got != c.left {
			t.Errorf("ordered %v: %d documents, want %d", c.ordered, got, c.left)
		}
	}
}

// TestUpdateBatchIndexes is the second half of case 21: upserts at 3, 17 and 39 among forty updates with failures between.
func TestUpdateBatchIndexes(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 7)
	var docs []any
	for i := range 40 {
		if i != 3 && i != 17 && i != 39 {
			docs = append(docs, d("_id", i, "k", i, "s", "text"))
		}
	}
	if _, err := coll.InsertMany(e.ctx, docs); err != nil {
		t.Fatal(err)
	}
	list := bson.A{}
	for i := range 40 {
		u := d("$set", d("v", i))
		if i == 8 || i == 20 {
			u = d("$inc", d("s", 1)) // fails: not a number
		}
		list = append(list, d("q", d("_id", i, "k", i), "u", u, "upsert", true))
	}
	reply, err := e.run(d("update", "c", "updates", list, "ordered", false))
	if err != nil {
		t.Fatal(err)
	}
	var ups []int32
	for _, u := range reply["upserted"].(bson.A) {
		ups = append(ups, u.(bson.D)[0].Value.(int32))
	}
	codes := e.writeCodes(reply)
	if !slices.Equal(ups, []int32{3, 17, 39}) || reply["n"] != int32(38) || reply["nModified"] != int32(35) || len(codes) != 2 || codes[8] != 14 || codes[20] != 14 {
		t.Errorf("upserted %v, errors %v: %v", ups, codes, reply)
	}
	if got := len(e.all("c")); got != 40 {
		t.Errorf("%d documents", got)
	}
}

// TestInsertGivesID is case 52, and arrays are refused (45).
func TestInsertGivesID(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 6)
	reply, err := e.run(d("insert", "c", "documents", bson.A{d("a", 1), d("a", 2), d("_id", bson.A{1})}, "ordered", false))
	if err != nil || reply["n"] != int32(2) {
		t.Fatal(reply, err)
	}
	if codes := e.writeCodes(reply); codes[2] != int32(wire.ShardKeyNotFound) {
		t.Errorf("an array as the key: %v", codes)
	}
	for _, doc := range e.all("c") {
		elems, _ := doc.Elements()
		if elems[0].Key() != "_id" || elems[0].Value().Type != bson.TypeObjectID {
			t.Errorf("%v", doc)
		}
	}
	for _, v := range []any{int32(5), int64(5), 5.0} { // case 13
		_, err := coll.InsertOne(e.ctx, d("_id", v))
		if dup := mongo.IsDuplicateKeyError(err); dup != (v != any(int32(5))) {
			t.Errorf("%T 5: %v", v, err)
		}
	}
	if _, err := e.run(d("insert", "c", "documents", bson.A{})); codeOf(err) != wire.InvalidLength {
		t.Errorf("no documents: %v", err)
	}
}

// TestUpsertByID is case 18.
func TestUpsertByID(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "tenant", 6)
	save := func(doc bson.D) (bson.M, error) {
		return e.run(d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", doc, "upsert", true)}))
	}
	if r, err := save(d("_id", 1, "tenant", "a", "v", 1)); err != nil || r["upserted"] == nil || r["n"] != int32(1) {
		t.Fatal(r, err)
	}
	if r, err := save(d("_id", 1, "tenant", "a", "v", 2)); err != nil || r["upserted"] != nil || r["nModified"] != int32(1) {
		t.Error(r, err)
	}
	if r, _ := save(d("_id", 1, "tenant", "b", "v", 3)); e.writeCodes(r)[0] != int32(wire.ImmutableField) {
		t.Error(r)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := coll.ReplaceOne(e.ctx, d("_id", 2), d("_id", 2, "tenant", "x", "v", 1), options.Replace().SetUpsert(true))
			if err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if got := len(e.all("c")); got != 2 {
		t.Errorf("%d documents, want 2", got)
	}
}

// TestKeyIsImmutable is case 19 in every form, and setting an equal value passes.
func TestKeyIsImmutable(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "tenant", 6)
	if _, err := coll.InsertOne(e.ctx, d("_id", 7, "tenant", "a", "n", 1)); err != nil {
		t.Fatal(err)
	}
	for _, q := range []bson.D{d("_id", 7, "tenant", "a"), d("_id", 7)} {
		for name, u := range map[string]any{
			"set": d("$set", d("tenant", "z")), "unset": d("$unset", d("tenant", 1)), "replace": d("tenant", "z"), "array": d("$set", d("tenant", bson.A{1})),
			"pipeline": bson.A{d("$set", d("tenant", "z"))}, "rename": d("$rename", d("tenant", "t")), "replace without": d("n", 2),
		} {
			r, err := e.run(d("update", "c", "updates", bson.A{d("q", q, "u", u)}))
			if err != nil || e.writeCodes(r)[0] != 66 || r["n"] != int32(0) {
				t.Errorf("%s with %v: %v %v", name, q, r, err)
			}
			_, err = e.run(d("findAndModify", "c", "query", q, "update", u, "new", true))
			if codeOf(err) != wire.ImmutableField {
				t.Errorf("findAndModify %s with %v: %v", name, q, err)
			}
		}
		r, err := e.run(d("update", "c", "updates", bson.A{d("q", q, "u", d("$set", d("tenant", "a"), "$inc", d("n", 1)))}))
		if err != nil || r["nModified"] != int32(1) {
			t.Errorf("an equal value: %v %v", r, err)
		}
	}
	r, _ := e.run(d("update", "c", "updates", bson.A{d("q", d("n", 3), "u", d("$set", d("tenant", "z")), "multi", true)}))
	if e.writeCodes(r)[0] != 66 {
		t.Errorf("multi: %v", r)
	}
	r, _ = e.run(d("update", "c", "updates", bson.A{d("q", d("tenant", "a"), "u", d("$set", d("tenant", "a", "m", 1)), "multi", true)}))
	if r["nModified"] != int32(1) {
		t.Errorf("multi with the bound value: %v", r)
	}
	r, _ = e.run(d("update", "c", "updates", bson.A{d("q", d("_id", 99), "u", d("$set", d("tenant", "z")))}))
	if r["n"] != int32(0) || r["writeErrors"] != nil {
		t.Errorf("nothing to change: %v", r)
	}
	docs := e.all("c")
	if len(docs) != 1 || docs[0].Lookup("tenant").StringValue() != "a" || docs[0].Lookup("n").Int32() != 3 {
		t.Errorf("%v", docs)
	}
}

// TestKeyForms is case 17 for writes: whatever form the filter has, the answer is one server's.
func TestKeyForms(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "tenant", 6)
	if _, err := coll.InsertMany(e.ctx, []any{d("_id", 1, "tenant", "a"), d("_id", 2, "tenant", "b"), d("_id", 3, "tenant", nil), d("_id", 4)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q bson.D
		n int32
	}{
		{d("$and", bson.A{d("tenant", "a"), d("tenant", "a")}), 1}, {d("$and", bson.A{d("tenant", "a"), d("tenant", "b")}), 0},
		{d("$or", bson.A{d("tenant", "a"), d("tenant", "a")}), 1}, {d("tenant", d("$in", bson.A{"a"})), 1}, {d("$expr", d("$eq", bson.A{"$tenant", "a"})), 1},
		{d("tenant", bson.Regex{Pattern: "^a$"}), 1}, {d("tenant", nil), 1}, {d("tenant", d("$in", bson.A{})), 0},
	} {
		r, err := e.run(d("findAndModify", "c", "query", c.q, "update", d("$inc", d("n", 1)), "sort", d("_id", 1)))
		if err != nil || r["lastErrorObject"].(bson.D)[0].Value != c.n {
			t.Errorf("%v: %v %v", c.q, r, err)
		}
	}
	r, err := e.run(d("update", "c", "updates", bson.A{d("q", d("tenant", nil), "u", d("$set", d("x", 1)), "multi", true)}))
	if err != nil || r["n"] != int32(2) {
		t.Errorf("null and missing: %v %v", r, err)
	}
	r, err = e.run(d("delete", "c", "deletes", bson.A{d("q", d("_id", 4), "limit", 1), d("q", d("tenant", d("$exists", true)), "limit", 0), d("q", d("_id", 4), "limit", 1)}))
	if err != nil || r["n"] != int32(4) {
		t.Errorf("deletes: %v %v", r, err)
	}
}

// TestSortedSingleWrites finds the one document over all partitions.
func TestSortedSingleWrites(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 9)
	var docs []any
	for i := range 60 {
		docs = append(docs, d("_id", i, "k", i, "v", (i*37)%60))
	}
	if _, err := coll.InsertMany(e.ctx, docs); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		r, err := e.run(d("findAndModify", "c", "query", d("v", d("$gte", 0)), "sort", d("v", -1), "remove", true))
		if err != nil {
			t.Fatal(err)
		}
		if v := valueOf(r["value"], "v"); v != int32(59-i) {
			t.Fatalf("removal %d took %v", i, r)
		}
	}
	r, err := e.run(d("findAndModify", "c", "query", d("v", 1), "remove", true))
	if err != nil || r["value"] != nil || len(r["lastErrorObject"].(bson.D)) != 1 {
		t.Errorf("nothing left: %v %v", r, err)
	}
}

func valueOf(doc any, name string) any {
	for _, el := range doc.(bson.D) {
		if el.Key == name {
			return el.Value
		}
	}
	return nil
}

// TestUpsertsWithoutKey is case 46 and the placing of upserts by what they make.
func TestUpsertsWithoutKey(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "k", 6)
	for _, c := range []struct {
		q, u  bson.D
		multi bool
		code  int32
	}{
		{d("n", d("$gt", 3)), d("$set", d("f", 1)), true, 0},
		{d("n", d("$gt", 4)), d("$set", d("k", "x")), false, 0},
		{d("n", d("$gt", 5)), d("$setOnInsert", d("k", "y")), true, 0},
		{d("$and", bson.A{d("k", "z")}, "n", d("$gt", 6)), d("$set", d("f", 1)), false, 0},
		{d("k", d("$in", bson.A{1, 2}), "n", 9), d("$set", d("f", 1)), false, 61},
		{d("k", d("$gt", 1), "n", 9), d("$set", d("f", 1)), true, 61},
		{d("n", 10), d("$inc", d("k", 1)), false, 61},
		{d("n", 10), d("k", bson.A{1}), false, 61},
	} {
		r, err := e.run(d("update", "c", "updates", bson.A{d("q", c.q, "u", c.u, "upsert", true, "multi", c.multi)}))
		if err != nil || e.writeCodes(r)[0] != c.code || (c.code == 0) != (r["upserted"] != nil) {
			t.Errorf("%v %v: %v %v", c.q, c.u, r, err)
		}
	}
	if got := len(e.all("c")); got != 4 {
		t.Errorf("%d documents, want 4", got)
	}
	e.shard("ids", "_id", 6)
	for i := range 20 {
		r, err := e.run(d("findAndModify", "ids", "query", d("name", i), "update", d("$set", d("v", 1)), "upsert", true, "new", true))
		if err != nil || valueOf(r["value"], "name") != int32(i) {
			t.Fatal(r, err)
		}
	}
	if got := len(e.all("ids")); got != 20 {
		t.Errorf("%d documents keyed by an _id of our making, want 20", got)
	}
}

// TestRetriesAreAppliedOnce repeats writes with the same lsid and txnNumber (case 24), split over partitions and without the key.
func TestRetriesAreAppliedOnce(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 6)
	var docs []any
	for i := range 12 {
		docs = append(docs, d("_id", i, "k", i, "v", 0))
	}
	if _, err := coll.InsertMany(e.ctx, docs); err != nil {
		t.Fatal(err)
	}
	lsid := d("id", bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")})
	list := bson.A{}
	for i := range 12 {
		list = append(list, d("q", d("k", i), "u", d("$inc", d("v", 1))))
	}
	for _, cmd := range []bson.D{
		d("update", "c", "updates", list, "ordered", false),
		d("update", "c", "updates", list),
		d("update", "c", "updates", bson.A{d("q", d("v", 2), "u", d("$set", d("v", 50)))}),
		d("findAndModify", "c", "query", d("v", 2), "update", d("$set", d("v", 60))),
		d("insert", "c", "documents", bson.A{d("_id", 100, "k", 100, "v", 2), d("_id", 101, "k", 101, "v", 2)}),
		d("delete", "c", "deletes", bson.A{d("q", d("v", 2), "limit", 1)}),
	} {
		txn := int64(len(e.all("c"))) + e.next()
		cmd = append(cmd, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: txn})
		first, err := e.raw(cmd)
		if err != nil {
			t.Fatal(cmd, err)
		}
		again, err := e.raw(cmd)
		if err != nil {
			t.Fatal(cmd, err)
		}
		if first["n"] != again["n"] || fmt.Sprint(first["lastErrorObject"]) != fmt.Sprint(again["lastErrorObject"]) {
			t.Errorf("%v: first %v, then %v", cmd[0], first, again)
		}
	}
	count := map[int32]int{}
	for _, doc := range e.all("c") {
		count[doc.Lookup("v").Int32()]++
	}
	if want := (map[int32]int{2: 11, 50: 1, 60: 1}); !maps.Equal(count, want) {
		t.Errorf("values %v, want %v", count, want)
	}
}

// next returns ever larger numbers.
func (e *writeEnv) next() int64 { return connIDs.Add(1) * 1000 }

// raw runs a command with fields that drivers do not let through.
func (e *writeEnv) raw(cmd bson.D, sections ...wire.Sequence) (bson.M, error) {
	e.t.Helper()
	return e.rawIn(e.ctx, cmd, sections...)
}

// rawIn is raw with a context of its own.
func (e *writeEnv) rawIn(ctx context.Context, cmd bson.D, sections ...wire.Sequence) (bson.M, error) {
	e.t.Helper()
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: e.db}))
	if err != nil {
		return nil, err
	}
	var msg wire.Msg
	whole := wire.AppendMsg(nil, 1, 0, 0, body, sections...)
	buf := wire.GetBuffer(0)
	buf.B = append(buf.B[:0], whole...)
	h, err := wire.ParseHeader(whole)
	if err != nil {
		return nil, err
	}
	if err := wire.ParseMsg(wire.Message{Header: h, Buf: buf}, &msg); err != nil {
		return nil, err
	}
	reply, err := e.router.dispatch(ctx, &Request{Msg: &msg, Started: time.Now()})
	if err != nil {
		return nil, err
	}
	var out bson.M
	return out, bson.Unmarshal(reply.Body, &out)
}

// TestUnsharded writes to a collection without a map, as one server would.
func TestUnsharded(t *testing.T) {
	e := fleetEnv(t)
	coll := e.client.Database(e.db).Collection("plain")
	if _, err := coll.InsertMany(e.ctx, []any{d("_id", 1), d("_id", 2)}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.UpdateMany(e.ctx, d(), d("$set", d("a", bson.A{1}))); err != nil {
		t.Error(err)
	}
	if r, err := coll.DeleteMany(e.ctx, d("a", 1)); err != nil || r.DeletedCount != 2 {
		t.Error(r, err)
	}
	if r, err := e.run(d("delete", "plain", "deletes", bson.A{d("q", d(), "limit", 2)})); err == nil && len(e.writeCodes(r)) == 0 {
		t.Errorf("limit 2 was accepted: %v", r)
	}
	if _, err := e.run(d("insert", "plain@1f.2.0", "documents", bson.A{d("_id", 1)})); codeOf(err) != wire.InvalidNamespace {
		t.Errorf("a physical name: %v", err)
	}
}

// TestUnacknowledged is case 23: {w: 0} with moreToCome leaves the connection in step, the writes land, and what fails is counted.
func TestUnacknowledged(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "_id", 6)
	zero := e.client.Database(e.db).Collection("c", options.Collection().SetWriteConcern(writeConcernZero()))
	for i := range 50 {
		_, _ = zero.InsertOne(e.ctx, d("_id", i%45))
		if err := e.client.Ping(e.ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(e.all("c")); got != 45 {
		t.Errorf("%d documents", got)
	}
	if got := e.router.stats.swallowed.Load(); got != 5 {
		t.Errorf("%d failures counted, want 5", got)
	}
}

func writeConcernZero() *writeconcern.WriteConcern { return &writeconcern.WriteConcern{W: 0} }
