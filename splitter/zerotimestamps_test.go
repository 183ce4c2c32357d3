package splitter_test

import (
	"bytes"
	"context"
	"maps"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/shardkey"
)

// TestZeroTimestampsSurviveASplit: a server puts its time where an inserted document has
// Timestamp(0, 0) at its top; a copy keeps it, so that the partition can be split.
func TestZeroTimestampsSurviveASplit(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	c := w.b.Client().Database("db").Collection("c")
	for i := range 20 {
		doc := bson.D{{Key: "_id", Value: i}, {Key: "a", Value: 1}, {Key: "ts", Value: 0}, {Key: "x.y", Value: 0}, {Key: "$z", Value: 0}, {Key: "b", Value: 2}}
		if _, err := c.InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}}}}); err != nil {
		t.Fatal(err)
	}
	var stages mongo.Pipeline // $set takes these names for paths
	for _, name := range []string{"x.y", "$z"} {
		stages = append(stages, bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$setField", Value: bson.D{{Key: "field", Value: bson.D{{Key: "$literal", Value: name}}},
			{Key: "input", Value: "$$ROOT"}, {Key: "value", Value: bson.Timestamp{}}}}}}})
	}
	if _, err := c.UpdateMany(t.Context(), bson.D{}, stages); err != nil {
		t.Fatal(err)
	}
	before := w.allDocuments(t, "c")
	w.shard(t, "_id", 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.split.Split(ctx, "db.c", shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	after := map[string]bson.Raw{}
	for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
		maps.Copy(after, w.allDocuments(t, p.Physical))
	}
	if len(before) != 20 || len(after) != 20 {
		t.Errorf("%d documents after the split, %d before it", len(after), len(before))
	}
	for id, doc := range before {
		if ts, i, ok := doc.Lookup("ts").TimestampOK(); !ok || ts != 0 || i != 0 {
			t.Fatalf("there is no zero timestamp to copy: %v", doc)
		}
		if !bytes.Equal(after[id], doc) {
			t.Errorf("copied as %v, want %v", after[id], doc)
		}
	}
}

// allDocuments reads a collection of db, by the documents' ids.
func (w *world) allDocuments(t *testing.T, coll string) map[string]bson.Raw {
	t.Helper()
	cur, err := w.b.Client().Database("db").Collection(coll).Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.Raw
	if err := cur.All(t.Context(), &docs); err != nil {
		t.Fatal(err)
	}
	all := map[string]bson.Raw{}
	for _, d := range docs {
		all[d.Lookup("_id").String()] = d
	}
	return all
}
