package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
)

// A rename keeps the physical names, which were made from the old name: neither the sweep nor the end of an
// earlier reshape's record may take what the new name's map names for something that is left over.
func TestRenamedCollectionOutlivesSweepAndRecovery(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	p.shard(t, "db.old", "k", 2)
	db := p.client.Database("db")
	for i := range 50 {
		if _, err := db.Collection("old").InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	// As a process leaves it that ends after a flip, before the record is deleted.
	rec := catalog.Reshape{ID: bson.NewObjectID(), NS: "db.old", Kind: "split", Owner: bson.NewObjectID(), Server: "gone", Slot: "done", Phase: catalog.Retiring}
	for _, part := range p.catalog.Snapshot().Map("db.old").Partitions {
		rec.Outputs = append(rec.Outputs, catalog.RecordedHome{Backend: part.Backend, Physical: part.Physical})
	}
	if err := p.split.Rename(ctx, "db.old", "db.new", false); err != nil {
		t.Fatal(err)
	}
	count := func(after string) {
		t.Helper()
		n, err := db.Collection("new").CountDocuments(ctx, bson.D{})
		if err != nil || n != 50 {
			t.Fatalf("after %s: %d documents, %v; want 50", after, n, err)
		}
	}
	count("the rename")
	p.split.Sweep(ctx)
	count("a sweep")
	if err := p.catalog.InsertReshape(ctx, &rec); err != nil {
		t.Fatal(err)
	}
	p.settled(t)
	count("a recovery")
	// The old name is free, and dropping what comes under it takes nothing along.
	if _, err := db.Collection("old").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Collection("old").Drop(ctx); err != nil {
		t.Fatal(err)
	}
	p.split.Sweep(ctx)
	count("a drop of the old name")
}
