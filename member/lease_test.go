package member

import (
	"testing"
	"time"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
)

// TestLeaseAndClocks: a machine that was suspended has lost its lease, though its monotonic clock has not moved.
func TestLeaseAndClocks(t *testing.T) {
	l := &Lease{length: 10 * time.Second, margin: time.Second}
	for name, tt := range map[string]struct {
		mono, wall time.Duration
		want       bool
	}{
		"just renewed":                   {0, 0, true},
		"within":                         {9 * time.Second, 9 * time.Second, true},
		"over":                           {10 * time.Second, 10 * time.Second, false},
		"suspended for an hour":          {2 * time.Second, time.Hour, false},
		"suspended for a moment":         {2 * time.Second, 2*time.Second + 900*time.Millisecond, true},
		"the wall clock was put back":    {2 * time.Second, -5 * time.Second, false},
		"the wall clock was set a bit":   {2 * time.Second, 1500 * time.Millisecond, true},
		"over by the monotonic one only": {11 * time.Second, 10500 * time.Millisecond, false},
	} {
		if got := l.holds(tt.mono, tt.wall); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if l.Valid() {
		t.Error("a lease that was never renewed is valid")
	}
	if now := time.Now(); !l.renewed(now, true) || !l.Valid() {
		t.Error("a lease that has just been renewed is not valid")
	}
}

// TestLeaseAdmits: a request that entered a gate under an earlier instance may be sent under the new one's lease unless the gate was closed when that joined:
// nobody waits for its answer to such a closing.
func TestLeaseAdmits(t *testing.T) {
	const ns = "db.c"
	home := partition.Home{Backend: "b1", DB: "db", Physical: "c"}
	snapshot := func(maps ...*catalog.Map) *catalog.Snapshot {
		s := &catalog.Snapshot{Maps: map[string]*catalog.Map{}, Databases: map[string]*catalog.Database{"db": {Name: "db", Primary: "b1"}}}
		for _, m := range maps {
			s.Maps[m.NS] = m
		}
		return s
	}
	burnt := func(v int64) *catalog.Map {
		return &catalog.Map{NS: ns, V: v, Burnt: true, Partitions: []catalog.Partition{{Backend: "b1", Physical: "c"}}}
	}
	for name, tt := range map[string]struct {
		// happens is what happens after the request has entered, before it is sent.
		happens func(*partition.Table, *Lease)
		admits  bool
	}{
		"nothing": {func(*partition.Table, *Lease) {}, true},
		"the instance joined behind a closing": {func(table *partition.Table, l *Lease) {
			gates, _ := table.Close(ns, []partition.Home{home}, 1, partition.ClosedAll)
			l.joinedBehind(gates, 1)
		}, false},
		"the instance joined behind a closing of writes": {func(table *partition.Table, l *Lease) {
			gates, _ := table.Close(ns, []partition.Home{home}, 1, partition.ClosedWrites)
			l.joinedBehind(gates, 1)
		}, false},
		"the instance joined behind a closing of the database": {func(table *partition.Table, l *Lease) {
			gates, _ := table.Close("db", nil, 1, partition.ClosedAll)
			l.joinedBehind(gates, 1)
		}, false},
		"a closing came after it had joined": {func(table *partition.Table, _ *Lease) {
			table.Close(ns, []partition.Home{home}, 1, partition.ClosedAll)
		}, true},
		"the closing has ended since, with a new map": {func(table *partition.Table, l *Lease) {
			gates, _ := table.Close(ns, []partition.Home{home}, 1, partition.ClosedAll)
			l.joinedBehind(gates, 1)
			table.Apply(snapshot(burnt(1)))
		}, false},
		"the map had changed before it joined": {func(table *partition.Table, _ *Lease) { table.Apply(snapshot(burnt(1))) }, false},
	} {
		table := partition.NewTable()
		table.Apply(snapshot())
		parts := table.View().Collection(ns).Parts
		if err := partition.Enter(t.Context(), parts, partition.Write); err != nil {
			t.Fatal(err)
		}
		l := &Lease{}
		tt.happens(table, l)
		if got := l.Admits(parts[0]); got != tt.admits {
			t.Errorf("%s: %v", name, got)
		}
		partition.Leave(parts, partition.Write)
	}
	// Who enters after the closing has ended is under the new instance.
	table := partition.NewTable()
	table.Apply(snapshot())
	table.View().Collection(ns)
	l := &Lease{}
	gates, _ := table.Close(ns, []partition.Home{home}, 1, partition.ClosedAll)
	l.joinedBehind(gates, 1)
	table.Apply(snapshot(burnt(1)))
	table.Close(ns, []partition.Home{home}, 2, partition.ClosedAll)
	if later := table.View().Collection(ns).Parts[0]; !l.Admits(later) {
		t.Error("a request of the new instance is refused while a later closing waits for it")
	}
}
