package partition

import (
	"errors"
	"testing"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
)

// TestPrimaryChangesBehindClosedGates: while a database's namespaces without a map are closed nobody enters one, new ones included; a new primary
// sends those who wait there, and one that comes back is open.
func TestPrimaryChangesBehindClosedGates(t *testing.T) {
	ctx := waits.Context(t)
	table := NewTable()
	v := int64(0)
	// set applies the next version of d's map, with a primary.
	set := func(id string) {
		v++
		mapped := &catalog.Map{NS: "d.mapped", V: 1, Partitions: []catalog.Partition{{Backend: "b1", Physical: "mapped"}}}
		table.Apply(&catalog.Snapshot{Databases: map[string]*catalog.Database{"d": {Name: "d", Primary: id}, "e": {Name: "e", Primary: id}},
			Maps:      map[string]*catalog.Map{"d.mapped": mapped},
			Primaries: map[string]*catalog.Map{"d": {NS: "d", V: v, Partitions: []catalog.Partition{{Backend: id, Physical: catalog.PrimaryHome}}}}})
	}
	parts := func(ns string) []*Part { return table.View().Collection(ns).Parts }
	enters := func(parts []*Part) bool {
		wait, err := tryAll(parts, Write)
		if wait == nil && err == nil {
			Leave(parts, Write)
		}
		return wait == nil && err == nil
	}
	set("b1")
	old := parts("d.old")
	if !enters(old) {
		t.Fatal("closed from the start")
	}
	gates, _ := table.Close("d", nil, v+1, ClosedAll)
	if len(gates) != 1 || gates[0] != old[0].Gate() {
		t.Errorf("%d gates to wait on", len(gates))
	}
	for ns, want := range map[string]bool{"d.old": false, "d.new": false, "d.mapped": true, "e.other": true} {
		if got := enters(parts(ns)); got != want {
			t.Errorf("%s enters: %v, want %v", ns, got, want)
		}
	}
	set("b1") // burnt
	if !enters(old) || !enters(parts("d.new")) {
		t.Error("not open again")
	}

	_, _ = table.Close("d", nil, v+1, ClosedAll)
	waited := make(chan error, 1)
	go func() { waited <- Enter(ctx, old, Write) }()
	set("b2")
	if err := <-waited; !errors.Is(err, ErrReplan) {
		t.Errorf("who waited at the former primary: %v, want ErrReplan", err)
	}
	if now := parts("d.old"); now[0].Backend != "b2" || !enters(now) {
		t.Errorf("the new primary: %s", now[0].Backend)
	}
	if !enters(parts("d.mapped")) {
		t.Error("a namespace with a map was retired")
	}
	set("b1")
	if back := parts("d.old"); back[0].Backend != "b1" || !enters(back) {
		t.Error("a primary that came back is closed")
	}
}

// TestMapEndsThePrimarysHold: a namespace that gets its first map while its database's closing stands is not closed by that any more, nor held when it ends.
func TestMapEndsThePrimarysHold(t *testing.T) {
	table := NewTable()
	dbs := map[string]*catalog.Database{"d": {Name: "d", Primary: "b1"}}
	snapshot := func(maps, primaries map[string]*catalog.Map) *catalog.Snapshot {
		return &catalog.Snapshot{Databases: dbs, Maps: maps, Primaries: primaries}
	}
	waits := func(ns string) bool {
		wait, err := tryAll(table.View().Collection(ns).Parts, Write)
		if err != nil {
			t.Fatalf("%s: %v", ns, err)
		}
		return wait != nil
	}
	table.Apply(snapshot(map[string]*catalog.Map{}, map[string]*catalog.Map{}))
	if waits("d.x") || waits("d.y") {
		t.Fatal("closed before anything")
	}
	table.Close("d", nil, 1, ClosedAll)
	if !waits("d.x") || !waits("d.y") {
		t.Fatal("open behind the closing")
	}
	maps := map[string]*catalog.Map{"d.x": {NS: "d.x", V: 1, Partitions: []catalog.Partition{{Backend: "b1", Physical: "x"}}}}
	table.Apply(snapshot(maps, map[string]*catalog.Map{}))
	if waits("d.x") || !waits("d.y") {
		t.Error("what has a map is none of the closing's concern, and the rest is")
	}
	table.Apply(snapshot(maps, map[string]*catalog.Map{"d": {NS: "d", V: 1, Burnt: true, Partitions: []catalog.Partition{{Backend: "b1", Physical: catalog.PrimaryHome}}}}))
	if waits("d.x") || waits("d.y") {
		t.Error("closed though nothing closes it")
	}
}
