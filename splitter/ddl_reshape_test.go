package splitter_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/shardkey"
)

// TestDDLDuringReshape: indexes and options that change while a collection is in reshape are those of the outputs too: what comes before the gates are closed is brought to them, what comes
// later has the attempt begin anew.
func TestDDLDuringReshape(t *testing.T) {
	for at, attempts := range map[string]int64{"follow": 1, "close": 2} {
		t.Run(at, func(t *testing.T) {
			var copies atomic.Int64
			w := newAbortWorld(t, func(w *world, phase string) {
				if phase == "copy" {
					copies.Add(1)
				}
				if phase != at || copies.Load() > 1 {
					return
				}
				ctx := context.Background()
				db := w.b.Client().Database("db")
				_, err := db.Collection(w.home()).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "late", Value: 1}}})
				if err == nil {
					err = db.Collection(w.home()).Indexes().DropOne(ctx, "early_1")
				}
				if err == nil {
					err = db.RunCommand(ctx, bson.D{{Key: "collMod", Value: w.home()}, {Key: "validator", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$exists", Value: true}}}}}}).Err()
				}
				if err != nil {
					t.Error(err)
				}
			})
			db := w.b.Client().Database("db")
			if _, err := db.Collection(w.home()).Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "early", Value: 1}}}); err != nil {
				t.Fatal(err)
			}
			if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
				t.Fatal(err)
			}
			if n := copies.Load(); n != attempts {
				t.Errorf("%d attempts, want %d", n, attempts)
			}
			parts := w.store.Snapshot().Maps["db.c"].Partitions
			if len(parts) != 2 {
				t.Fatalf("%d partitions", len(parts))
			}
			for _, p := range parts {
				specs, err := db.Collection(p.Physical).Indexes().ListSpecifications(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, s := range specs {
					names = append(names, s.Name)
				}
				if !slices.Contains(names, "late_1") || slices.Contains(names, "early_1") {
					t.Errorf("%s has the indexes %v", p.Physical, names)
				}
				if _, err := db.Collection(p.Physical).InsertOne(t.Context(), bson.D{{Key: "_id", Value: "refused"}}); err == nil {
					t.Errorf("%s has no validator", p.Physical)
				}
			}
			w.whole(t)
		})
	}
}
