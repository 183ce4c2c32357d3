package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/rawconn"
	"github.com/shardway/shardway/integration/running"
	"github.com/shardway/shardway/internal/waits"
)

// These tests are cases from the field: faults that users of such systems have reported, each with its right answer. The numbers are
// those of the collection that the project keeps; the comments say what went wrong elsewhere.

// caseColl makes a sharded collection of a test's own, on the hash of tenant unless key says otherwise, over all backends.
func caseColl(t *testing.T, key string) (c *rawconn.Conn, db string) {
	t.Helper()
	c = dial(t, sharedProxy(t).Addr())
	db = fleettest.DB(t)
	must(t, c, "admin", shardCmd(db+".c", key))
	addr := sharedProxy(t).Addr()
	t.Cleanup(func() { // on a connection of its own: some tests end theirs
		last, err := rawconn.Dial(context.Background(), addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer last.Close()
		ask(t, last, db, bson.D{{Key: "dropDatabase", Value: 1}})
	})
	return c, db
}

func insertCmd(docs ...any) bson.D {
	return bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A(docs)}}
}

// tenants are n documents {_id: i, tenant: "t<i>"}.
func tenants(n int) []any {
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: int32(i)}, {Key: "tenant", Value: fmt.Sprintf("t%d", i)}}
	}
	return docs
}

// batchOf are the documents of a reply's batch, and the cursor's id.
func batchOf(t *testing.T, reply bson.Raw) ([]bson.Raw, int64) {
	t.Helper()
	var r struct {
		Cursor struct {
			ID         int64
			FirstBatch []bson.Raw `bson:"firstBatch"`
			NextBatch  []bson.Raw `bson:"nextBatch"`
		}
	}
	if err := bson.Unmarshal(reply, &r); err != nil || !rawconn.OK(reply) {
		t.Fatalf("%v: %v", reply, err)
	}
	return append(r.Cursor.FirstBatch, r.Cursor.NextBatch...), r.Cursor.ID
}

// drain reads a cursor to its end.
func drain(t *testing.T, c *rawconn.Conn, db string, cmd bson.D) []bson.Raw {
	t.Helper()
	docs, id := batchOf(t, ask(t, c, db, cmd))
	for id != 0 {
		var more []bson.Raw
		more, id = batchOf(t, ask(t, c, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}}))
		docs = append(docs, more...)
	}
	return docs
}

func ids(docs []bson.Raw) []int {
	all := []int{}
	for _, d := range docs {
		n, _ := d.Lookup("_id").AsInt64OK()
		all = append(all, int(n))
	}
	return all
}

// Case 1: a cursor is the process's, not the connection's; an unknown id is an error at once.
func TestCase1CursorAcrossConnections(t *testing.T) {
	a, db := caseColl(t, "tenant")
	must(t, a, db, insertCmd(tenants(20)...))
	b := dial(t, sharedProxy(t).Addr())
	first, id := batchOf(t, ask(t, a, db, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: int32(5)}}))
	more := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "batchSize", Value: int32(5)}}
	wrong := ask(t, b, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "other"}})
	if code := rawconn.Code(wrong); code != 13 {
		t.Errorf("getMore with another collection's name: %d", code)
	}
	second, _ := batchOf(t, ask(t, b, db, more))
	all := append(ids(first), ids(second)...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 10 {
		t.Errorf("two batches of five: %v", all)
	}
	more[2].Value = int32(100)
	if rest, left := batchOf(t, ask(t, b, db, more)); len(rest) != 10 || left != 0 {
		t.Errorf("after them %v, cursor %d: the wrong getMore must not have consumed any", ids(rest), left)
	}
	if code := rawconn.Code(ask(t, b, db, bson.D{{Key: "getMore", Value: int64(987654321987)}, {Key: "collection", Value: "c"}})); code != 43 {
		t.Errorf("an unknown cursor: %d", code)
	}
	must(t, b, "admin", bson.D{{Key: "ping", Value: 1}})
}

// Case 2: a cursor's id is an int64 on the wire and cannot be guessed.
func TestCase2CursorIDType(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(tenants(150)...))
	var last int64
	for range 3 {
		reply := ask(t, c, db, bson.D{{Key: "find", Value: "c"}})
		id := reply.Lookup("cursor", "id")
		if id.Type != bson.TypeInt64 || id.Int64() == 0 {
			t.Fatalf("id %v of type %v", id, id.Type)
		}
		if distance := id.Int64() - last; -1<<20 < distance && distance < 1<<20 {
			t.Errorf("%d follows %d", id.Int64(), last)
		}
		last = id.Int64()
	}
	if code := rawconn.Code(ask(t, c, db, bson.D{{Key: "getMore", Value: int32(7)}, {Key: "collection", Value: "c"}})); code != 14 {
		t.Errorf("an int32 id: %d", code)
	}
}

// Case 5: batch sizes at their edges.
func TestCase5BatchSize(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(tenants(150)...))
	for _, test := range []struct {
		size any
		want int
	}{{int32(0), 0}, {nil, 101}, {int32(2147483647), 150}, {1.5, 1}, {int64(3), 3}} {
		cmd := bson.D{{Key: "find", Value: "c"}}
		if test.size != nil {
			cmd = append(cmd, bson.E{Key: "batchSize", Value: test.size})
		}
		docs, id := batchOf(t, ask(t, c, db, cmd))
		if len(docs) != test.want || id == 0 && test.want < 150 {
			t.Errorf("batchSize %v: %d documents, cursor %d", test.size, len(docs), id)
		}
	}
	for size, want := range map[any]int{int32(2147483647): 150, int64(1<<63 - 1): 150, int32(0): 150, 1.5: 1, int64(7): 7} {
		_, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: int32(0)}}))
		docs, id := batchOf(t, ask(t, c, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "batchSize", Value: size}}))
		if len(docs) != want {
			t.Errorf("getMore with %v: %d documents, then %d", size, len(docs), id)
		}
	}
	_, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: int32(0)}}))
	if docs, _ := batchOf(t, ask(t, c, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}})); len(docs) != 150 {
		t.Errorf("getMore without batchSize: %d documents", len(docs))
	}
	if docs, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "limit", Value: int32(3)}, {Key: "singleBatch", Value: true}})); len(docs) != 3 || id != 0 {
		t.Errorf("limit -3: %d documents, cursor %d", len(docs), id)
	}
}

// Case 5: a merged batch never exceeds 16 MB, whatever was asked for.
func TestCase5BatchBytes(t *testing.T) {
	c, db := caseColl(t, "tenant")
	filler := strings.Repeat("x", 1<<20)
	for i := range 40 {
		must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(i)}, {Key: "tenant", Value: int32(i)}, {Key: "f", Value: filler}}))
	}
	reply := ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: int32(1000)}})
	docs, id := batchOf(t, reply)
	if len(reply) > 16<<20+16<<10 || len(docs) < 10 || id == 0 {
		t.Errorf("a reply of %d bytes with %d documents, cursor %d", len(reply), len(docs), id)
	}
	if all := drain(t, c, db, bson.D{{Key: "find", Value: "c"}}); len(all) != 40 {
		t.Errorf("%d documents", len(all))
	}
}

// Case 7: one server's order over mixed types.
func TestCase7MixedOrder(t *testing.T) {
	c, db := caseColl(t, "_id")
	straight := dial(t, direct(t).Addr())
	t.Cleanup(func() { ask(t, straight, db, bson.D{{Key: "dropDatabase", Value: 1}}) })
	for i, v := range []any{"s", int32(3), nil, "missing", bson.A{}, bson.A{int32(7), int32(1)}, true, bson.DateTime(0), bson.D{{Key: "a", Value: int32(1)}}, bson.ObjectID{1}, int64(2)} {
		d := bson.D{{Key: "_id", Value: int32(i + 1)}, {Key: "v", Value: v}}
		if v == "missing" {
			d = d[:1]
		}
		must(t, c, db, insertCmd(d))
		must(t, straight, db, insertCmd(d))
	}
	up, down := []int{5, 3, 4, 6, 11, 2, 1, 9, 10, 7, 8}, []int{8, 7, 10, 9, 1, 6, 2, 11, 3, 4, 5}
	for _, batch := range []int32{0, 2, 100} {
		for dir, want := range map[int32][]int{1: up, -1: down} {
			got := ids(drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "v", Value: dir}, {Key: "_id", Value: int32(1)}}}, {Key: "batchSize", Value: batch}}))
			if !slices.Equal(got, want) {
				t.Errorf("direction %d, batchSize %d: got %v, want %v", dir, batch, got, want)
			}
			// An aggregation's $sort may place an empty array elsewhere: as one server does it.
			stages := bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$sort", Value: bson.D{{Key: "v", Value: dir}, {Key: "_id", Value: int32(1)}}}}}}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: batch}}}}
			if got, want := ids(drain(t, c, db, stages)), ids(drain(t, straight, db, stages)); len(want) != 11 || !slices.Equal(got, want) {
				t.Errorf("$sort, direction %d, batchSize %d: got %v, a server %v", dir, batch, got, want)
			}
		}
	}
}

// Case 8: skip and limit are applied once, after the merge.
func TestCase8SkipLimit(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(tenants(20)...))
	byID := bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: int32(1)}}}
	docs, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, byID, {Key: "skip", Value: int32(5)}, {Key: "limit", Value: int32(3)}, {Key: "singleBatch", Value: true}, {Key: "batchSize", Value: int32(2)}}))
	if !slices.Equal(ids(docs), []int{5, 6}) || id != 0 {
		t.Errorf("single batch: %v, cursor %d", ids(docs), id)
	}
	if got := ids(drain(t, c, db, bson.D{{Key: "find", Value: "c"}, byID, {Key: "skip", Value: int32(9)}, {Key: "limit", Value: int32(2)}})); !slices.Equal(got, []int{9, 10}) {
		t.Errorf("over the boundary: %v", got)
	}
	if docs, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, byID, {Key: "skip", Value: int32(10)}, {Key: "limit", Value: int32(5)}, {Key: "singleBatch", Value: true}})); !slices.Equal(ids(docs), []int{10, 11, 12, 13, 14}) || id != 0 {
		t.Errorf("skip(10).batchSize(-5): %v, cursor %d", ids(docs), id)
	}
	if docs, id := batchOf(t, ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "limit", Value: int32(1)}})); len(docs) != 1 || id != 0 {
		t.Errorf("limit 1: %d documents, cursor %d", len(docs), id)
	}
}

// Case 11: a string under a collation may equal another: it is not targeted, and a collated order is right or refused.
func TestCase11Collation(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(1)}, {Key: "tenant", Value: "ab"}}, bson.D{{Key: "_id", Value: int32(2)}, {Key: "tenant", Value: "AB"}}))
	collation := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: int32(2)}}}
	if got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "tenant", Value: "ab"}}}, collation}); len(got) != 2 {
		t.Errorf("find: %v", got)
	}
	if n := must(t, c, db, bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "tenant", Value: "ab"}}}, collation}).Lookup("n"); n.AsInt64() != 2 {
		t.Errorf("count: %v", n)
	}
	q, one := bson.D{{Key: "tenant", Value: "Ab"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: int32(1)}}}}
	up := ask(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: one}, {Key: "multi", Value: true}, collation}}}})
	if n, _ := up.Lookup("n").AsInt64OK(); n != 2 {
		t.Errorf("update: %v", up)
	}
	sorted := ask(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "tenant", Value: int32(1)}}}, collation})
	if rawconn.OK(sorted) {
		t.Errorf("a collated sort over several partitions is answered: %v", sorted)
	}
	different := ask(t, c, db, bson.D{{Key: "distinct", Value: "c"}, {Key: "key", Value: "tenant"}, collation})
	if values, ok := different.Lookup("values").ArrayOK(); ok {
		if all, err := values.Values(); err != nil || len(all) != 1 {
			t.Errorf("distinct: %v", different)
		}
	} else if code := rawconn.Code(different); code != 238 {
		t.Errorf("distinct: %v", different)
	}
	fam := ask(t, c, db, bson.D{{Key: "findAndModify", Value: "c"}, {Key: "query", Value: q}, {Key: "update", Value: one}, collation})
	if n, _ := fam.Lookup("lastErrorObject", "n").AsInt64OK(); n != 1 {
		t.Errorf("findAndModify: %v", fam)
	}
	single := ask(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: one}, collation}}}})
	if n, _ := single.Lookup("n").AsInt64OK(); n != 1 {
		t.Errorf("update of one: %v", single)
	}
	must(t, c, db, bson.D{{Key: "create", Value: "german"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}, {Key: "strength", Value: int32(1)}}}})
	if code := rawconn.Code(ask(t, c, "admin", shardCmd(db+".german", "tenant"))); code != 2 {
		t.Errorf("a collection with a collation of its own is sharded: %d", code)
	}
	must(t, c, db, bson.D{{Key: "insert", Value: "german"}, {Key: "documents", Value: bson.A{bson.D{{Key: "tenant", Value: "ab"}}, bson.D{{Key: "tenant", Value: "AB"}}}}})
	if got := drain(t, c, db, bson.D{{Key: "find", Value: "german"}, {Key: "filter", Value: bson.D{{Key: "tenant", Value: "Ab"}}}}); len(got) != 2 {
		t.Errorf("by the collection's collation: %v", got)
	}
	del := ask(t, c, db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "limit", Value: int32(0)}, collation}}}})
	if n, _ := del.Lookup("n").AsInt64OK(); n != 2 {
		t.Errorf("delete: %v", del)
	}
}

// Case 13: equal numbers of four types are one value, as _id and as key.
func TestCase13NumericEquality(t *testing.T) {
	five, err := bson.ParseDecimal128("5.0")
	if err != nil {
		t.Fatal(err)
	}
	fives := []any{int32(5), int64(5), 5.0, five}
	for _, key := range []string{"_id", "tenant"} {
		t.Run(key, func(t *testing.T) {
			c, db := caseColl(t, key)
			refused := 0
			for _, v := range fives {
				reply := ask(t, c, db, insertCmd(bson.D{{Key: "_id", Value: v}, {Key: "tenant", Value: v}}))
				if code, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK(); code == 11000 {
					refused++
				}
			}
			if refused != 3 {
				t.Errorf("%d of four are duplicates", refused)
			}
			for _, v := range fives {
				if got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: key, Value: v}}}}); len(got) != 1 {
					t.Errorf("find by %T: %v", v, got)
				}
			}
		})
	}
}

// Case 15: a missing key is null.
func TestCase15NullKey(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(1)}, {Key: "tenant", Value: nil}}, bson.D{{Key: "_id", Value: int32(2)}}, bson.D{{Key: "_id", Value: int32(3)}, {Key: "tenant", Value: int32(0)}}))
	for _, test := range []struct {
		filter bson.D
		want   []int
	}{
		{bson.D{{Key: "tenant", Value: nil}}, []int{1, 2}},
		{bson.D{{Key: "tenant", Value: bson.D{{Key: "$exists", Value: false}}}}, []int{2}},
	} {
		got := ids(drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: test.filter}}))
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%v: got %v, want %v", test.filter, got, test.want)
		}
	}
	up := must(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "tenant", Value: nil}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: int32(1)}}}}}, {Key: "multi", Value: true}}}}})
	if up.Lookup("n").AsInt64() != 2 {
		t.Errorf("update of null: %v", up)
	}
	del := must(t, c, db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: int32(2)}}}, {Key: "limit", Value: int32(1)}}}}})
	if del.Lookup("n").AsInt64() != 1 {
		t.Errorf("delete by _id: %v", del)
	}
}

// Case 17: however a filter binds the key, the answer is one server's.
func TestCase17KeyForms(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(1)}, {Key: "tenant", Value: "a"}}, bson.D{{Key: "_id", Value: int32(2)}, {Key: "tenant", Value: "b"}}))
	a, b := bson.D{{Key: "tenant", Value: "a"}}, bson.D{{Key: "tenant", Value: "b"}}
	for i, test := range []struct {
		filter bson.D
		hits   int64
	}{
		{bson.D{{Key: "$and", Value: bson.A{a, a}}}, 1},
		{bson.D{{Key: "$and", Value: bson.A{a, b}}}, 0},
		{bson.D{{Key: "$or", Value: bson.A{a, a}}}, 1},
		{bson.D{{Key: "tenant", Value: bson.D{{Key: "$eq", Value: "a"}}}}, 1},
		{bson.D{{Key: "tenant", Value: bson.D{{Key: "$in", Value: bson.A{"a"}}}}}, 1},
		{bson.D{{Key: "$expr", Value: bson.D{{Key: "$eq", Value: bson.A{"$tenant", "a"}}}}}, 1},
		{bson.D{{Key: "tenant", Value: bson.Regex{Pattern: "^a$"}}}, 1},
	} {
		if i == 0 || i == 3 || i == 4 {
			plan := must(t, c, db, bson.D{{Key: "explain", Value: bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: test.filter}}}, {Key: "verbosity", Value: "queryPlanner"}})
			if stage := plan.Lookup("queryPlanner", "winningPlan", "stage").StringValue(); stage != "SINGLE_SHARD" {
				t.Errorf("%v: %s", test.filter, stage)
			}
		}
		reply := must(t, c, db, bson.D{{Key: "findAndModify", Value: "c"}, {Key: "query", Value: test.filter}, {Key: "update", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: int32(i)}}}}}})
		if n := reply.Lookup("lastErrorObject", "n").AsInt64(); n != test.hits {
			t.Errorf("%v: %d", test.filter, n)
		}
	}
}

// Case 18: an upsert by _id alone makes one document, also under concurrency.
func TestCase18UpsertByID(t *testing.T) {
	c, db := caseColl(t, "tenant")
	save := func(c *rawconn.Conn, id int32, tenant string) (bson.Raw, error) {
		return c.Run(bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
			{Key: "u", Value: bson.D{{Key: "_id", Value: id}, {Key: "tenant", Value: tenant}, {Key: "v", Value: int32(1)}}}, {Key: "upsert", Value: true}}}}, {Key: "$db", Value: db}})
	}
	for i, tenant := range []string{"a", "a", "b"} {
		reply, err := save(c, 1, tenant)
		if err != nil {
			t.Fatal(err)
		}
		code, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK()
		if want := int64(66 * (i / 2)); code != want {
			t.Errorf("save %d: %v", i, reply)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		conn := dial(t, sharedProxy(t).Addr())
		wg.Go(func() {
			if reply, err := save(conn, 2, "together"); err != nil || !rawconn.OK(reply) {
				t.Errorf("%v, %v", reply, err)
			}
		})
	}
	wg.Wait()
	if got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: int32(2)}}}}); len(got) != 1 {
		t.Errorf("20 clients made %v", got)
	}
}

// Case 19: the key cannot change, in whatever form; an equal value passes.
func TestCase19KeyIsImmutable(t *testing.T) {
	c, db := caseColl(t, "tenant")
	before := bson.D{{Key: "_id", Value: int32(7)}, {Key: "tenant", Value: "a"}}
	must(t, c, db, insertCmd(before))
	q := bson.E{Key: "q", Value: before}
	z := bson.D{{Key: "$set", Value: bson.D{{Key: "tenant", Value: "z"}}}}
	update := func(s ...bson.D) bson.D {
		all := bson.A{}
		for _, d := range s {
			all = append(all, d)
		}
		return bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: all}}
	}
	for name, cmd := range map[string]bson.D{
		"$set":        update(bson.D{q, {Key: "u", Value: z}}),
		"replacement": update(bson.D{q, {Key: "u", Value: bson.D{{Key: "tenant", Value: "z"}}}}),
		"pipeline":    update(bson.D{q, {Key: "u", Value: bson.A{z}}}),
		"multi":       update(bson.D{q, {Key: "u", Value: z}, {Key: "multi", Value: true}}),
		"fam":         {{Key: "findAndModify", Value: "c"}, {Key: "query", Value: before}, {Key: "update", Value: z}, {Key: "new", Value: true}},
	} {
		reply := ask(t, c, db, cmd)
		code := rawconn.Code(reply)
		if e, ok := reply.Lookup("writeErrors", "0", "code").AsInt64OK(); ok {
			code = int(e)
		}
		if code != 66 {
			t.Errorf("%s: %v", name, reply)
		}
	}
	same := bson.D{{Key: "$set", Value: bson.D{{Key: "tenant", Value: "a"}}}}
	reply := ask(t, c, db, append(update(bson.D{q, {Key: "u", Value: same}}, bson.D{q, {Key: "u", Value: z}}, bson.D{q, {Key: "u", Value: same}}), bson.E{Key: "ordered", Value: false}))
	if n := reply.Lookup("n").AsInt64(); n != 2 || reply.Lookup("writeErrors", "0", "index").AsInt64() != 1 {
		t.Errorf("in a batch: %v", reply)
	}
	if got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}}); len(got) != 1 || got[0].Lookup("tenant").StringValue() != "a" {
		t.Errorf("the document is %v", got)
	}
}

// Case 21: indexes are the client's, after the merge; an ordered batch stops exactly there.
func TestCase21BatchIndexes(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		c, db := caseColl(t, "_id")
		must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(4)}}, bson.D{{Key: "_id", Value: int32(9)}}))
		docs := bson.A{}
		for i := range int32(12) {
			docs = append(docs, bson.D{{Key: "_id", Value: i}})
		}
		reply := ask(t, c, db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}, {Key: "ordered", Value: ordered}})
		var r struct {
			N           int
			WriteErrors []struct{ Index int } `bson:"writeErrors"`
		}
		if err := bson.Unmarshal(reply, &r); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(r.N, r.WriteErrors)
		want := "10 [{4} {9}]"
		if ordered {
			want = "4 [{4}]"
			left := ids(drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: int32(1)}}}}))
			if !slices.Equal(left, []int{0, 1, 2, 3, 4, 9}) {
				t.Errorf("an ordered batch left %v", left)
			}
		}
		if got != want {
			t.Errorf("ordered %v: got %s, want %s", ordered, got, want)
		}
	}
	c, db := caseColl(t, "_id")
	statements := bson.A{}
	for i := range int32(40) {
		s := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: i}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: int32(1)}}}}}}
		switch i {
		case 3, 17, 39:
			s = append(s, bson.E{Key: "upsert", Value: true})
		case 5, 20:
			s[1].Value = bson.D{{Key: "$set", Value: bson.D{{Key: "_id", Value: int32(-1)}}}}
			s = append(s, bson.E{Key: "upsert", Value: true})
		}
		statements = append(statements, s)
	}
	var r struct {
		Upserted    []struct{ Index int }
		WriteErrors []struct{ Index int } `bson:"writeErrors"`
	}
	if err := bson.Unmarshal(ask(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: statements}, {Key: "ordered", Value: false}}), &r); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(r.Upserted, r.WriteErrors), "[{3} {17} {39}] [{5} {20}]"; got != want {
		t.Errorf("updates: got %s, want %s", got, want)
	}
}

// Case 23: an unacknowledged write gets no reply, and the next reply is the next request's.
func TestCase23Unacknowledged(t *testing.T) {
	c, db := caseColl(t, "_id")
	const n = 1000
	for i := range int32(n) {
		id := i
		if i == n-1 {
			id = 0 // a duplicate, whose error nobody sees
		}
		cmd := append(insertCmd(bson.D{{Key: "_id", Value: id}}), bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: int32(0)}}}, bson.E{Key: "$db", Value: db})
		if err := c.Send(rawconn.Msg(c.NextID(), rawconn.MoreToCome, rawconn.Kind0(cmd))); err != nil {
			t.Fatal(err)
		}
	}
	must(t, c, "admin", bson.D{{Key: "ping", Value: 1}}) // Exchange compares responseTo
	waits.Until(t, "all unacknowledged inserts are executed", func() bool {
		return must(t, c, db, bson.D{{Key: "count", Value: "c"}}).Lookup("n").AsInt64() == n-1
	})
}

// Case 23, to a backend that is dead: nobody is told, and the connection stays in step.
func TestCase23UnacknowledgedToADeadBackend(t *testing.T) {
	servers := fleettest.Start(t, 2, fleettest.Durable).Servers
	c := dial(t, running.Test(t, servers, "--pool-selection-timeout", "2s").Addr()) // which the delete waits for
	must(t, c, "admin", shardCmd("db.c", "_id"))
	const n = 20
	var docs []any
	for i := range int32(n) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	must(t, c, "db", insertCmd(docs...))
	there := drain(t, dial(t, servers[1].Addr()), "db", bson.D{{Key: "find", Value: onlyCollection(t, servers[1], "db")}})
	if len(there) == 0 || len(there) == n {
		t.Fatalf("%d of %d documents are on the backend that is to die", len(there), n)
	}
	if err := servers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	remove := bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: there[0].Lookup("_id").Int32()}}}, {Key: "limit", Value: int32(1)}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: int32(0)}}}, {Key: "$db", Value: "db"}}
	if err := c.Send(rawconn.Msg(c.NextID(), rawconn.MoreToCome, rawconn.Kind0(remove))); err != nil {
		t.Fatal(err)
	}
	must(t, c, "admin", bson.D{{Key: "ping", Value: 1}}) // Exchange compares responseTo
	if err := servers[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "everything is there", func(context.Context) bool {
		reply := ask(t, c, "db", bson.D{{Key: "count", Value: "c"}})
		if rawconn.OK(reply) && reply.Lookup("n").AsInt64() != n {
			t.Fatalf("%v, not %d documents", reply, n)
		}
		return rawconn.OK(reply)
	})
}

// onlyCollection is the name of the one collection of a database on a server.
func onlyCollection(t *testing.T, s *fleet.Server, db string) string {
	t.Helper()
	colls, _ := batchOf(t, must(t, dial(t, s.Addr()), db, bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}}))
	if len(colls) != 1 {
		t.Fatalf("%d collections", len(colls))
	}
	return colls[0].Lookup("name").StringValue()
}

// Case 24: a repeated write is answered again and not applied again.
func TestCase24RepeatedWrite(t *testing.T) {
	c, db := caseColl(t, "tenant")
	must(t, c, db, insertCmd(tenants(3)...))
	lsid := bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}}}}
	cmd := bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "tenant", Value: "t0"}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: int32(1)}}}}}},
		bson.D{{Key: "q", Value: bson.D{{Key: "tenant", Value: "t1"}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: int32(1)}}}}}},
		bson.D{{Key: "q", Value: bson.D{{Key: "tenant", Value: "t2"}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: int32(1)}}}}}},
	}}, lsid, {Key: "txnNumber", Value: int64(1)}}
	for range 3 {
		if reply := must(t, c, db, cmd); reply.Lookup("n").AsInt64() != 3 {
			t.Errorf("%v", reply)
		}
	}
	for _, d := range drain(t, c, db, bson.D{{Key: "find", Value: "c"}}) {
		if d.Lookup("v").AsInt64() != 1 {
			t.Errorf("%v", d)
		}
	}
}
