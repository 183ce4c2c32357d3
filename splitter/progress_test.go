package splitter

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
)

// TestProgress: currentOp tells how far a copy is and when it will be done, if it goes on as it went.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Splitter{running: map[string]*reshape{}}
		r := &reshape{s: s, id: "r1", kind: "split", coll: &partition.Collection{NS: "d.c"}, started: time.Now(), phase: "copy", total: 1000}
		s.running[r.id] = r
		got := func(name string) any {
			t.Helper()
			ops := s.Operations()
			if len(ops) != 1 {
				t.Fatalf("%d operations", len(ops))
			}
			return field(ops[0], name)
		}
		if got("remainingOperationTimeEstimatedSecs") != nil {
			t.Error("an estimate before anything was copied")
		}
		time.Sleep(10 * time.Second)
		r.docs, r.bytes = 250, 4096
		for name, want := range map[string]any{"desc": "reshape", "ns": "d.c", "kind": "split", "phase": "copy", "documentsCopied": int64(250), "bytesCopied": int64(4096),
			"documentsToCopy": int64(1000), "secs_running": int64(10), "remainingOperationTimeEstimatedSecs": int64(30)} {
			if v := got(name); v != want {
				t.Errorf("%s: %v, want %v", name, v, want)
			}
		}
		r.phase = "follow"
		if got("remainingOperationTimeEstimatedSecs") != nil {
			t.Error("an estimate after the copy")
		}
		if _, err := bson.Marshal(s.Operations()[0]); err != nil {
			t.Error(err)
		}
	})
}
