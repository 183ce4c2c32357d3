package router_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestDroppedAndThere: a database that is marked as dropped and has a collection, which somebody made in the moment of the drop, is seen, and can be dropped.
func TestDroppedAndThere(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	listed := func(db string) bool {
		t.Helper()
		names, err := p.client.ListDatabaseNames(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(names, db)
	}
	collections := func(db string) int {
		t.Helper()
		names, err := p.client.Database(db).ListCollectionNames(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for _, c := range []struct {
		db   string
		make func(db string)
	}{
		{"plain", func(string) {}},
		{"mapped", func(db string) { p.shard(t, db+".x", "k", 2) }},
		{"anew", func(db string) {
			if err := p.client.Database(db).Collection("x").Drop(ctx); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		c.make(c.db)
		coll := p.client.Database(c.db).Collection("x")
		insert := func() {
			t.Helper()
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "k", Value: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		mark := func() {
			t.Helper()
			if err := p.catalog.DropDatabase(ctx, c.db); err != nil {
				t.Fatal(err)
			}
		}
		insert()
		mark()
		if !listed(c.db) {
			t.Errorf("%s is not listed", c.db)
		}
		mark()
		if n := collections(c.db); n != 1 {
			t.Errorf("%s: %d collections", c.db, n)
		}
		mark()
		if err := p.client.Database(c.db).Drop(ctx); err != nil {
			t.Error(err)
		}
		if n, err := coll.CountDocuments(ctx, bson.D{}); n != 0 || err != nil || collections(c.db) != 0 || listed(c.db) {
			t.Errorf("%s is not dropped: %d documents, %v", c.db, n, err)
		}
		insert()
		if !listed(c.db) {
			t.Errorf("%s, made anew, is not listed", c.db)
		}
	}
}
