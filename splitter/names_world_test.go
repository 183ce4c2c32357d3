package splitter_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// tooLong refuses a collection whose namespace a mongod does not make; that of a time series has a
// prefix for its buckets.
func tooLong(cmd backendtest.Command) *backendtest.Answer {
	coll, ok := cmd.Body.Lookup(cmd.Name).StringValueOK()
	if _, err := cmd.Body.LookupErr("timeseries"); err == nil {
		coll = "system.buckets." + coll
	}
	if ns := cmd.DB + "." + coll; ok && len(ns) > 255 {
		a := backendtest.Err(73, "InvalidNamespace", "Fully qualified namespace is too long. Namespace: "+ns+" Max: 255")
		return &a
	}
	return nil
}

// TestLongNames: a collection whose name is as long as a server takes it is sharded, split, dropped
// and made anew like any other, and so is a time series.
func TestLongNames(t *testing.T) {
	server := fleettest.Start(t, 1).Servers[0]
	way, front := newBetween(t, server.Addr())
	way.refuse = tooLong
	w := newWorldBehind(t, server, front.URI(), func(cfg *splitter.Config) { cfg.Backoff = 10 * time.Millisecond })
	direct, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = direct.Disconnect(t.Context()) })
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	coll := strings.Repeat("n", 252)
	ns := "db." + coll
	for i := range 40 {
		if _, err := direct.Database("db").Collection(coll).InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Skipf("the server does not take names of 255 bytes: %v", err)
		}
	}
	key, err := shardkey.ParsePattern(bson.Raw(mustMarshal(t, bson.D{{Key: "_id", Value: "hashed"}})))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.split.ShardCollection(t.Context(), ns, key, 0); err != nil {
		t.Fatal(err)
	}
	if err := w.split.Split(t.Context(), ns, shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, p := range w.store.Snapshot().Maps[ns].Partitions {
		count, err := direct.Database("db").Collection(p.Physical).CountDocuments(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	if parts := len(w.store.Snapshot().Maps[ns].Partitions); n != 40 || parts != 2 {
		t.Errorf("%d documents in %d partitions", n, parts)
	}
	if err := w.split.Drop(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	if err := w.split.Create(t.Context(), ns, nil); err != nil {
		t.Fatal(err)
	}
	if m := w.store.Snapshot().Maps[ns]; m.Dropped || len(m.Partitions) != 1 {
		t.Errorf("made anew as %+v", m)
	}
	series := bson.Raw(mustMarshal(t, bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}}))
	long := "db." + strings.Repeat("s", 237) // its buckets fill 255 bytes
	if err := w.split.Create(t.Context(), long, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.split.Drop(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	if err := w.split.Create(t.Context(), long, series); err != nil {
		t.Errorf("a time series: %v", err)
	}
}
