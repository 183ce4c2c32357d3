package partition

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardway/shardway/catalog"
)

// TestTransactionHoldsTheAnswer: after its request has left, a transaction keeps the closing's answer back until it is decided, and a retired home from being
// released; nobody else gets in meanwhile.
func TestTransactionHoldsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable()
		at := func(v int64, physical string) *catalog.Map {
			return &catalog.Map{NS: "d.c", V: v, Partitions: []catalog.Partition{{Backend: "b1", Physical: physical}}}
		}
		table.Apply(snapshotOf("b1", at(1, "c@1.0.0")))
		parts := table.View().Collection("d.c").Parts
		gate := parts[0].Gate()
		if err := Enter(t.Context(), parts, Write); err != nil {
			t.Fatal(err)
		}
		gate.BeginTransaction()
		Leave(parts, Write)
		if n := gate.Transactions(); n != 1 {
			t.Fatalf("%d transactions", n)
		}
		if _, ok := table.Close("d.c", []Home{parts[0].Home}, 2, ClosedAll); !ok {
			t.Fatal("not closed")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := gate.WaitQuiet(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an answer with a transaction open: %v", err)
		}
		quiet := make(chan error, 1)
		go func() { quiet <- gate.WaitQuiet(t.Context()) }()
		time.AfterFunc(time.Minute, gate.EndTransaction)
		began := time.Now()
		if err := <-quiet; err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		// A home that is retired all the same, as one of a lost lease, is in use until then.
		gate.BeginTransaction()
		table.Apply(snapshotOf("b1", at(2, "c@2.0.0")))
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if gate.WaitReleased(short) == nil {
			t.Error("released with a transaction open")
		}
		gate.EndTransaction()
		if err := gate.WaitReleased(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
