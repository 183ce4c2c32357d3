package router

import (
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
)

// TestRepetitionThatOvertakes: a retryable write whose document must be found first is applied to one document, also when it is sent again while it runs, as a
// driver does that has lost its connection.
func TestRepetitionThatOvertakes(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 6)
	var docs []any
	for i := range 300 {
		docs = append(docs, d("_id", i, "k", i, "kind", "free"))
	}
	if _, err := coll.InsertMany(e.ctx, docs); err != nil {
		t.Fatal(err)
	}
	for n := range 60 {
		filter, set := d("kind", "free"), d("$set", d("kind", "taken", "by", n))
		command := d("findAndModify", "c", "query", filter, "update", set)
		if n%2 == 1 {
			command = d("update", "c", "updates", bson.A{d("q", filter, "u", set)})
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if _, err := e.raw(retryable(command, int64(n+1))); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			})
		}
		both.Wait()
		if got, err := coll.CountDocuments(e.ctx, d("by", n)); err != nil || got != 1 {
			t.Errorf("%d documents were taken by %d, want 1 (%v)", got, n, err)
		}
	}
}

// TestRepetitionOfAnotherProxys: the first try of a retryable write, at another proxy, is executed while this one's repetition looks for its document, and finds another one. The home that
// executed it has it on record by then, and answers.
func TestRepetitionOfAnotherProxys(t *testing.T) {
	for _, command := range []bson.D{
		d("findAndModify", "c", "query", d("kind", "free"), "update", d("$set", d("kind", "taken"))),
		d("update", "c", "updates", bson.A{d("q", d("kind", "free"), "u", d("$set", d("kind", "taken")))}),
		d("delete", "c", "deletes", bson.A{d("q", d("kind", "free"), "limit", 1)}),
	} {
		e, servers := scriptEnv(t)
		e.shard("c", "k", 2)
		parts := e.table.View().Collection(e.db + ".c").Parts
		var looked atomic.Bool
		for i, s := range servers[:2] {
			rec := recorded{home: parts[i].Home}
			if i == 0 {
				rec.txn, rec.at = 7, map[int32]uint32{0: 1}
			}
			s.SetScript(func(c backendtest.Command) backendtest.Answer {
				switch {
				case c.DB == "config" && !looked.Load():
					return recorded{}.answer(c)
				case c.Name == "find" && catalog.IsPhysicalName(c.Body.Lookup("find").StringValue()):
					looked.Store(true)
					batch := bson.A{}
					if i == 1 {
						batch = append(batch, d("_id", 2, "k", 2))
					}
					return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", batch)})
				}
				return rec.answer(c)
			})
		}
		if _, err := e.raw(retryable(command, 7)); err != nil {
			t.Errorf("%s: %v", command[0].Key, err)
		}
		if at, other := writesOf(servers[0]), writesOf(servers[1]); len(at) != 1 || len(other) != 0 {
			t.Errorf("%s: %d writes went to the home that has it on record, %d to the other", command[0].Key, len(at), len(other))
		}
	}
}
