package splitter_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// Who drops or renames a collection does not wait for a reshape of it, not for one either that pauses between two attempts.
func TestChangesCancelAReshapeThatBacksOff(t *testing.T) {
	for name, change := range map[string]func(context.Context, *splitter.Splitter) error{
		"drop":   func(ctx context.Context, s *splitter.Splitter) error { return s.Drop(ctx, "db.c") },
		"rename": func(ctx context.Context, s *splitter.Splitter) error { return s.Rename(ctx, "db.c", "db.d", false) },
	} {
		t.Run(name, func(t *testing.T) {
			var w *world
			w = newWorld(t, func(cfg *splitter.Config) {
				cfg.Backoff = time.Hour
				cfg.AtPhase = func(phase string) {
					if phase != "close" {
						return
					}
					// An index that comes when the outputs' are made makes the attempt begin anew.
					input := w.store.Snapshot().Maps["db.c"].Partitions[0].Physical
					if _, err := w.b.Client().Database("db").Collection(input).Indexes().CreateOne(context.Background(), mongo.IndexModel{Keys: bson.D{{Key: "late", Value: 1}}}); err != nil {
						t.Error(err)
					}
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := w.store.CreateDatabase(ctx, "db", "b1"); err != nil {
				t.Fatal(err)
			}
			key, err := shardkey.ParsePattern(bson.Raw(mustMarshal(t, bson.D{{Key: "k", Value: "hashed"}})))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.split.ShardCollection(ctx, "db.c", key, 1); err != nil {
				t.Fatal(err)
			}
			split := make(chan error, 1)
			go func() { split <- w.split.Split(context.Background(), "db.c", shardkey.Position(1<<63)) }()
			for failed := int64(0); failed == 0; time.Sleep(5 * time.Millisecond) {
				if failed, err = w.store.DB().Collection("changelog").CountDocuments(ctx, bson.D{{Key: "what", Value: "split.error"}}); err != nil {
					t.Fatalf("no attempt fails: %v", err)
				}
			}
			if err := change(ctx, w.split); err != nil {
				t.Errorf("behind a reshape that backs off: %v", err)
			}
			w.split.Close() // ends the split in any case
			if err := <-split; err == nil {
				t.Error("the split of what is gone succeeded")
			}
		})
	}
}

func mustMarshal(t *testing.T, d bson.D) []byte {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
