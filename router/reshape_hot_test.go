package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// A document that changes all the time differs between input and output at every reading; that must not keep its partition from being split,
// and no change of it may be lost.
func TestSplitWithADocumentThatNeverRests(t *testing.T) {
	p := startProxy(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p.shard(t, "db.c", "k", 1)
	coll := p.client.Database("db").Collection("c")
	var docs []any
	for i := range int32(200) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "n", Value: int32(0)}})
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	acked := make([]int32, 4)
	for w := range acked {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := coll.UpdateOne(ctx, bson.D{{Key: "k", Value: int32(7)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
					t.Errorf("update: %v", err)
					return
				}
				acked[w]++
			}
		})
	}
	attempts := p.changes(t, "split.error")
	err := p.split.Split(ctx, "db.c", shardkey.Position(1<<63))
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if n := p.changes(t, "split.error") - attempts; n > 0 {
		t.Errorf("%d attempts failed before the split", n)
	}
	want := int32(0)
	for _, n := range acked {
		want += n
	}
	var got struct{ N int32 }
	if err := coll.FindOne(ctx, bson.D{{Key: "k", Value: int32(7)}}).Decode(&got); err != nil || got.N != want {
		t.Errorf("%d of %d acknowledged changes, %v", got.N, want, err)
	}
}

// changes counts entries of the history.
func (p *proxy) changes(t *testing.T, what string) int64 {
	t.Helper()
	n, err := p.client.Database("config").Collection("changelog").CountDocuments(t.Context(), bson.D{{Key: "what", Value: what}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
