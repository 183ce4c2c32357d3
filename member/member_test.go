package member_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

// world is one backend and a table that knows the database db on it.
type world struct {
	server *fleet.Server
	b      *backend.Backend
	set    *backend.Set
	table  *partition.Table
	wg     sync.WaitGroup
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{server: fleettest.Start(t, 1).Servers[0], set: &backend.Set{}, table: partition.NewTable()}
	var err error
	if w.b, err = backend.Open(t.Context(), backend.Config{ID: "b1", URI: w.server.URI(), Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.b.Close(context.Background()) })
	if err := w.set.Add(w.b); err != nil {
		t.Fatal(err)
	}
	w.table.Apply(snapshot())
	return w
}

func snapshot(maps ...*catalog.Map) *catalog.Snapshot {
	s := &catalog.Snapshot{Maps: map[string]*catalog.Map{}, Databases: map[string]*catalog.Database{"db": {Name: "db", Primary: "b1"}}}
	for _, m := range maps {
		s.Maps[m.NS] = m
	}
	return s
}

func (w *world) keep(t *testing.T, cfg member.Config) *member.Member {
	cfg.Proxy, cfg.Backends, cfg.Table, cfg.Log = "test", w.set, w.table, zerolog.Nop()
	m := member.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	w.wg.Go(func() { m.Keep(ctx, w.b) })
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return m
}

func (w *world) joined(t *testing.T, m *member.Member, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return m.WaitJoined(ctx, "b1")
}

func (w *world) insert(t *testing.T, coll string, doc any) {
	t.Helper()
	if _, err := member.DB(w.b).Collection(coll).InsertOne(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
}

func (w *world) instances(t *testing.T) []protocol.Instance {
	t.Helper()
	cur, err := member.DB(w.b).Collection(member.Instances).Find(t.Context(), bson.D{})
	var all []protocol.Instance
	if err == nil {
		err = cur.All(t.Context(), &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// until asks again and again.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	waits.Until(t, what, ok)
}

func closing() protocol.Closing {
	return protocol.Closing{ID: bson.NewObjectID(), NS: "db.c", Ends: 1, Reshape: bson.NewObjectID(), DB: "db", Physical: []string{"c"}}
}

// A lease may be used only when the closings that were there before have closed their gates.
func TestJoinMeetsClosingsFirst(t *testing.T) {
	w := newWorld(t)
	c := closing()
	w.insert(t, member.Closings, c)
	m := w.keep(t, member.Config{})
	if err := w.joined(t, m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	parts := w.table.View().Collection("db.c").Parts
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := partition.Enter(ctx, parts, partition.Read); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("entered behind a closing: %v", err)
	}
	until(t, "an answer", func() bool {
		n, err := member.DB(w.b).Collection(member.Answers).CountDocuments(t.Context(), bson.D{{Key: "_id.closing", Value: c.ID}})
		return err == nil && n == 1
	})
}

// Nor while a floor is above the map that is known.
func TestJoinWaitsForFloors(t *testing.T) {
	w := newWorld(t)
	w.insert(t, member.Floors, protocol.Floor{NS: "db.c", V: 3})
	var mu sync.Mutex
	reachable := false
	m := w.keep(t, member.Config{Renew: 100 * time.Millisecond, Refresh: func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if reachable {
			w.table.Apply(snapshot(&catalog.Map{NS: "db.c", V: 4, Partitions: []catalog.Partition{{Backend: "b1", Physical: "c@1.0.0"}}}))
		}
		return nil
	}})
	if err := w.joined(t, m, 300*time.Millisecond); err == nil {
		t.Fatal("joined with a map below the floor")
	}
	mu.Lock()
	reachable = true
	mu.Unlock()
	if err := w.joined(t, m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
}

// Who has lost a lease joins as another instance; the one before is gone only when nothing of it is behind a gate that was to be closed.
func TestLostLease(t *testing.T) {
	w := newWorld(t)
	m := w.keep(t, member.Config{Lease: 400 * time.Millisecond, Renew: 100 * time.Millisecond})
	if err := w.joined(t, m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	old, first := m.Lease("b1"), w.instances(t)[0].ID
	parts := w.table.View().Collection("db.c").Parts
	if err := partition.Enter(t.Context(), parts, partition.Write); err != nil {
		t.Fatal(err)
	}
	w.insert(t, member.Closings, closing())
	if err := w.server.Freeze(); err != nil {
		t.Fatal(err)
	}
	until(t, "the lease ends", func() bool { return !old.Valid() })
	if err := w.server.Thaw(); err != nil {
		t.Fatal(err)
	}
	until(t, "a new lease", func() bool { return m.Lease("b1").Valid() })
	if old.Valid() {
		t.Error("a lease that had ended is valid again")
	}
	gone := func(want bool) bool {
		for _, in := range w.instances(t) {
			if in.ID == first {
				return in.Gone == want
			}
		}
		return false
	}
	if !gone(false) {
		t.Error("the instance was marked gone with a request behind a closing gate")
	}
	partition.Leave(parts, partition.Write)
	until(t, "the first instance is gone", func() bool { return gone(true) })
}

// The registration of a proxy that does not renew its lease is ended; with a transaction that may be open it is gone only when that has died.
func TestEndsInstancesOfOthers(t *testing.T) {
	w := newWorld(t)
	dead := protocol.Instance{ID: bson.NewObjectID(), Proxy: "dead"}
	open := protocol.Instance{ID: bson.NewObjectID(), Proxy: "dead", Transactions: true}
	w.insert(t, member.Instances, dead)
	w.insert(t, member.Instances, open)
	m := w.keep(t, member.Config{Lease: 400 * time.Millisecond, Renew: 100 * time.Millisecond, Margin: 50 * time.Millisecond})
	if err := w.joined(t, m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	state := func(id bson.ObjectID) (in protocol.Instance) {
		for _, other := range w.instances(t) {
			if other.ID == id {
				in = other
			}
		}
		return in
	}
	if in := state(dead.ID); in.Gone {
		t.Error("gone at once")
	}
	until(t, "the dead one is gone", func() bool { return state(dead.ID).Gone })
	until(t, "the one with a transaction is ended", func() bool { return state(open.ID).Ended })
	if state(open.ID).Gone {
		t.Error("an instance that may have left a transaction open is gone before that can have died")
	}
	if !m.Lease("b1").Valid() {
		t.Error("its own lease was ended")
	}
}

// A closing that nobody ends is burnt by who waits for it, and answers tell when what it replaced is used no more.
func TestBurnsOverdueClosing(t *testing.T) {
	w := newWorld(t)
	burnt := make(chan int64, 1)
	m := w.keep(t, member.Config{Patience: 50 * time.Millisecond, Burn: func(_ context.Context, ns string, v int64, home catalog.RecordedHome) error {
		if ns == "db.c" && home.Backend == "b1" && home.Physical == "c" {
			burnt <- v
		}
		return nil
	}})
	if err := w.joined(t, m, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	parts := w.table.View().Collection("db.c").Parts
	if err := partition.Enter(t.Context(), parts, partition.Read); err != nil {
		t.Fatal(err)
	}
	parts[0].Gate().Hold() // a cursor
	partition.Leave(parts, partition.Read)
	c := closing()
	w.insert(t, member.Closings, c)
	if v := <-burnt; v != 1 {
		t.Errorf("burnt version %d", v)
	}
	released := func() bool {
		all, err := member.BoardOf(w.b).Answers(t.Context(), c.ID)
		return err == nil && len(all) == 1 && all[0].Released
	}
	w.table.Apply(snapshot(&catalog.Map{NS: "db.c", V: 1, Partitions: []catalog.Partition{{Backend: "b1", Physical: "c@1.0.0"}}}))
	if released() {
		t.Error("released with a cursor open")
	}
	parts[0].Gate().Unhold()
	until(t, "released", released)
}
