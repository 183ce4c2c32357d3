package splitter_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// A write that reaches a home after it was dropped makes it anew; it does not stay until the hour is over.
func TestWhatALateWriteMakesIsDropped(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {}, func(cfg *splitter.Config) { cfg.SweepAfter = 3 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.split.Run(ctx) })
	defer running.Wait()
	defer stop()
	old := w.home()
	if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	db := w.b.Client().Database("db")
	if _, err := db.Collection(old).InsertOne(t.Context(), bson.D{{Key: "_id", Value: "late"}}); err != nil {
		t.Fatal(err)
	}
	if names, err := db.ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: old}}); err != nil || len(names) != 1 {
		t.Fatalf("the late write made %v, %v", names, err)
	}
	w.whole(t)
}
