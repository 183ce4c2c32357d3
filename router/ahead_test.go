package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

var findAll, findSorted = d("find", "c"), d("find", "c", "sort", d("_id", 1))

// TestFetchAhead: nothing is asked for before the client's first getMore; from then on one batch of each partition, and the connections are free
// while the client is idle.
func TestFetchAhead(t *testing.T) {
	for name, find := range map[string]bson.D{"unsorted": findAll, "sorted": findSorted, "aggregate": d("aggregate", "c", "pipeline", bson.A{}, "cursor", d())} {
		t.Run(name, func(t *testing.T) {
			e := newScanEnv(t, 6, 1000, 100)
			id, ids, err := e.cursor(find)
			if err != nil || id == 0 {
				t.Fatal(id, err)
			}
			time.Sleep(20 * time.Millisecond)
			if n := e.getMores(); n != 0 {
				t.Fatalf("%d getMores before the client's first", n)
			}
			for round := 0; id != 0; round++ {
				var more []int32
				if id, more, err = e.more(id, 150); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, more...)
				if round != 4 {
					continue
				}
				// An idle client: what is under way comes, and no more.
				e.landed()
				if n := e.inUse(); n != 0 {
					t.Errorf("%d connections are in use", n)
				}
				was := e.getMores()
				if n := was * 150; n <= len(ids)-6*firstBatch || n > len(ids)+2*6*150 {
					t.Errorf("%d getMores of 150 for %d documents", was, len(ids))
				}
				time.Sleep(50 * time.Millisecond)
				if n := e.getMores(); n != was {
					t.Errorf("%d getMores while the client was idle", n-was)
				}
				if e.router.ahead.used.Load() == 0 {
					t.Error("nothing is ahead")
				}
			}
			e.complete(ids, name == "sorted")
			e.quiet()
			if n := e.kills(); n > 0 {
				t.Errorf("%d cursors were killed", n)
			}
		})
	}
}

// TestFetchAheadOverlaps: the next batch is under way before it is asked for.
func TestFetchAheadOverlaps(t *testing.T) {
	e := newScanEnv(t, 3, 1000, 10)
	id, _, err := e.cursor(findAll)
	if err != nil {
		t.Fatal(err)
	}
	if id, _, err = e.more(id, 400); err != nil {
		t.Fatal(err)
	}
	e.eventually("every partition is asked again", func() bool { return e.getMores(0) > 0 && e.getMores(1) > 0 && e.getMores(2) > 0 })
	if _, _, err := e.more(id, 400); err != nil {
		t.Fatal(err)
	}
}

// TestFetchAheadBatchSizes: whatever the client asks for next, it has no more than that, and everything once.
func TestFetchAheadBatchSizes(t *testing.T) {
	for name, find := range map[string]bson.D{"unsorted": findAll, "sorted": findSorted, "with a limit": d("find", "c", "limit", 3333, "skip", 10, "sort", d("_id", 1))} {
		t.Run(name, func(t *testing.T) {
			e := newScanEnv(t, 4, 3000, 1000)
			id, ids, err := e.cursor(find)
			sizes := []int{50, 7, 1, 0, 333, 2, 0, 1000, 3}
			for i := 0; id != 0 && err == nil; i++ {
				var more []int32
				size := sizes[i%len(sizes)]
				id, more, err = e.more(id, size)
				if size > 0 && (len(more) > size || len(more) < size && id != 0) {
					t.Fatalf("%d documents, %d were asked for", len(more), size)
				}
				ids = append(ids, more...)
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "with a limit" {
				if len(ids) != 3333 || ids[0] != 10 || ids[len(ids)-1] != 3342 {
					t.Errorf("%d documents from %d", len(ids), ids[0])
				}
			} else {
				e.complete(ids, name == "sorted")
			}
			e.quiet()
		})
	}
}

// TestWholeRuns: a sorted scan in which whole batches come next as they are gives them in the same order as one that merges document by document.
func TestWholeRuns(t *testing.T) {
	for _, group := range []int32{0, 1, 5, 300, 1500, 2900} {
		e := newScanEnv(t, 3, 4000, 1000)
		e.group = group
		find := d("find", "c", "sort", d("s", 1))
		var scans [2][]int32
		whole := 0 // replies that are one backend's batch
		for i, size := range []int{0, 200} {
			id, ids, err := e.cursor(find)
			for id != 0 && err == nil {
				var more []int32
				id, more, err = e.more(id, size)
				ids = append(ids, more...)
				if size == 0 && len(more) > 0 && e.isBatch(more) {
					whole++
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			scans[i] = ids
		}
		if !slices.Equal(scans[0], scans[1]) {
			t.Errorf("in groups of %d: %d documents, or their order, are not those of a merge, %d", group, len(scans[0]), len(scans[1]))
		}
		if want := group == 0 || group >= 1500; want != (whole > 3) {
			t.Errorf("in groups of %d: %d whole batches", group, whole)
		}
		e.complete(scans[0], false)
	}
}

// TestFetchAheadIsBounded: beyond the bound of the whole proxy batches are asked for when they are needed.
func TestFetchAheadIsBounded(t *testing.T) {
	e := newScanEnv(t, 3, 2000, 10)
	e.router.ahead.used.Add(aheadLimit)
	id, ids, err := e.cursor(findSorted)
	for id != 0 && err == nil {
		was := e.getMores()
		var more []int32
		id, more, err = e.more(id, 500)
		ids = append(ids, more...)
		if n := e.getMores() - was; n > 2*3 {
			t.Errorf("%d getMores for one", n)
		}
		was = e.getMores()
		time.Sleep(2 * time.Millisecond)
		if e.getMores() != was {
			t.Error("a batch was fetched ahead")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	e.complete(ids, true)
	e.router.ahead.used.Add(-aheadLimit)
	e.quiet()
}

// TestFetchAheadNever: where a getMore has a meaning of its own, none is sent that the client has not asked for.
func TestFetchAheadNever(t *testing.T) {
	tests := map[string]struct {
		find, inEach bson.D
	}{
		"tailable":         {find: d("find", "c", "tailable", true, "awaitData", true)},
		"in a transaction": {find: inTxn(3, true, findAll), inEach: inTxn(3, false, d())},
		"one partition":    {find: d("find", "c", "filter", d("_id", 1))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := newScanEnv(t, 1, 1000, 10)
			if name == "tailable" {
				e = newScanEnv(t, 3, 1000, 10)
			}
			id, _, err := e.cursor(tt.find)
			for range 3 {
				if err == nil {
					id, _, err = e.more(id, 100, tt.inEach...)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			was := e.getMores()
			time.Sleep(20 * time.Millisecond)
			if e.getMores() != was || e.router.ahead.used.Load() != 0 {
				t.Errorf("%d getMores of their own", e.getMores()-was)
			}
			if tt.inEach != nil {
				if _, err := e.end("abortTransaction", 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestFetchAheadError: an error is told in the turn of the branch that it concerns, and ends the cursor.
func TestFetchAheadError(t *testing.T) {
	for name, answer := range map[string]backendtest.Answer{
		"told": backendtest.Err(175, "QueryPlanKilled", "collection dropped x.c@1.0.1"), "cut": backendtest.Cut(),
	} {
		t.Run(name, func(t *testing.T) {
			e := newScanEnv(t, 3, 1000, 10)
			e.setAnswer(func(p, n int) *backendtest.Answer {
				if p == 1 && n == 2 {
					return &answer
				}
				return nil
			})
			id, ids, err := e.cursor(d("find", "c", "batchSize", 100))
			for err == nil && len(ids) < 2000 {
				e.landed()
				var more []int32
				if _, more, err = e.more(id, 100); err == nil {
					ids = append(ids, more...)
				}
			}
			// Two batches of each of the others have come, and at most one more, before the third of partition 1 is due.
			if len(ids) < 6*100 || len(ids) > 8*100 {
				t.Errorf("%d documents before the error", len(ids))
			}
			want := wire.QueryPlanKilled
			if name == "cut" {
				want = wire.HostUnreachable
			}
			wantCode(t, "the getMore", err, want)
			_, _, err = e.more(id, 100)
			wantCode(t, "the next one", err, wire.CursorNotFound)
			e.quiet()
			e.eventually("the other cursors are killed", func() bool { return e.kills() >= 2 })
		})
	}
}

// TestFetchAheadIsKilled: killCursors, and the end of the proxy, while batches are under way: servers are told, and nothing is left.
func TestFetchAheadIsKilled(t *testing.T) {
	for _, how := range []string{"killCursors", "Shutdown", "killCursors while the client waits", "killCursors of a server that does not answer"} {
		t.Run(how, func(t *testing.T) {
			e := newScanEnv(t, 3, 1000, 10)
			stuck := make(chan struct{})
			unstick := sync.OnceFunc(func() { close(stuck) })
			t.Cleanup(unstick)
			e.setAnswer(func(_, n int) *backendtest.Answer {
				switch {
				case n < 2:
					return nil
				case how == "killCursors of a server that does not answer":
					return &backendtest.Answer{Silent: true}
				}
				<-stuck
				a := backendtest.Err(237, "CursorKilled", "killed")
				return &a
			})
			id, _, err := e.cursor(d("find", "c", "batchSize", 50))
			for range 5 {
				if err == nil {
					_, _, err = e.more(id, 50)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			e.eventually("a batch of each is under way", func() bool { return e.inUse() == 3 })
			if n := e.held(); n != 2*3 {
				t.Errorf("the gates are held %d times, not by the cursor and each fetch", n)
			}
			waiting := make(chan error, 1)
			if how == "killCursors while the client waits" {
				go func() { _, _, err := e.more(id, 50); waiting <- err }()
				e.eventually("it waits", func() bool {
					busy := false
					e.router.cursors.each(func(c *cursor) { busy = c.busy })
					return busy
				})
			}
			if how == "Shutdown" {
				go e.shutDown()
			} else if r, err := e.raw(d("killCursors", "c", "cursors", bson.A{id})); err != nil || len(r["cursorsKilled"].(bson.A)) != 1 {
				t.Fatal(r, err)
			}
			if how != "killCursors while the client waits" {
				e.eventually("the servers are told", func() bool { return e.kills() == 3 })
				if how != "killCursors of a server that does not answer" && e.held() != 3 {
					t.Error("the gate was released while the backend works")
				}
			}
			unstick()
			if how == "killCursors while the client waits" {
				wantCode(t, "the getMore", <-waiting, wire.CursorKilled)
			}
			e.quiet()
			if n := e.router.cursors.count(); n != 0 {
				t.Errorf("%d cursors", n)
			}
		})
	}
}

// shutDown ends the router, as its environment will do once more.
func (e *scanEnv) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	e.router.Shutdown(ctx)
}

// TestFetchAheadOutlivesItsConnection: the batch is the cursor's, not the connection's whose getMore led to it; a getMore that is interrupted while it waits
// for one ends the cursor.
func TestFetchAheadOutlivesItsConnection(t *testing.T) {
	e := newScanEnv(t, 3, 1000, 10)
	find := append(slices.Clone(findSorted), bson.E{Key: "lsid", Value: testSession})
	lsid := bson.E{Key: "lsid", Value: testSession}
	test := e.ctx
	first, gone := context.WithCancel(test)
	e.ctx = first
	id, ids, err := e.cursor(find)
	if err != nil {
		t.Fatal(err)
	}
	id, more, err := e.more(id, 100, lsid)
	gone()
	e.ctx = test
	for err == nil && id != 0 {
		ids = append(ids, more...)
		id, more, err = e.more(id, 100, lsid)
	}
	if err != nil {
		t.Fatal(err)
	}
	e.complete(append(ids, more...), true)
	if n := e.sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}

	stuck := make(chan struct{})
	unstick := sync.OnceFunc(func() { close(stuck) })
	t.Cleanup(unstick)
	e.setAnswer(func(int, int) *backendtest.Answer { <-stuck; return nil })
	if id, _, err = e.cursor(findAll); err != nil {
		t.Fatal(err)
	}
	e.ctx, gone = context.WithCancel(test)
	time.AfterFunc(20*time.Millisecond, gone)
	for err == nil {
		_, _, err = e.more(id, 200)
	}
	e.ctx = test
	wantCode(t, "an interrupted getMore", err, wire.ClientDisconnect)
	unstick()
	e.quiet()
	if n := e.router.cursors.count(); n != 0 {
		t.Errorf("%d cursors", n)
	}
}

// TestFetchAheadLands: what a fetch has brought counts when it is handed out.
func TestFetchAheadLands(t *testing.T) {
	lost, unsent := &backend.LostError{Code: wire.NetworkTimeout, Err: errors.New("cut")}, &backend.UnsentError{Code: wire.HostUnreachable, Err: errors.New("refused")}
	body := backend.Reply{Body: mustMarshal(d("cursor", d("nextBatch", bson.A{d("_id", 1)}, "id", int64(9), "ns", "x.y"), "ok", 1.0))}
	failed := backend.Reply{Body: mustMarshal(d("ok", 0.0, "code", 175, "errmsg", "dropped"))}
	for name, tt := range map[string]struct {
		fetch  fetch
		code   wire.Code
		id     int64
		unsent bool
	}{
		"a batch":          {fetch: fetch{reply: body}, id: 9},
		"an error":         {fetch: fetch{reply: failed}, code: wire.QueryPlanKilled},
		"a lost reply":     {fetch: fetch{err: lost}, code: wire.NetworkTimeout, id: 8},
		"it did not leave": {fetch: fetch{err: unsent, unsent: true}, id: 8, unsent: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fanout{r: &Router{}}
			br := &branch{part: &partition.Part{}, id: 8, ahead: &tt.fetch}
			tt.fetch.bytes = 100
			f.r.ahead.used.Store(100)
			err := f.land(br)
			if tt.code != 0 {
				if e := wire.AsError(err); e == nil || e.Code != tt.code {
					t.Errorf("error %v, want %d", err, tt.code)
				}
			} else if err != nil {
				t.Error(err)
			}
			if br.id != tt.id || br.unsent != tt.unsent || br.ahead != nil || f.r.ahead.used.Load() != 0 || (len(br.docs) > 0) != (name == "a batch") {
				t.Errorf("branch %+v, %d bytes ahead", br, f.r.ahead.used.Load())
			}
		})
	}
}
