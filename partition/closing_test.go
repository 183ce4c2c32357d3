package partition

import (
	"errors"
	"testing"
	"time"

	"github.com/shardway/shardway/catalog"
)

func snapshotOf(primary string, maps ...*catalog.Map) *catalog.Snapshot {
	s := &catalog.Snapshot{Databases: map[string]*catalog.Database{"d": {Name: "d", Primary: primary}}, Maps: map[string]*catalog.Map{}}
	for _, m := range maps {
		s.Maps[m.NS] = m
	}
	return s
}

func passes(p *Part) (open bool, err error) {
	wait, err := tryAll([]*Part{p}, Write)
	if wait == nil && err == nil {
		Leave([]*Part{p}, Write)
	}
	return wait == nil && err == nil, err
}

// TestOlderVersionOpensNothing: a closing until version 3 that a process at version 1 has met outlives version 2, which comes late.
func TestOlderVersionOpensNothing(t *testing.T) {
	table := NewTable()
	var opened []Home
	table.OnOpen(func(g *Gate, closed time.Duration) {
		if closed <= 0 {
			t.Errorf("%v was closed for %s", g.Home(), closed)
		}
		opened = append(opened, g.Home())
	})
	at := func(v int64) *catalog.Map {
		return &catalog.Map{NS: "d.c", V: v, Partitions: []catalog.Partition{{Backend: "b1", Physical: "c@1.0.0"}}}
	}
	table.Apply(snapshotOf("b1", at(1)))
	home := Home{Backend: "b1", DB: "d", Physical: "c@1.0.0"}
	if _, ok := table.Close("d.c", []Home{home}, 3, ClosedAll); !ok {
		t.Fatal("not closed")
	}
	table.Apply(snapshotOf("b1", at(2)))
	if open, _ := passes(table.View().Collection("d.c").Parts[0]); open {
		t.Error("version 2 opened a gate that is closed until version 3")
	}
	if len(opened) > 0 {
		t.Errorf("version 2 was told to have opened %v", opened)
	}
	table.Apply(snapshotOf("b1", at(3)))
	if open, err := passes(table.View().Collection("d.c").Parts[0]); !open {
		t.Errorf("version 3 did not open the gate: %v", err)
	}
	if len(opened) != 1 || opened[0] != home {
		t.Errorf("told to have opened: %v", opened)
	}
	if _, ok := table.Close("d.c", []Home{home}, 4, ClosedAll); !ok {
		t.Fatal("not closed again")
	}
	table.Apply(snapshotOf("b1", &catalog.Map{NS: "d.c", V: 4, Partitions: []catalog.Partition{{Backend: "b2", Physical: "c@2.0.0"}}}))
	if len(opened) != 2 || opened[1] != home {
		t.Errorf("told to have opened with its retirement: %v", opened)
	}
}

// TestAbsentGate: who answers that a dropped collection is not there passes a gate, which making it anew closes and retires; dropped again it has an open one.
func TestAbsentGate(t *testing.T) {
	table := NewTable()
	dropped := func(v int64) *catalog.Map { return &catalog.Map{NS: "d.c", V: v, Dropped: true} }
	table.Apply(snapshotOf("b1", dropped(1)))
	absent := table.View().Collection("d.c").Absent
	if absent == nil || absent.Backend != "b1" {
		t.Fatalf("absent: %+v", absent)
	}
	if open, err := passes(absent); !open {
		t.Fatalf("closed from the start: %v", err)
	}
	if _, ok := table.Close("d.c", []Home{absent.Home}, 2, ClosedAll); !ok {
		t.Fatal("not closed")
	}
	if open, err := passes(absent); open || err != nil {
		t.Errorf("passes a closed gate: %v, %v", open, err)
	}
	table.Apply(snapshotOf("b1", &catalog.Map{NS: "d.c", V: 2, Partitions: []catalog.Partition{{Backend: "b1", Physical: "c@1.0.0"}}}))
	if _, err := passes(absent); !errors.Is(err, ErrReplan) {
		t.Errorf("whoever waited: %v, want ErrReplan", err)
	}
	table.Apply(snapshotOf("b1", dropped(3)))
	if open, err := passes(table.View().Collection("d.c").Absent); !open {
		t.Errorf("dropped again, and closed: %v", err)
	}
	// A new primary is where the gate stands then.
	s := snapshotOf("b2", dropped(3))
	s.Primaries = map[string]*catalog.Map{"d": {NS: "d", V: 1, Partitions: []catalog.Partition{{Backend: "b2", Physical: catalog.PrimaryHome}}}}
	old := table.View().Collection("d.c").Absent
	table.Apply(s)
	if _, err := passes(old); !errors.Is(err, ErrReplan) {
		t.Errorf("the former primary's gate: %v, want ErrReplan", err)
	}
	if now := table.View().Collection("d.c").Absent; now.Backend != "b2" {
		t.Errorf("absent at %s", now.Backend)
	} else if open, err := passes(now); !open {
		t.Errorf("closed at the new primary: %v", err)
	}
}
