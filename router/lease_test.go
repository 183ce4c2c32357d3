package router

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/wire"
)

// leaseEnv is a writeEnv over one scripted server at which the process is registered. The server has one collection, c, whose cursors it never ends.
type leaseEnv struct {
	*writeEnv
	server *backendtest.Server
	member *member.Member

	// ended has the registration ended by somebody else; closed has new ones wait.
	ended  atomic.Bool
	mu     sync.Mutex
	closed chan struct{}
	// closings are what stands on the server.
	closings bson.A
	// first, if not nil, is called before the first command for c is answered.
	first func()
}

func newLeaseEnv(t *testing.T, change ...func(*backend.Config)) *leaseEnv {
	t.Helper()
	e := &leaseEnv{server: backendtest.New(t), closings: bson.A{}}
	e.server.SetScript(e.script)
	e.writeEnv = newWriteEnv(t, map[string]string{"b0": e.server.URI()}, change...)
	b := e.router.cfg.Backends.Get("b0")
	e.member = member.New(member.Config{Proxy: "test", Backends: e.router.cfg.Backends, Table: e.table, Log: zerolog.Nop(),
		Lost: e.router.LeaseLost, Lease: 20 * time.Second, Renew: 20 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	kept.Go(func() { e.member.Keep(ctx, b) })
	t.Cleanup(func() { e.register(); cancel(); kept.Wait() })
	if err := e.member.WaitJoined(e.ctx, "b0"); err != nil {
		t.Fatal(err)
	}
	e.router.cfg.Member = e.member
	return e
}

func (e *leaseEnv) script(c backendtest.Command) backendtest.Answer {
	if c.DB == catalog.MemberDB {
		return e.scriptMember(c)
	}
	if text, _ := c.Body.Lookup(c.Name).StringValueOK(); !strings.HasPrefix(text, "c") && c.Name != "getMore" {
		return writesDone(c)
	}
	e.mu.Lock()
	first := e.first
	e.first = nil
	e.mu.Unlock()
	if first != nil {
		first()
	}
	switch c.Name {
	case "find", "aggregate", "getMore":
		batch := map[bool]string{false: "firstBatch", true: "nextBatch"}[c.Name == "getMore"]
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(77), "ns", e.db+".c", batch, bson.A{d("_id", 1)})})
	}
	return writesDone(c)
}

func (e *leaseEnv) scriptMember(c backendtest.Command) backendtest.Answer {
	coll, _ := c.Body.Lookup(c.Name).StringValueOK()
	switch {
	case c.Name == "insert" && coll == member.Instances:
		e.mu.Lock()
		closed := e.closed
		e.mu.Unlock()
		if closed != nil {
			<-closed
		}
	case renews(c) && e.ended.CompareAndSwap(true, false):
		return backendtest.OK(bson.E{Key: "n", Value: int32(0)}, bson.E{Key: "nModified", Value: int32(0)})
	case c.Name == "find" && coll == member.Closings:
		e.mu.Lock()
		defer e.mu.Unlock()
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", e.closings)})
	case c.Name == "aggregate": // a change stream: closings are read again and again instead
		return backendtest.Err(40573, "Location40573", "no change streams here")
	}
	return writesDone(c)
}

// renews reports whether a command renews a registration.
func renews(c backendtest.Command) bool {
	for _, u := range c.Docs("updates") {
		if _, err := u.LookupErr("u", "$inc", "renewals"); err == nil {
			return true
		}
	}
	return false
}

// lose has the lease end, and returns when it has; no other can be had until register.
func (e *leaseEnv) lose() {
	e.mu.Lock()
	if e.closed == nil {
		e.closed = make(chan struct{})
	}
	e.mu.Unlock()
	e.ended.Store(true)
	e.until("the lease ends", func() bool { return !e.member.Lease("b0").Valid() })
}

// register lets new registrations pass.
func (e *leaseEnv) register() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed != nil {
		close(e.closed)
		e.closed = nil
	}
}

func (e *leaseEnv) until(what string, so func() bool) {
	e.t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			e.t.Error("not in 30 s: " + what)
			return
		}
	}
}

// received are the commands for c with that name.
func (e *leaseEnv) received(name string) (out []backendtest.Command) {
	for _, c := range e.server.Received() {
		if c.DB != catalog.MemberDB && c.Name == name && strings.HasPrefix(c.Body.Lookup(map[bool]string{true: "collection", false: name}[name == "getMore"]).StringValue(), "c") {
			out = append(out, c)
		}
	}
	return out
}

// TestWithoutALease: what arrives while the process has no lease is not sent before there is one, and then is.
func TestWithoutALease(t *testing.T) {
	byKey := d("q", d("_id", 1), "u", d("$inc", d("n", 1)))
	for name, tt := range map[string]struct {
		cmd     bson.D
		sharded bool
	}{
		"a find":                          {d("find", "c", "filter", d()), false},
		"a find by key":                   {d("find", "c", "filter", d("_id", 1), "limit", 1), true},
		"a find on all partitions":        {d("find", "c", "filter", d("x", 1)), true},
		"a count":                         {d("count", "c"), false},
		"an insert":                       {d("insert", "c", "documents", bson.A{d("_id", 1)}), false},
		"an insert by key":                {d("insert", "c", "documents", bson.A{d("_id", 1)}), true},
		"a retryable update":              {retryable(d("update", "c", "updates", bson.A{byKey}), 3), false},
		"a retryable update by key":       {retryable(d("update", "c", "updates", bson.A{byKey}), 3), true},
		"findAndModify":                   {d("findAndModify", "c", "query", d("_id", 1), "remove", true), true},
		"an aggregate":                    {d("aggregate", "c", "pipeline", bson.A{}, "cursor", d()), false},
		"a transaction's first statement": {inTxn(3, true, d("find", "c", "filter", d("_id", 1))), false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newLeaseEnv(t)
			if tt.sharded {
				e.shardOn("c")
			}
			e.lose()
			type answer struct {
				reply bson.M
				err   error
			}
			answered := make(chan answer, 1)
			go func() {
				reply, err := e.over(tt.cmd)
				answered <- answer{reply, err}
			}()
			e.until("the request waits", e.inProgress)
			if n := len(e.received(tt.cmd[0].Key)); n > 0 {
				t.Errorf("sent %d times without a lease", n)
			}
			e.register()
			if a := <-answered; a.err != nil || a.reply["ok"] != 1.0 {
				t.Errorf("%v, %v", a.reply, a.err)
			}
		})
	}
}

// TestWaitForALeaseHasAnEnd: it is the request's own limit, or that of the wait for a server, and nothing was sent.
func TestWaitForALeaseHasAnEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		cmd  bson.D
		code wire.Code
	}{
		"as long as a server is waited for": {d("insert", "c", "documents", bson.A{d("_id", 1)}), wire.HostUnreachable},
		"a read":                            {d("find", "c"), wire.HostUnreachable},
		"the request's time":                {d("find", "c", "maxTimeMS", 50), wire.MaxTimeMSExpired},
	} {
		e := newLeaseEnv(t, func(c *backend.Config) { c.SelectionTimeout = 300 * time.Millisecond })
		e.lose()
		_, err := e.over(tt.cmd)
		if got := wire.AsError(err); got == nil || got.Code != tt.code {
			t.Errorf("%s: %v, want %d", name, err, tt.code)
		}
		if n := len(e.received(tt.cmd[0].Key)); n > 0 {
			t.Errorf("%s: sent %d times", name, n)
		}
	}
}

// TestLateReply: a reply that comes after the lease has ended is not passed on. Reads are run again, retryable writes are sent again as they were; of any other write
// the client hears that its outcome is unknown.
func TestLateReply(t *testing.T) {
	update := d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))})
	modify := d("findAndModify", "c", "query", d("_id", 1), "update", d("$inc", d("n", 1)))
	for name, tt := range map[string]struct {
		cmd     bson.D
		sharded bool
		sent    int
	}{
		"a find":                    {d("find", "c"), false, 2},
		"a find by key":             {d("find", "c", "filter", d("_id", 1), "limit", 1), true, 2},
		"a count":                   {d("count", "c"), false, 2},
		"a retryable update":        {retryable(update, 3), false, 2},
		"a retryable update by key": {retryable(update, 3), true, 2},
		"a retryable findAndModify": {retryable(modify, 3), false, 2},
		"an update":                 {update, false, 1},
		"an update by key":          {update, true, 1},
		"a findAndModify":           {modify, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newLeaseEnv(t)
			if tt.sharded {
				e.shardOn("c")
			}
			e.first = func() { e.lose(); e.register() }
			_, err := e.over(tt.cmd)
			if again := tt.sent > 1; again != (err == nil) {
				t.Errorf("%v", err)
			} else if e := wire.AsError(err); e != nil && e.Code != wire.HostUnreachable {
				t.Errorf("%v, want %d", err, wire.HostUnreachable)
			}
			all := e.received(tt.cmd[0].Key)
			if len(all) != tt.sent {
				t.Fatalf("sent %d times, want %d", len(all), tt.sent)
			}
			if !slices.Equal(all[0].Body, all[len(all)-1].Body) {
				t.Errorf("sent again as something else:\n%v\n%v", all[0].Body, all[len(all)-1].Body)
			}
		})
	}
}

// TestNotSentBehindAClosing: a write whose first try was sent under a lease that has ended is not sent again from within its gate when the new registration has met a
// closing there: its owner does not wait for this process. It leaves the gate, and is sent when the closing has ended.
func TestNotSentBehindAClosing(t *testing.T) {
	e := newLeaseEnv(t)
	e.shardOn("c")
	part := e.table.View().Collection(e.db + ".c").Parts[0]
	closing := d("_id", bson.NewObjectID(), "ns", e.db+".c", "ends", int64(2), "reshape", bson.NewObjectID(), "epoch", int64(1), "db", e.db, "physical", bson.A{part.Physical})
	e.first = func() {
		e.lose()
		e.mu.Lock()
		e.closings = bson.A{closing}
		e.mu.Unlock()
		e.register()
	}
	answered := make(chan error, 1)
	go func() {
		_, err := e.over(retryable(d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))}), 3))
		answered <- err
	}()
	e.until("the write leaves its gate", func() bool {
		quiet, cancel := context.WithTimeout(e.ctx, time.Millisecond)
		defer cancel()
		return len(e.received("update")) == 1 && e.member.Lease("b0").Valid() && !e.member.Lease("b0").Admits(part) && part.Gate().WaitQuiet(quiet) == nil
	})
	if n := len(e.received("update")); n != 1 {
		t.Errorf("sent %d times behind the closing", n)
	}
	burnt := *e.snap.Maps[e.db+".c"]
	burnt.V, burnt.Burnt = 2, true
	e.apply(&burnt)
	if err := <-answered; err != nil || len(e.received("update")) != 2 {
		t.Errorf("%v after %d tries", err, len(e.received("update")))
	}
}

// TestCursorsOutliveLeases: a cursor goes on without a lease and under another one; a transaction and its cursor end.
func TestCursorsOutliveLeases(t *testing.T) {
	e := newLeaseEnv(t)
	open := func(cmd bson.D) int64 {
		t.Helper()
		reply, err := e.over(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return bson.Raw(mustMarshal(reply)).Lookup("cursor", "id").AsInt64()
	}
	plain := open(d("find", "c"))
	inside := open(inTxn(5, true, d("find", "c")))
	e.lose()
	if _, err := e.over(d("getMore", plain, "collection", "c")); err != nil {
		t.Errorf("without a lease: %v", err)
	}
	if n := len(e.received("getMore")); n != 1 {
		t.Errorf("%d getMores arrived without a lease", n)
	}
	e.register()
	e.until("another lease", func() bool { return e.member.Lease("b0").Valid() })
	if _, err := e.over(d("getMore", plain, "collection", "c")); err != nil {
		t.Errorf("under another lease: %v", err)
	}
	if _, err := e.over(inTxn(5, false, d("getMore", inside, "collection", "c"))); wire.AsError(err) == nil {
		t.Error("the cursor of a transaction has outlived the lease")
	}
}

// shardOn makes c a sharded collection of one partition.
func (e *leaseEnv) shardOn(name string) {
	e.shard(name, "_id", 1)
}

// inProgress reports whether a request for the collection is being answered.
func (e *leaseEnv) inProgress() bool {
	e.router.mu.Lock()
	defer e.router.mu.Unlock()
	for c := range e.router.conns {
		c.mu.Lock()
		busy := c.op != nil && c.op.DB == e.db
		c.mu.Unlock()
		if busy {
			return true
		}
	}
	return false
}

// over runs a command over a connection of its own, as a client does.
func (e *leaseEnv) over(cmd bson.D) (bson.M, error) {
	nc, err := net.Dial("tcp", e.addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Minute))
	if _, err := nc.Write(wire.AppendMsg(nil, 1, 0, 0, mustMarshal(append(slices.Clone(cmd), bson.E{Key: "$db", Value: e.db})))); err != nil {
		return nil, err
	}
	m, err := wire.NewReader(nc).ReadMessage()
	if err != nil {
		return nil, err
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil {
		return nil, err
	}
	if err := wire.ErrorFromReply(msg.Body); err != nil {
		return nil, err
	}
	var out bson.M
	return out, bson.Unmarshal(msg.Body, &out)
}
