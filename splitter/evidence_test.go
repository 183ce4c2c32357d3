package splitter_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// there reports whether db has a collection on the backend itself.
func (w *world) there(t *testing.T, name string) bool {
	t.Helper()
	names, err := w.b.Client().Database("db").ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: name}})
	if err != nil {
		t.Fatal(err)
	}
	return len(names) > 0
}

// record puts a record of a collection on the backend.
func (w *world) record(t *testing.T, c member.Collection) {
	t.Helper()
	c.Name = "db." + c.Name
	if _, err := member.DB(w.b).Collection(member.Collections).InsertOne(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// A sweep drops a partition that no map names only if its backend's record says that a change made it and was given up, or that a change has retired it.
func TestSweepDropsOnEvidenceOnly(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	ctx := t.Context()
	live := catalog.Reshape{ID: bson.NewObjectID(), Slot: "another", NS: "db.other", Kind: "move", Phase: catalog.Copying}
	if err := w.store.InsertReshape(ctx, &live); err != nil {
		t.Fatal(err)
	}
	uuid := catalog.NewUUID() // not the collection's
	for i, c := range []struct {
		what   string
		record *member.Collection
		stays  bool
		listed bool
	}{
		{"no record", nil, true, true},
		{"used", &member.Collection{State: member.Used}, true, true},
		{"made by a change that goes on", &member.Collection{State: member.Made, Reshape: live.ID}, true, false},
		{"made by a change that is over", &member.Collection{State: member.Made, Reshape: bson.NewObjectID()}, false, false},
		{"retired", &member.Collection{State: member.Retired}, false, false},
		{"retired, made anew by a late write", &member.Collection{State: member.Retired, UUID: &uuid}, false, false},
		{"dropped, made anew by a late write", &member.Collection{State: member.Dropped, UUID: &uuid, At: time.Now()}, false, false},
		{"dropped long ago", &member.Collection{State: member.Dropped, At: time.Now().Add(-3 * time.Hour)}, false, false},
	} {
		name := catalog.PhysicalName("db", "stray", uint64(0xfff0+i), 0, 0)
		if _, err := w.b.Client().Database("db").Collection(name).InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		if c.record != nil {
			c.record.Name = name
			w.record(t, *c.record)
		}
		w.split.Sweep(ctx)
		if w.there(t, name) != c.stays {
			t.Errorf("%s: it stays: %t, want %t", c.what, !c.stays, c.stays)
		}
		all, err := w.split.Unmatched(ctx)
		if err != nil {
			t.Fatal(err)
		}
		listed := false
		for _, d := range all {
			listed = listed || d[2].Value == name
		}
		if listed != c.listed {
			t.Errorf("%s: it is listed as unmatched: %t, want %t", c.what, listed, c.listed)
		}
	}
	if _, err := member.BoardOf(w.b).RecordRetired(ctx, "db."+w.home(), bson.NewObjectID(), member.Used); err != nil {
		t.Fatal(err)
	}
	if w.split.Sweep(ctx); !w.there(t, w.home()) {
		t.Error("what the newest map names was dropped")
	}
}

// Records of dropped collections do not stay for ever, and what was never made is counted as dropped.
func TestRecordsOfDroppedCollectionsAreForgotten(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	w.record(t, member.Collection{Name: "old@1.0.0", State: member.Dropped, At: time.Now().Add(-3 * time.Hour)})
	w.record(t, member.Collection{Name: "new@1.0.0", State: member.Dropped, At: time.Now()})
	// A clock that was an hour off, either way, when it was dropped.
	w.record(t, member.Collection{Name: "slow@1.0.0", State: member.Dropped, At: time.Now().Add(-time.Hour)})
	w.record(t, member.Collection{Name: "fast@1.0.0", State: member.Dropped, At: time.Now().Add(time.Hour)})
	w.record(t, member.Collection{Name: "never@1.0.0", State: member.Made, Reshape: bson.NewObjectID()})
	w.split.Sweep(t.Context())
	all, err := member.BoardOf(w.b).Records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := all["db.old@1.0.0"]; ok {
		t.Error("a record of long ago is kept")
	}
	for _, name := range []string{"db.new@1.0.0", "db.slow@1.0.0", "db.fast@1.0.0"} {
		if all[name].State != member.Dropped {
			t.Errorf("%s is %+v", name, all[name])
		}
	}
	if c := all["db.never@1.0.0"]; c.State != member.Dropped || time.Since(c.At).Abs() > time.Hour {
		t.Errorf("what was never made is %+v", c)
	}
}

// Every change leaves the records right: its outputs are used, its inputs dropped.
func TestChangesRecordWhatTheyMakeAndRetire(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	old := w.home()
	if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	board := member.BoardOf(w.b)
	for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
		specs, err := w.b.Client().Database("db").ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: p.Physical}})
		if err != nil || len(specs) != 1 {
			t.Fatal(specs, err)
		}
		c, err := board.Record(t.Context(), "db."+p.Physical)
		if err != nil || c == nil || c.State != member.Used || c.UUID == nil || !c.UUID.Equal(*specs[0].UUID) {
			t.Errorf("the output %s is on record as %+v, %v", p.Physical, c, err)
		}
	}
	if c, err := board.Record(t.Context(), "db."+old); err != nil || c == nil || c.State != member.Dropped {
		t.Errorf("the input is on record as %+v, %v", c, err)
	}
}

// A collection with a name of its own, which somebody has made anew behind the proxies, is not the one that a change has retired.
func TestPlainCollectionWithAnotherUUIDIsLeft(t *testing.T) {
	for _, same := range []bool{false, true} {
		w := newAbortWorld(t, func(*world, string) {}, func(cfg *splitter.Config) {
			cfg.Lease, cfg.Renew, cfg.Margin = 200*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
		})
		db := w.b.Client().Database("db")
		if _, err := db.Collection("plain").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		uuid := catalog.NewUUID()
		if specs, err := db.ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: "plain"}}); err != nil || len(specs) != 1 {
			t.Fatal(specs, err)
		} else if same {
			uuid = *specs[0].UUID
		}
		rec := catalog.Reshape{ID: bson.NewObjectID(), NS: "db.plain", Kind: "drop", Phase: catalog.Retiring, EndV: 1, Owner: bson.NewObjectID(),
			Inputs: []catalog.RecordedHome{{Backend: "b1", Physical: "plain"}}}
		w.record(t, member.Collection{Name: "plain", State: member.Used, UUID: &uuid})
		if err := w.store.InsertMap(t.Context(), &catalog.Map{NS: "db.plain", V: 1, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(), Dropped: true, Reshape: rec.ID}); err != nil {
			t.Fatal(err)
		}
		if err := w.store.InsertReshape(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.split.Run(ctx) })
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			all, err := w.store.Reshapes(t.Context())
			if err == nil && len(all) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the change is not ended: %+v, %v", all, err)
			}
		}
		stop()
		running.Wait()
		if w.there(t, "plain") == same {
			t.Errorf("with its own UUID %t: it is there %t", same, !same)
		}
	}
}

// On a server that is another backend, and with a catalog that is older than the backend, nothing is dropped and no map is changed.
func TestNothingChangesWhereIdentityOrCatalogIsWrong(t *testing.T) {
	for what, c := range map[string]struct {
		set  bson.D
		says string
	}{
		"another id":       {bson.D{{Key: "backend", Value: "b2"}}, "not the backend that it is taken for"},
		"another fleet":    {bson.D{{Key: "fleet", Value: bson.NewObjectID()}}, "not the backend that it is taken for"},
		"another token":    {bson.D{{Key: "token", Value: bson.NewObjectID()}}, "not the backend that it is taken for"},
		"an older catalog": {bson.D{{Key: "seen", Value: int64(1 << 40)}}, "the catalog is older than backend 'b1'"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newAbortWorld(t, func(*world, string) {})
			name := catalog.PhysicalName("db", "c", 0xffff, 0, 0)
			if err := w.b.Client().Database("db").CreateCollection(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			w.record(t, member.Collection{Name: name, State: member.Retired})
			of := member.DB(w.b).Collection(member.Fleet)
			if _, err := of.UpdateByID(t.Context(), "fleet", bson.D{{Key: "$set", Value: c.set}}); err != nil {
				t.Fatal(err)
			}
			if w.split.Sweep(t.Context()); !w.there(t, name) {
				t.Error("it was dropped")
			}
			err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("a split says %v, want %q", err, c.says)
			}
			if all, err := w.store.Reshapes(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("records are left: %+v, %v", all, err)
			}
			if n := len(w.store.Snapshot().Maps["db.c"].Partitions); n != 1 {
				t.Errorf("%d partitions", n)
			}
		})
	}
}
