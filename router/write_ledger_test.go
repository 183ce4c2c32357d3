package router

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/wire"
)

// TestLateReplyOfAStandalone: a retryable write that a standalone ran and this process does not remember, its reply having come after the lease, is not labelled:
// a driver that repeated it would have it applied twice.
func TestLateReplyOfAStandalone(t *testing.T) {
	s := backendtest.New(t)
	s.SetHello(backendtest.Standalone())
	var applied atomic.Int64
	var slow atomic.Bool
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.DB == "shardway_member" && c.Name == "update" && slow.Load() {
			return backendtest.OK(bson.E{Key: "n", Value: int32(0)}, bson.E{Key: "nModified", Value: int32(0)}) // renewal: ended by another
		}
		if c.DB != "shardway_member" && (c.Name == "update" || c.Name == "findAndModify") {
			applied.Add(1)
			if slow.Load() {
				time.Sleep(600 * time.Millisecond)
			}
		}
		return writesDone(c)
	})
	e := newWriteEnv(t, map[string]string{"b0": s.URI()})
	mem := member.New(member.Config{Proxy: "p", Backends: e.router.cfg.Backends, Table: e.table, Log: zerolog.Nop(), Lease: 2 * time.Second, Renew: 100 * time.Millisecond, Margin: 100 * time.Millisecond})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); mem.Keep(ctx, e.router.cfg.Backends.Get("b0")) }()
	defer func() { stop(); <-done }()
	if err := mem.WaitJoined(e.ctx, "b0"); err != nil {
		t.Fatal(err)
	}
	e.router.cfg.Member = mem
	update := d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))})
	for _, command := range []bson.D{update, d("findAndModify", "c", "query", d("_id", 1), "update", d("$inc", d("n", 1)))} {
		if err := mem.WaitJoined(e.ctx, "b0"); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		_, err := e.raw(retryable(command, int64(5+applied.Load())))
		slow.Store(false)
		if err == nil || wire.AsError(err).HasLabel("RetryableWriteError") {
			t.Errorf("%v: %v", command, err)
		}
	}
	if applied.Load() != 2 {
		t.Errorf("applied %d times, want 2", applied.Load())
	}
}

// TestNoLabelBesideAStandalone: what a standalone executed without this process hearing of it may not be repeated, nor may what it did not confirm as asked: from memory it would seem confirmed.
// So the whole command is not labelled, whatever another backend says of its part.
func TestNoLabelBesideAStandalone(t *testing.T) {
	alone, set := backendtest.New(t), backendtest.New(t)
	alone.SetHello(backendtest.Standalone())
	e := newWriteEnv(t, map[string]string{"b0": alone.URI(), "b1": set.URI()})
	e.shard("c", "_id", 2)
	down := backendtest.Err(11600, "InterruptedAtShutdown", "no", retryableWrite)
	for i, c := range []struct {
		what       string
		alone, set backendtest.Answer
	}{
		{"both fail", backendtest.Cut(), down},
		{"the standalone's write concern", backendtest.OK(bson.E{Key: "n", Value: 1}, bson.E{Key: "writeConcernError", Value: d("code", 91, "errmsg", "no")}), down},
		{"the standalone fails", backendtest.Cut(), backendtest.OK(bson.E{Key: "n", Value: 1}, bson.E{Key: "writeConcernError", Value: d("code", 91, "errmsg", "no")},
			bson.E{Key: "errorLabels", Value: bson.A{retryableWrite}})},
	} {
		for s, answer := range map[*backendtest.Server]backendtest.Answer{alone: c.alone, set: c.set} {
			s.SetScript(func(c backendtest.Command) backendtest.Answer {
				if isWrite(c) {
					return answer
				}
				return writesDone(c)
			})
		}
		reply := e.exchange(wireMessage(t, append(retryable(insertOf(10), int64(i)), bson.E{Key: "$db", Value: e.db})))
		if _, err := reply.LookupErr("errorLabels"); err == nil {
			t.Errorf("%s: labelled: %v", c.what, reply)
		}
		if n := len(writesOf(set)); n == 0 {
			t.Errorf("%s: nothing went to the set", c.what)
		}
		set.Forget()
	}
}
