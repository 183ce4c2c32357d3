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
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// A write that reaches a home after it was dropped makes it anew; it does not stay until the hour is over.
func TestWhatALateWriteMakesIsDropped(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {}, func(cfg *splitter.Config) { cfg.SweepAfter = 3 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.split.Run(ctx) })
	defer running.Wait()
	defer stop()
	old := w.home()
	if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	db := w.b.Client().Database("db")
	if _, err := db.Collection(old).InsertOne(t.Context(), bson.D{{Key: "_id", Value: "late"}}); err != nil {
		t.Fatal(err)
	}
	if names, err := db.ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: old}}); err != nil || len(names) != 1 {
		t.Fatalf("the late write made %v, %v", names, err)
	}
	w.whole(t)
}

// What a change that is over has left on a backend, since it arrived late, goes; what belongs to one that is recorded stays, and so does a closing whose version nobody has made.
func TestSweepOfTheBoard(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	ctx := t.Context()
	board := member.BoardOf(w.b)
	rec := catalog.Reshape{ID: bson.NewObjectID(), Slot: "another", NS: "db.other", Kind: "move", Phase: catalog.Closing,
		Closings: []catalog.RecordedClosing{{Backend: "b1", ID: bson.NewObjectID()}}}
	if err := w.store.InsertReshape(ctx, &rec); err != nil {
		t.Fatal(err)
	}
	late, open := bson.NewObjectID(), bson.NewObjectID()
	for _, c := range []protocol.Closing{
		{ID: late, NS: "db.c", Ends: 1, Reshape: bson.NewObjectID(), DB: "db"},
		{ID: open, NS: "db.c", Ends: 9, Reshape: bson.NewObjectID(), DB: "db"},
		{ID: rec.Closings[0].ID, NS: "db.other", Ends: 0, Reshape: rec.ID, DB: "db"},
	} {
		if err := board.PutClosing(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	for _, closing := range []protocol.ID{late, rec.Closings[0].ID} {
		if err := board.PutAnswer(ctx, protocol.Answer{ID: protocol.AnswerID{Closing: closing, Instance: bson.NewObjectID()}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []protocol.ID{bson.NewObjectID(), rec.ID} {
		if _, err := board.Mark(ctx, bson.NewObjectID(), id, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.split.Sweep(ctx)
	closings, err := board.Closings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	left := map[protocol.ID]bool{}
	for _, c := range closings {
		left[c.ID] = true
	}
	if len(left) != 2 || !left[open] || !left[rec.Closings[0].ID] {
		t.Errorf("closings %v", closings)
	}
	answered, marked, err := board.Leftovers(ctx)
	if err != nil || len(answered) != 1 || !answered[rec.Closings[0].ID] || len(marked) != 1 || !marked[rec.ID] {
		t.Errorf("answers to %v, markers of %v, %v", answered, marked, err)
	}
}

// A catalog that is older than a backend, as after it was restored, drops nothing of what the backend's floor says it does not know.
func TestSweepOfAnOlderCatalog(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	ctx := t.Context()
	db := w.b.Client().Database("db")
	newer := []string{catalog.PhysicalName("db", "c", 99, 0, 0), catalog.PhysicalName("db", "unknown", 99, 0, 0)}
	for _, name := range newer {
		if err := db.CreateCollection(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	there := func() (n int) {
		for _, name := range newer {
			names, err := db.ListCollectionNames(ctx, bson.D{{Key: "name", Value: name}})
			if err != nil {
				t.Fatal(err)
			}
			n += len(names)
		}
		return n
	}
	board := member.BoardOf(w.b)
	for _, ns := range []string{"db.c", "db.unknown"} {
		if err := board.RaiseFloor(ctx, ns, 9); err != nil {
			t.Fatal(err)
		}
	}
	if w.split.Sweep(ctx); there() != 2 {
		t.Fatal("what a later version may name was dropped")
	}
	// Nothing on the backend says that there was one; nor does anything say who made them.
	if _, err := member.DB(w.b).Collection(member.Floors).DeleteMany(ctx, bson.D{}); err != nil {
		t.Fatal(err)
	}
	if w.split.Sweep(ctx); there() != 2 {
		t.Fatal("what nothing names was dropped without evidence")
	}
	if err := board.RecordMade(ctx, bson.NewObjectID(), []string{"db." + newer[0], "db." + newer[1]}); err != nil {
		t.Fatal(err)
	}
	if w.split.Sweep(ctx); there() != 0 {
		t.Error("what a change made that is over stays")
	}
}

// A floor protects partitions of a long name, too, whose physical names hold but a part of it, and
// a catalog that was restored does not know the rest.
func TestSweepOfAnOlderCatalogWithLongNames(t *testing.T) {
	w := newAbortWorld(t, func(*world, string) {})
	ctx := t.Context()
	db := w.b.Client().Database("db")
	coll := strings.Repeat("u", 250)
	name := catalog.PhysicalName("db", coll, 99, 0, 0)
	if err := db.CreateCollection(ctx, name); err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		names, err := db.ListCollectionNames(ctx, bson.D{{Key: "name", Value: name}})
		if err != nil {
			t.Fatal(err)
		}
		return len(names) == 1
	}
	if err := member.BoardOf(w.b).RecordMade(ctx, bson.NewObjectID(), []string{"db." + name}); err != nil {
		t.Fatal(err)
	}
	if err := member.BoardOf(w.b).RaiseFloor(ctx, "db."+coll, 9); err != nil {
		t.Fatal(err)
	}
	if w.split.Sweep(ctx); !there() {
		t.Fatal("what a later version may name was dropped")
	}
	if err := member.BoardOf(w.b).RaiseFloor(ctx, "db."+coll[1:], 9); err != nil {
		t.Fatal(err)
	}
	if _, err := member.DB(w.b).Collection(member.Floors).DeleteOne(ctx, bson.D{{Key: "_id", Value: "db." + coll}}); err != nil {
		t.Fatal(err)
	}
	if w.split.Sweep(ctx); there() {
		t.Error("the floor of another collection keeps what nothing names")
	}
}
