package splitter_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// TestZeroTimestampsSurviveASplit: a server puts its time where an inserted document has Timestamp(0, 0) at its top; a copy keeps it, so that the partition can be split.
func TestZeroTimestampsSurviveASplit(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	c := w.b.Client().Database("db").Collection("c")
	err := c.Database().RunCommand(t.Context(), bson.D{{Key: "insert", Value: "probe"}, {Key: "documents", Value: bson.A{bson.D{{Key: "ts", Value: bson.Timestamp{}}}}},
		{Key: "bypassEmptyTsReplacement", Value: true}}).Err()
	if err != nil {
		t.Skipf("the server does not know bypassEmptyTsReplacement: %v", err)
	}
	if n, err := c.Database().Collection("probe").CountDocuments(t.Context(), bson.D{{Key: "ts", Value: bson.Timestamp{}}}); err != nil || n != 1 {
		t.Skipf("the server takes bypassEmptyTsReplacement and does not heed it (%v)", err)
	}
	for i := range 20 {
		doc := bson.D{{Key: "_id", Value: i}, {Key: "a", Value: 1}, {Key: "x.y", Value: bson.Timestamp{}}, {Key: "$z", Value: bson.Timestamp{}}, {Key: "b", Value: 2}}
		err := c.Database().RunCommand(t.Context(), bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc}}, {Key: "bypassEmptyTsReplacement", Value: true}}).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}}}}); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "_id", 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.split.Split(ctx, "db.c", shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
		m, err := c.Database().Collection(p.Physical).CountDocuments(t.Context(), bson.D{{Key: "ts", Value: bson.Timestamp{}}})
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if n != 20 {
		t.Errorf("%d documents with an empty timestamp after the split, want 20", n)
	}
}
