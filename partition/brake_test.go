package partition_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
)

// A brake holds writes up, not reads, and lets go when the gate closes: a flip must not wait for it.
func TestBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := partition.NewTable()
		table.Apply(&catalog.Snapshot{Databases: map[string]*catalog.Database{"db": {Name: "db", Primary: "b1"}}})
		parts := table.View().Collection("db.c").Parts
		gate := parts[0].Gate()
		gate.SetBrake(30 * time.Millisecond)
		enter := func(mode partition.Mode, want time.Duration) {
			t.Helper()
			began := time.Now()
			if err := partition.Enter(t.Context(), parts, mode); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("entering took %s, want %s", took, want)
			}
			partition.Leave(parts, mode)
		}
		enter(partition.Read, 0)
		enter(partition.Write, 30*time.Millisecond)
		time.AfterFunc(10*time.Millisecond, func() { gate.Close(partition.ClosedAll, 1) })
		enter(partition.Write, 10*time.Millisecond)
	})
}
