package catalog_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet/fleettest"
)

// TestWhatDecidesIsReadLinearizably: what decides whether something is dropped, or whether two changes meet, is never a deposed primary's answer.
func TestWhatDecidesIsReadLinearizably(t *testing.T) {
	var mu sync.Mutex
	var levels []string // of every read
	watch := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if slices.Contains([]string{"find", "aggregate", "distinct"}, e.CommandName) {
			mu.Lock()
			defer mu.Unlock()
			level, _ := e.Command.Lookup("readConcern", "level").StringValueOK()
			levels = append(levels, level)
		}
	}}
	client, err := mongo.Connect(options.Client().ApplyURI(fleettest.Start(t, 1).Servers[0].URI()).SetMonitor(watch))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	store, err := catalog.Open(t.Context(), client, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	rec := &catalog.Reshape{ID: bson.NewObjectID(), NS: "db.c", Phase: catalog.Copying}
	if err := store.InsertReshape(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	for what, read := range map[string]func() error{
		"ReshapesNow": func() error {
			all, err := store.ReshapesNow(t.Context())
			if err == nil && (len(all) != 1 || all[0].ID != rec.ID) {
				t.Errorf("records: %+v", all)
			}
			return err
		},
		"NewestMap":      func() error { _, err := store.NewestMap(t.Context(), "db.c"); return err },
		"LookupDatabase": func() error { return store.LookupDatabase(t.Context(), "nowhere") },
		"Named":          func() error { _, err := store.Named(t.Context(), "b1", "db", "c@1.0.0"); return err },
	} {
		mu.Lock()
		levels = nil
		mu.Unlock()
		if err := read(); err != nil {
			t.Fatal(what, err)
		}
		mu.Lock()
		if len(levels) == 0 || slices.ContainsFunc(levels, func(l string) bool { return l != "linearizable" }) {
			t.Errorf("%s reads with %q", what, levels)
		}
		mu.Unlock()
	}
}
