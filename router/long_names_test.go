package router_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestCollectionWithALongName: a collection whose name fills a namespace goes on as any other when
// a server has it already: it is written to, dropped and made anew. Clients see its own name, in
// errors too.
func TestCollectionWithALongName(t *testing.T) {
	w := newDDLWorld(t)
	long := strings.Repeat("x", 253)
	if _, err := w.on("b2").Collection(long).InsertOne(t.Context(), bson.D{e("_id", 1)}); err != nil {
		t.Fatal(err)
	}
	if err := w.catalog.CreateDatabase(t.Context(), w.db, "b2"); err != nil {
		t.Fatal(err)
	}
	coll := w.client.Database(w.db).Collection(long)
	for round := range 2 {
		if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
			t.Fatalf("%d documents (%v)", n, err)
		}
		_, err := coll.InsertOne(t.Context(), bson.D{e("_id", 1)})
		if err == nil || !strings.Contains(err.Error(), w.ns(long)) || strings.Contains(err.Error(), "@") {
			t.Errorf("round %d: %v", round, err)
		}
		names, err := w.client.Database(w.db).ListCollectionNames(t.Context(), bson.D{})
		if err != nil || len(names) != 1 || names[0] != long {
			t.Errorf("round %d: clients see %v (%v)", round, names, err)
		}
		w.must(bson.D{e("drop", long)})
		if _, err := coll.InsertOne(t.Context(), bson.D{e("_id", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	for id, c := range w.direct {
		names, err := c.Database(w.db).ListCollectionNames(context.Background(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if len(w.db)+1+len(name) > 255 {
				t.Errorf("%s has the collection %q, whose namespace has %d bytes", id, name, len(w.db)+1+len(name))
			}
		}
	}
}
