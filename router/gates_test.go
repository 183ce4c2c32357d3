package router

import (
	"testing"
	"time"

	"github.com/shardway/shardway/partition"
)

// TestOtherPartitionsGoOn: while the gates of one partition are closed requests for it wait, and nothing else does: other partitions, whole batches for them, other collections. A read of all
// partitions waits with it.
func TestOtherPartitionsGoOn(t *testing.T) {
	e, _ := scriptEnv(t)
	e.shard("c", "_id", 6)
	closed := e.on("c", "b0", 0)
	same := closed
	for e.partOf("c", same) == e.partOf("c", closed) {
		same = e.on("c", "b0", same) // another partition on the same backend
	}
	far := e.on("c", "b1", 0)
	c := e.table.View().Collection(e.db + ".c")
	pos, _ := c.Key.Position(mustMarshal(d("_id", closed)))
	e.table.Close(c.NS, []partition.Home{c.At(pos).Home}, 2, partition.ClosedAll)
	insert := func(coll string, ids ...int) error {
		var docs []any
		for _, id := range ids {
			docs = append(docs, d("_id", id))
		}
		_, err := e.raw(d("insert", coll, "documents", docs))
		return err
	}
	waiting := make(chan error, 2)
	go func() { waiting <- insert("c", closed) }()
	go func() { _, err := e.raw(d("find", "c", "filter", d("x", 1))); waiting <- err }()
	for what, err := range map[string]error{
		"the same backend": insert("c", same), "another backend": insert("c", far), "a batch": insert("c", same, far, same), "another collection": insert("other", 1),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	select {
	case err := <-waiting:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	next := *c.Map
	next.V = 2
	e.apply(&next)
	for range 2 {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
}
