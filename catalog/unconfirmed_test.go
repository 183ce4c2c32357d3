package catalog_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
)

// scriptedStore is a catalog on a server that is empty and answers writes with what answer holds.
func scriptedStore(t *testing.T) (*catalog.Store, *atomic.Pointer[backendtest.Answer]) {
	t.Helper()
	answer := &atomic.Pointer[backendtest.Answer]{}
	server := backendtest.New(t)
	server.SetScript(func(cmd backendtest.Command) backendtest.Answer {
		switch cmd.Name {
		case "find", "aggregate":
			return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "shardway.x"}, {Key: "firstBatch", Value: bson.A{}}}})
		}
		if a := answer.Load(); a != nil {
			return *a
		}
		return backendtest.OK(bson.E{Key: "n", Value: int32(1)})
	})
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()).SetRetryWrites(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	store, err := catalog.Open(t.Context(), client, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return store, answer
}

var (
	equal = bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: int32(0)}, {Key: "code", Value: int32(11000)}, {Key: "errmsg", Value: "E11000 duplicate key error"}}}}
	late  = bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(64)}, {Key: "codeName", Value: "WriteConcernFailed"}, {Key: "errmsg", Value: "waiting for replication timed out"}}}
)

// TestMapExistsWhenAMajorityHasIt: a version of a map is taken for existing when a majority has it.
// One that is found without a majority may be undone, and a gate that was opened for it would have
// been opened too early.
func TestMapExistsWhenAMajorityHasIt(t *testing.T) {
	for name, c := range map[string]struct {
		answer backendtest.Answer
		exists bool
	}{
		"somebody was faster":                   {backendtest.OK(bson.E{Key: "n", Value: int32(0)}, equal), true},
		"somebody was faster and not confirmed": {backendtest.OK(bson.E{Key: "n", Value: int32(0)}, equal, late), false},
		"inserted and not confirmed":            {backendtest.OK(bson.E{Key: "n", Value: int32(1)}, late), false},
	} {
		t.Run(name, func(t *testing.T) {
			store, answer := scriptedStore(t)
			answer.Store(&c.answer)
			err := store.InsertMap(t.Context(), &catalog.Map{NS: "db.c", V: 1, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(),
				Partitions: []catalog.Partition{{Backend: "b1", Physical: "c"}}})
			if err == nil || errors.Is(err, catalog.ErrMapExists) != c.exists {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCatalogWritesCountWhenConfirmed: no write of the catalog is taken for done without a
// majority, whatever command carries it.
func TestCatalogWritesCountWhenConfirmed(t *testing.T) {
	store, answer := scriptedStore(t)
	rec := &catalog.Reshape{ID: bson.NewObjectID(), Slot: "db.c", NS: "db.c", Phase: catalog.Copying}
	value := bson.E{Key: "value", Value: bson.D{{Key: "_id", Value: "physical"}, {Key: "n", Value: int64(7)}}}
	unconfirmed := backendtest.OK(bson.E{Key: "n", Value: int32(1)}, bson.E{Key: "nModified", Value: int32(1)}, value, late)
	answer.Store(&unconfirmed)
	for name, write := range map[string]func(context.Context) error{
		"NextNumber":    func(ctx context.Context) error { _, err := store.NextNumber(ctx); return err },
		"InsertReshape": func(ctx context.Context) error { return store.InsertReshape(ctx, rec) },
		"SwapReshape": func(ctx context.Context) error {
			return store.SwapReshape(ctx, rec, func(r *catalog.Reshape) { r.Phase = catalog.Closing })
		},
		"RenewReshape":   func(ctx context.Context) error { _, err := store.RenewReshape(ctx, rec); return err },
		"CancelReshapes": func(ctx context.Context) error { return store.CancelReshapes(ctx, "db.c") },
		"DeleteReshape":  func(ctx context.Context) error { return store.DeleteReshape(ctx, rec) },
		"CreateDatabase": func(ctx context.Context) error { return store.CreateDatabase(ctx, "db", "b1") },
		"DropDatabase":   func(ctx context.Context) error { return store.DropDatabase(ctx, "db") },
		"PutBackend": func(ctx context.Context) error {
			return store.PutBackend(ctx, catalog.Backend{ID: "b1", URI: "mongodb://h/", Host: "h:1"})
		},
		"SetDraining":   func(ctx context.Context) error { return store.SetDraining(ctx, "b1") },
		"RemoveBackend": func(ctx context.Context) error { return store.RemoveBackend(ctx, "b1") },
		"SetCollection": func(ctx context.Context) error {
			return store.SetCollection(ctx, catalog.CollectionSettings{NS: "db.c"})
		},
	} {
		if err := write(t.Context()); err == nil {
			t.Errorf("%s is taken for done", name)
		}
	}
	if rec.Phase != catalog.Copying {
		t.Errorf("the record's phase is %s", rec.Phase)
	}
}
