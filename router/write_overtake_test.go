package router

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
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
