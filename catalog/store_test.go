package catalog_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

func open(t *testing.T, s *fleet.Server) (*catalog.Store, *mongo.Client) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	store, err := catalog.Open(t.Context(), client, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return store, client
}

func key(t *testing.T, field string) *shardkey.Pattern {
	t.Helper()
	raw, err := bson.Marshal(bson.D{{Key: field, Value: "hashed"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := shardkey.ParsePattern(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

func sampleMap(t *testing.T, v int64) *catalog.Map {
	m := &catalog.Map{NS: "db.c", V: v, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(), Key: key(t, "a.b"), Hash: shardkey.HashName}
	for i, r := range shardkey.Even(3) {
		m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b1", Physical: catalog.PhysicalName("db", "c", 7, 0, i), Birth: bson.Timestamp{T: 5, I: 6}})
	}
	m.Retired = []catalog.OldHome{{Range: m.Partitions[2].Range, Backend: "b2", Physical: "c", Marker: bson.Timestamp{T: 1}, FlippedAt: time.Unix(9, 0).UTC()}}
	return m
}

func TestStoreMaps(t *testing.T) {
	store, client := open(t, fleettest.Start(t, 1).Servers[0])
	seen := int64(-1)
	store.OnChange(func(s *catalog.Snapshot) {
		seen = 0
		if m := s.Map("db.c"); m != nil {
			seen = m.V
		}
	})
	m := sampleMap(t, 1)
	if err := store.InsertMap(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if seen != 1 {
		t.Errorf("listener saw version %d, want 1", seen)
	}
	if err := store.InsertMap(t.Context(), sampleMap(t, 1)); !errors.Is(err, catalog.ErrMapExists) {
		t.Errorf("second insert of version 1: %v, want ErrMapExists", err)
	}
	if err := store.InsertMap(t.Context(), sampleMap(t, 2)); err != nil {
		t.Fatal(err)
	}
	other, err := catalog.Open(t.Context(), client, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	got := other.Snapshot().Map("db.c")
	if got == nil || got.V != 2 || len(got.Partitions) != 3 || got.Key.Path() != "a.b" || got.Hash != shardkey.HashName {
		t.Fatalf("read back %+v", got)
	}
	for i, p := range got.Partitions {
		if p != m.Partitions[i] {
			t.Errorf("partition %d: %+v, want %+v", i, p, m.Partitions[i])
		}
	}
	if len(got.Retired) != 1 || got.Retired[0] != m.Retired[0] {
		t.Errorf("retired: %+v", got.Retired)
	}
	newest, err := store.NewestMap(t.Context(), "db.c")
	if err != nil || newest.V != 2 {
		t.Errorf("NewestMap: %+v, %v", newest, err)
	}
	if none, err := store.NewestMap(t.Context(), "db.none"); none != nil || err != nil {
		t.Errorf("NewestMap of nothing: %+v, %v", none, err)
	}
	if err := store.TrimMaps(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if old, err := store.MapAt(t.Context(), "db.c", 1); old != nil || err != nil {
		t.Errorf("version 1 after trimming: %+v, %v", old, err)
	}
	if newest, err := store.NewestMap(t.Context(), "db.c"); err != nil || newest.V != 2 {
		t.Errorf("newest after trimming: %+v, %v", newest, err)
	}
	first, _ := store.NextNumber(t.Context())
	second, err := other.NextNumber(t.Context())
	if err != nil || second != first+1 {
		t.Errorf("numbers %d, %d, %v", first, second, err)
	}
}

func TestStoreFleet(t *testing.T) {
	store, _ := open(t, fleettest.Start(t, 1).Servers[0])
	ctx := t.Context()
	if err := store.CreateDatabase(ctx, "Shop", "b1"); err != nil {
		t.Fatal(err)
	}
	if err := store.CreateDatabase(ctx, "Shop", "b2"); err != nil {
		t.Errorf("again: %v", err)
	}
	var we *wire.Error
	if err := store.CreateDatabase(ctx, "shop", "b1"); !errors.As(err, &we) || we.Code != wire.DatabaseDifferCase {
		t.Errorf("other case: %v", err)
	}
	if p := store.Snapshot().Databases["Shop"].Primary; p != "b1" {
		t.Errorf("primary %s", p)
	}
	if err := errors.Join(store.PutBackend(ctx, catalog.Backend{ID: "b1", URI: "mongodb://h/", Host: "h:1"}), store.SetDraining(ctx, "b1"),
		store.PutBackend(ctx, catalog.Backend{ID: "b1", URI: "mongodb://h2/", Host: "h:2"}), store.SetBalancerStopped(ctx, true),
		store.SetCollection(ctx, catalog.CollectionSettings{NS: "a.b", MaxPartitionBytes: 5})); err != nil {
		t.Fatal(err)
	}
	s := store.Snapshot()
	if b := s.Backends["b1"]; b.URI != "mongodb://h2/" || !b.Draining || b.TopologyTime.IsZero() {
		t.Errorf("backend %+v", b)
	}
	if !s.BalancerStopped || s.Collections["a.b"].MaxPartitionBytes != 5 || s.ClusterID.IsZero() {
		t.Errorf("settings %+v", s)
	}
	if err := errors.Join(store.RemoveBackend(ctx, "b1"), store.DropDatabase(ctx, "Shop")); err != nil {
		t.Fatal(err)
	}
	if s := store.Snapshot(); len(s.Backends) != 0 || s.Database("Shop") != nil {
		t.Errorf("left: %v %v", s.Backends, s.Databases)
	}
	// A database that comes back has its former primary: another process may still know that one.
	if err := store.CreateDatabase(ctx, "Shop", "b2"); err != nil {
		t.Fatal(err)
	}
	if d := store.Snapshot().Database("Shop"); d == nil || d.Primary != "b1" {
		t.Errorf("back: %+v", d)
	}
}

func TestMapCheck(t *testing.T) {
	for name, spoil := range map[string]func(*catalog.Map){
		"gap":           func(m *catalog.Map) { m.Partitions[1].Range.Lo++ },
		"no end":        func(m *catalog.Map) { m.Partitions[2].Range.Hi = m.Partitions[2].Range.Lo + 1 },
		"early end":     func(m *catalog.Map) { m.Partitions[1].Range.Hi = 0 },
		"same home":     func(m *catalog.Map) { m.Partitions[1].Physical = m.Partitions[0].Physical },
		"none":          func(m *catalog.Map) { m.Partitions = nil },
		"dropped full":  func(m *catalog.Map) { m.Dropped = true },
		"two unsharded": func(m *catalog.Map) { m.Key = nil },
		"other hash":    func(m *catalog.Map) { m.Hash = "md5" },
		"version 0":     func(m *catalog.Map) { m.V = 0 },
	} {
		m := sampleMap(t, 1)
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if m.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
