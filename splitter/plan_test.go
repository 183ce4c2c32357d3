package splitter

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/shardkey"
)

func TestCut(t *testing.T) {
	type pos = shardkey.Position
	for _, c := range []struct {
		name string
		in   []pos
		want pos
		ok   bool
	}{
		{"nothing", nil, 0, false},
		{"one document", []pos{5}, 0, false},
		{"one logical partition", []pos{5, 5, 5, 5}, 0, false},
		{"even", []pos{4, 2, 1, 3}, 3, true},
		{"two", []pos{9, 1}, 9, true},
		{"a large one below", []pos{1, 1, 1, 1, 8}, 8, true},
		{"a large one above", []pos{1, 8, 8, 8, 8}, 8, true},
		{"a large one in the middle: never through it", []pos{1, 5, 5, 5, 5, 9}, 5, true},
		{"nearer to the middle from above", []pos{1, 5, 5, 5, 9, 10, 11}, 9, true},
	} {
		if got, ok := cut(c.in); got != c.want || ok != c.ok {
			t.Errorf("%s: cut at %d, %v; want %d, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

// sharded is a collection of parts partitions on b1 with two old homes, of which this process has known one for an hour; the other machine's clock, which wrote when they were
// replaced, says something else. The caller is in a synctest bubble.
func sharded(t *testing.T, parts int) *partition.Collection {
	t.Helper()
	raw, err := bson.Marshal(bson.D{{Key: "k", Value: "hashed"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := shardkey.ParsePattern(raw)
	if err != nil {
		t.Fatal(err)
	}
	m := &catalog.Map{NS: "db.c", V: 7, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(), Key: &key, Hash: shardkey.HashName,
		Retired: []catalog.OldHome{{Backend: "b1", Physical: "c@1.0.0", FlippedAt: time.Now().Add(-12 * time.Hour)}, {Backend: "b1", Physical: "c", FlippedAt: time.Now().Add(12 * time.Hour)}}}
	for i, r := range shardkey.Even(parts) {
		m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b1", Physical: catalog.PhysicalName("db", "c", 2, 0, i), Birth: bson.Timestamp{T: 3}})
	}
	table := partition.NewTable()
	before := *m
	before.V, before.Retired = 6, m.Retired[1:]
	table.Apply(&catalog.Snapshot{Maps: map[string]*catalog.Map{"db.c": &before}})
	time.Sleep(time.Hour)
	table.Apply(&catalog.Snapshot{Maps: map[string]*catalog.Map{"db.c": m}})
	return table.View().Collection("db.c")
}

// The map of a flip covers the hash space again, keeps what is no input as it is, and forgets old homes out of the retry window.
func TestMapOfFlip(t *testing.T) { synctest.Test(t, testMapOfFlip) }

func testMapOfFlip(t *testing.T) {
	home := func(i int) partition.Home {
		return partition.Home{Backend: "b2", DB: "db", Physical: catalog.PhysicalName("db", "c", 9, 0, i)}
	}
	for _, c := range []struct {
		kind    string
		inputs  []int
		outputs func(c *partition.Collection) []output
		want    int
	}{
		{"split", []int{1}, func(c *partition.Collection) []output {
			lo, hi := c.Parts[1].Range.SplitAt(c.Parts[1].Range.Lo + 1000)
			return []output{{Home: home(0), rg: lo}, {Home: home(1), rg: hi}}
		}, 5},
		{"move", []int{3}, func(c *partition.Collection) []output { return []output{{Home: home(0), rg: c.Parts[3].Range}} }, 4},
		{"merge", []int{0, 1, 2}, func(c *partition.Collection) []output {
			return []output{{Home: home(0), rg: shardkey.Range{Lo: c.Parts[0].Range.Lo, Hi: c.Parts[2].Range.Hi}}}
		}, 2},
		{"merge all", []int{0, 1, 2, 3}, func(*partition.Collection) []output { return []output{{Home: home(0), rg: shardkey.Range{}}} }, 1},
	} {
		coll := sharded(t, 4)
		r := &reshape{s: &Splitter{cfg: Config{RetryWindow: 30 * time.Minute}}, kind: c.kind, coll: coll, outputs: c.outputs(coll), rec: &catalog.Reshape{ID: bson.NewObjectID()}}
		kept := map[string]catalog.Partition{}
		for i, p := range coll.Map.Partitions {
			kept[p.Physical] = coll.Map.Partitions[i]
		}
		for _, i := range c.inputs {
			r.inputs = append(r.inputs, coll.Parts[i])
			delete(kept, coll.Parts[i].Physical)
		}
		m := r.newMap()
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", c.kind, err)
		}
		if m.V != 8 || len(m.Partitions) != c.want || m.UUID.Data == nil || !m.Key.Equal(*coll.Key) {
			t.Errorf("%s: version %d, %d partitions, key %v", c.kind, m.V, len(m.Partitions), m.Key)
		}
		for _, o := range r.outputs {
			if p := m.Partitions[m.Index(o.rg.Lo)]; p.Physical != o.Physical || p.Range != o.rg {
				t.Errorf("%s: %s is at %s, want %s at %s", c.kind, p.Physical, p.Range, o.Physical, o.rg)
			}
		}
		for _, p := range m.Partitions {
			if was, ok := kept[p.Physical]; ok && p != was {
				t.Errorf("%s: %v became %v", c.kind, was, p)
			}
			delete(kept, p.Physical)
		}
		if len(kept) > 0 {
			t.Errorf("%s: lost %v", c.kind, kept)
		}
		if len(m.Retired) != 1 || m.Retired[0].Physical != "c@1.0.0" {
			t.Errorf("%s: old homes %v", c.kind, m.Retired)
		}
		if b := protocol.Burnt(coll.NS, m.V, coll.Map, catalog.RecordedHome{}); !b.Burnt || b.V != m.V || len(b.Partitions) != 4 || b.Check() != nil {
			t.Errorf("%s: a burnt version is not the map before: %+v", c.kind, b)
		}
	}
}

// A map that changes without a copy again and again forgets the earliest old homes, and never one of the last change.
func TestOldHomesAreBounded(t *testing.T) {
	homes := func(n int, name string) []catalog.OldHome {
		return slices.Repeat([]catalog.OldHome{{Physical: name}}, n)
	}
	for _, c := range []struct{ replaced, before, want int }{{1, 0, 1}, {3, 4, 7}, {1, 255, 256}, {1, 256, 256}, {200, 100, 256}, {300, 100, 300}} {
		got := newest(homes(c.replaced, "new"), homes(c.before, "old"))
		if len(got) != c.want || got[0].Physical != "new" || got[c.replaced-1].Physical != "new" || len(got) > c.replaced && got[c.replaced].Physical != "old" {
			t.Errorf("%d and %d: %d are kept", c.replaced, c.before, len(got))
		}
	}
}
