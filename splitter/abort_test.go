package splitter_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// abortDocs is how many documents the collection of these tests has.
const abortDocs = 40

// newAbortWorld is a world with db.c, one partition of documents.
func newAbortWorld(t *testing.T, atPhase func(w *world, phase string), more ...func(*splitter.Config)) *world {
	t.Helper()
	var w *world
	w = newWorld(t, func(cfg *splitter.Config) {
		cfg.Backoff = 20 * time.Millisecond
		for _, f := range more {
			f(cfg)
		}
		cfg.AtPhase = func(phase string) { atPhase(w, phase) }
	})
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "k", 1)
	for i := range abortDocs {
		if _, err := w.b.Client().Database("db").Collection(w.home()).InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "v", Value: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// home is the physical name of the collection's first partition.
func (w *world) home() string { return w.store.Snapshot().Maps["db.c"].Partitions[0].Physical }

// outputs are the physical collections that the reshape which is going on makes.
func (w *world) outputs(ctx context.Context) ([]string, error) {
	all, err := w.store.Reshapes(ctx)
	var names []string
	for _, r := range all {
		for _, o := range r.Outputs {
			names = append(names, o.Physical)
		}
	}
	return names, err
}

// whole checks that the newest map's partitions have the documents as they were, and that no other physical collection is left.
func (w *world) whole(t *testing.T) {
	t.Helper()
	var want []string
	n := 0
	for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
		want = append(want, p.Physical)
		count, err := w.b.Client().Database("db").Collection(p.Physical).CountDocuments(t.Context(), bson.D{{Key: "v", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		n += int(count)
	}
	if n != abortDocs {
		t.Errorf("%d documents as they were, want %d", n, abortDocs)
	}
	slices.Sort(want)
	waits.Until(t, fmt.Sprintf("of the collection only %v are there, which the map names", want), func() bool {
		if records, err := w.store.Reshapes(t.Context()); err != nil || len(records) > 0 {
			return false // on the stand-in a list makes anew what is dropped beside it (docs/test-server.md)
		}
		all, err := w.b.Client().Database("db").ListCollectionNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(all, func(name string) bool { return !catalog.IsPhysicalName(name) && name != "c" })
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// TestAbortAtEachPhase: a reshape that is given up before its flip leaves its input and its map as they were, and nothing else.
func TestAbortAtEachPhase(t *testing.T) {
	for _, at := range []string{"copy", "follow", "verify", "close"} {
		t.Run(at, func(t *testing.T) {
			w := newAbortWorld(t, func(w *world, phase string) {
				if phase != at {
					return
				}
				all, err := w.store.Reshapes(context.Background())
				all = slices.DeleteFunc(all, func(r catalog.Reshape) bool { return r.Kind != "split" }) // the sharding may still be draining
				if err != nil || len(all) != 1 || !w.split.Cancel(all[0].ID.Hex()) {
					t.Errorf("not cancelled: %+v, %v", all, err)
				}
			})
			before := w.store.Snapshot().Maps["db.c"].Partitions
			if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err == nil {
				t.Error("a split that was cancelled succeeded")
			}
			if after := w.store.Snapshot().Maps["db.c"].Partitions; len(after) != 1 || after[0].Physical != before[0].Physical {
				t.Errorf("the map names %+v, before %+v", after, before)
			}
			w.whole(t)
		})
	}
}

// TestVerifierFindsWhatDiffers spoils an output of a split's first attempt before the comparison, in each way in which one may differ: that attempt must fail, and the next one does it.
func TestVerifierFindsWhatDiffers(t *testing.T) {
	for what, spoil := range map[string]bson.D{
		"a value":        {{Key: "update", Value: ""}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 2}}}}}}}}},
		"the type":       {{Key: "update", Value: ""}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 1.0}}}}}}}}},
		"one is missing": {{Key: "delete", Value: ""}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 1}}}}},
		"one too many":   {{Key: "insert", Value: ""}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "more"}, {Key: "k", Value: 1}, {Key: "v", Value: 3}}}}},
	} {
		t.Run(what, func(t *testing.T) {
			var attempts, spoilt atomic.Int64
			w := newAbortWorld(t, func(w *world, phase string) {
				if phase == "copy" {
					attempts.Add(1)
				}
				if phase != "verify" || attempts.Load() != 1 {
					return
				}
				names, err := w.outputs(context.Background())
				for _, name := range names {
					var reply struct{ N int64 }
					cmd := slices.Clone(spoil)
					cmd[0].Value = name
					if err == nil {
						err = w.b.Client().Database("db").RunCommand(context.Background(), cmd).Decode(&reply)
					}
					spoilt.Add(reply.N)
				}
				if err != nil {
					t.Error(err)
				}
			})
			if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
				t.Fatal(err)
			}
			if spoilt.Load() == 0 {
				t.Fatal("nothing was spoilt")
			}
			if n := attempts.Load(); n != 2 {
				t.Errorf("%d attempts, want 2: what was spoilt was not found, or found twice", n)
			}
			if n := len(w.store.Snapshot().Maps["db.c"].Partitions); n != 2 {
				t.Error(fmt.Errorf("%d partitions", n))
			}
			w.whole(t)
		})
	}
}
