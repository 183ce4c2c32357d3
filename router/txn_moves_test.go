package router

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// TestTransactionMeetsMove: a statement that waits at a gate finds its partition on another backend. A transaction that has sent nothing yet goes there; one that is bound to
// the old place is told to begin anew, not that it cannot be.
func TestTransactionMeetsMove(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 6)
	a := e.on("c", "b0", 0)
	b := a
	for e.partOf("c", b) == e.partOf("c", a) {
		b = e.on("c", "b0", b)
	}
	ns := e.db + ".c"
	find := func(id int) bson.D { return d("find", "c", "filter", d("_id", id)) }
	home := func(c *partition.Collection, id int) partition.Home {
		pos, _ := c.Key.Position(mustMarshal(d("_id", id)))
		return c.At(pos).Home
	}
	// moves has run wait while b's partition goes to another backend.
	moves := func(to string, run func() error) error {
		t.Helper()
		c := e.table.View().Collection(ns)
		h := home(c, b)
		e.table.Close(ns, []partition.Home{h}, c.Map.V+1, partition.ClosedAll)
		done := make(chan error, 1)
		go func() { done <- run() }()
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(30 * time.Millisecond):
		}
		next := *c.Map
		next.V, next.Partitions = next.V+1, slices.Clone(c.Map.Partitions)
		for i := range next.Partitions {
			if next.Partitions[i].Physical == h.Physical && next.Partitions[i].Backend == h.Backend {
				next.Partitions[i].Backend, next.Partitions[i].Physical = to, catalog.PhysicalName("db", "c", uint64(70+next.V), 0, 0)
			}
		}
		e.apply(&next)
		return <-done
	}
	for _, s := range servers {
		s.Forget()
	}
	if err := moves("b1", func() error { _, err := e.raw(inTxn(1, true, find(b))); return err }); err != nil {
		t.Errorf("the first statement: %v", err)
	}
	if _, err := e.end("commitTransaction", 1); err != nil {
		t.Errorf("commit: %v", err)
	}
	if got := fmt.Sprint(names(sent(servers[0])), names(sent(servers[1]))); got != "[] [find commitTransaction]" {
		t.Errorf("sent %s", got)
	}
	if _, err := e.raw(inTxn(2, true, find(a))); err != nil {
		t.Fatal(err)
	}
	_, err := e.raw(inTxn(2, false, find(b)))
	wantCode(t, "another backend", err, wire.OperationNotSupportedInTransaction)
	if err := moves("b0", func() error { _, err := e.raw(inTxn(3, true, find(b))); return err }); err != nil {
		t.Errorf("back again: %v", err)
	}
	if _, err := e.end("abortTransaction", 3); err != nil {
		t.Errorf("abort: %v", err)
	}
	if _, err := e.raw(inTxn(4, true, find(a))); err != nil {
		t.Fatal(err)
	}
	err = moves("b1", func() error { _, err := e.raw(inTxn(4, false, find(b))); return err })
	wantCode(t, "moved away under it", err, wire.SnapshotUnavailable, transientTransaction)
	e.settled()
}
