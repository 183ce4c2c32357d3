package partition

import (
	"testing"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/shardkey"
)

// TestRenamedHomeGetsAGateOfItsOwn: a home that goes to another namespace, whose versions are lower, is entered there, and
// whoever planned with the old name plans again.
func TestRenamedHomeGetsAGateOfItsOwn(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		ctx := waits.Context(t)
		table := NewTable()
		home := catalog.Partition{Backend: "b", Physical: "a", Range: shardkey.Range{}}
		before := &catalog.Snapshot{Databases: map[string]*catalog.Database{"d": {Name: "d", Primary: "b"}}, Maps: map[string]*catalog.Map{}}
		version := int64(0)
		if mapped {
			version = 7
			before.Maps["d.a"] = &catalog.Map{NS: "d.a", V: version, Partitions: []catalog.Partition{home}}
		}
		table.Apply(before)
		old := table.View().Collection("d.a")

		after := *before
		after.Maps = map[string]*catalog.Map{
			"d.a": {NS: "d.a", V: version + 1, Dropped: true},
			"d.z": {NS: "d.z", V: 1, Partitions: []catalog.Partition{home}},
		}
		table.Apply(&after)
		if err := Enter(ctx, old.Parts, Read); err != ErrReplan {
			t.Errorf("mapped %v: the old name's plan: %v, want ErrReplan", mapped, err)
		}
		renamed := table.View().Collection("d.z")
		if err := Enter(ctx, renamed.Parts, Write); err != nil {
			t.Fatalf("mapped %v: the new name: %v", mapped, err)
		}
		Leave(renamed.Parts, Write)
		gates, ok := table.Close("d.z", []Home{renamed.Parts[0].Home}, 2, ClosedAll)
		if !ok || len(gates) != 1 || gates[0] != renamed.Parts[0].Gate() {
			t.Errorf("mapped %v: a closing of the new name closes another gate than requests pass", mapped)
		}
	}
}
