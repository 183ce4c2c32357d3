package splitter_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// TestSplitOfWhatWasSplitMeanwhile: of two that measure a partition and split it, the second measures again what has come in its place; the first one's middle is
// next to nothing there.
func TestSplitOfWhatWasSplitMeanwhile(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	c := w.b.Client().Database("db").Collection("c")
	var docs []any
	for i := range 400 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	if _, err := c.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "_id", 0)
	done := make(chan error, 2)
	for range cap(done) {
		go func() { done <- w.split.SplitMedian(t.Context(), "db.c", shardkey.Position(1)) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var sizes []int64
	for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
		n, err := c.Database().Collection(p.Physical).CountDocuments(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	if len(sizes) != 3 || sizes[0] < 90 || sizes[2] > 210 {
		t.Errorf("partitions of %v documents, want about 100, 100 and 200", sizes)
	}
}
