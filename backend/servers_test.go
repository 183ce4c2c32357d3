package backend_test

import (
	"context"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
)

// TestKillAndRestart: writers run through the death of their server; every acknowledged insert is there
// afterwards, nobody is told anything but a lost or unsent request, and service returns by itself.
func TestKillAndRestart(t *testing.T) {
	f := fleettest.Start(t, 1, fleettest.Durable)
	s := f.Servers[0]
	b := open(t, backend.Config{URI: s.URI(), SelectionTimeout: 20 * time.Second})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	var mu sync.Mutex
	acked := map[int64]bool{}
	var next atomic.Int64
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for range 8 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				id := next.Add(1)
				_, err := b.Run(ctx, "d", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}})
				if err == nil {
					mu.Lock()
					acked[id] = true
					mu.Unlock()
				}
			}
		}()
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	for range 3 {
		before := count()
		eventually(t, func() bool { return count() > before+20 })
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := count()
	eventually(t, func() bool { return count() > before+20 })
	close(stop)
	writers.Wait()
	for id := range acked {
		n, err := b.Client().Database("d").Collection("c").CountDocuments(ctx, bson.D{{Key: "_id", Value: id}})
		if err != nil || n != 1 {
			t.Fatalf("the acknowledged insert %d is there %d times (%v)", id, n, err)
		}
	}
	if st := b.Stats(); st.Open != st.Idle || st.Waiting != 0 {
		t.Errorf("connections or waiters left over: %+v", st)
	}
}

// TestFrozenServer: requests to a process that stands still end by their deadlines, others are not
// touched, and a thawed server serves again.
func TestFrozenServer(t *testing.T) {
	f := fleettest.Start(t, 2)
	frozen := open(t, backend.Config{ID: "P1", URI: f.Servers[1].URI(), ConnectTimeout: 2 * time.Second})
	other := open(t, backend.Config{ID: "P0", URI: f.Servers[0].URI()})
	ping := bson.D{{Key: "ping", Value: 1}}
	for _, b := range []*backend.Backend{frozen, other} {
		if _, err := b.Run(within(t), "d", ping); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Servers[1].Freeze(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		began := time.Now()
		if _, err := frozen.Run(short(t, 300*time.Millisecond), "d", ping); err == nil {
			t.Error("a frozen server answered")
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("a deadline of 300 ms took %v", d)
		}
		if _, err := other.Run(within(t), "d", ping); err != nil {
			t.Errorf("the other backend: %v", err)
		}
	}
	if err := f.Servers[1].Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := frozen.Run(short(t, 5*time.Second), "d", ping); return err == nil })
}

// TestChangeStreamThroughClient: the driver's client on the shared discovery follows a collection.
func TestChangeStreamThroughClient(t *testing.T) {
	fleettest.SharedNeed(t, fleet.ReplicaSet)
	b := open(t, backend.Config{URI: fleettest.Shared(t, 1)[0].URI()})
	ctx := within(t)
	db := fleettest.DB(t)
	stream, err := b.Client().Database(db).Collection("c").Watch(ctx, mongo.Pipeline{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close(ctx)
	if _, err := b.Run(ctx, db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}); err != nil {
		t.Fatal(err)
	}
	if !stream.Next(ctx) {
		t.Fatal(stream.Err())
	}
	if op := stream.Current.Lookup("operationType").StringValue(); op != "insert" {
		t.Errorf("the first event is %s", op)
	}
}

func TestStandaloneServer(t *testing.T) {
	f := fleettest.Start(t, 1, fleettest.Standalone)
	b := open(t, backend.Config{URI: f.Servers[0].URI()})
	if _, err := b.Run(within(t), "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return b.Kind() == backend.KindStandalone })
	if got := b.HostString(); got != f.Servers[0].Addr() {
		t.Errorf("HostString is %q, want %q", got, f.Servers[0].Addr())
	}
}

// TestAuthentication: our own connections authenticate by SCRAM with the connection string's user, and
// wrong credentials are an error at once, not after the selection timeout.
func TestAuthentication(t *testing.T) {
	f := fleettest.Start(t, 1, func(o *fleet.Options) { o.Args = append(o.Args, "--auth") })
	s := f.Servers[0]
	ctx := within(t)
	if _, err := s.Command(ctx, bson.D{{Key: "createUser", Value: "proxy"}, {Key: "pwd", Value: "s3cret&?"},
		{Key: "roles", Value: bson.A{"root"}}, {Key: "$db", Value: "admin"}}); err != nil {
		t.Skipf("%s does not let the first user be created from the loopback: %v", f.Program().Kind, err)
	}
	uri := func(password, extra string) string {
		u := url.URL{Scheme: "mongodb", User: url.UserPassword("proxy", password), Host: s.Addr(), Path: "/", RawQuery: "authSource=admin" + extra}
		return u.String()
	}
	insert := bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}
	for _, mechanism := range []string{"", "SCRAM-SHA-256", "SCRAM-SHA-1"} {
		extra := ""
		if mechanism != "" {
			extra = "&authMechanism=" + mechanism
		}
		b := open(t, backend.Config{URI: uri("s3cret&?", extra)})
		if _, err := b.Run(ctx, "d", insert); err != nil {
			t.Errorf("mechanism %q: %v", mechanism, err)
		}
	}
	anonymous := open(t, backend.Config{URI: "mongodb://" + s.Addr() + "/"})
	if _, err := anonymous.Run(ctx, "d", insert); err == nil {
		t.Error("the server took an insert without credentials, so this test shows nothing")
	}
	wrong := open(t, backend.Config{URI: uri("wrong", ""), SelectionTimeout: 30 * time.Second})
	began := time.Now()
	_, err := wrong.Run(ctx, "d", insert)
	if err == nil {
		t.Fatal("wrong credentials were accepted")
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("wrong credentials took %v to be refused: %v", d, err)
	}
}
