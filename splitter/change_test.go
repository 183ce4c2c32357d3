package splitter_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

// relay is a way to a server on which answers can get lost.
type relay struct {
	l    net.Listener
	to   string
	mute atomic.Bool
	// muteAt, if set, is what a request holds after which answers get lost.
	muteAt atomic.Pointer[[]byte]
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, to: to}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

func (r *relay) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	s, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	go func() {
		defer func() { _ = s.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if at := r.muteAt.Load(); at != nil && bytes.Contains(buf[:n], *at) {
				r.mute.Store(true)
			}
			if _, err := s.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Read(buf)
		if err != nil {
			return
		}
		if r.mute.Load() {
			continue
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// world is one backend and a Splitter whose way to the catalog is a relay.
type world struct {
	relay *relay
	b     *backend.Backend
	store *catalog.Store
	table *partition.Table
	split *splitter.Splitter
}

func newWorld(t *testing.T, change func(*splitter.Config)) *world {
	t.Helper()
	server := fleettest.Start(t, 1).Servers[0]
	return newWorldBehind(t, server, server.URI(), change)
}

// newWorldBehind is newWorld whose backend is reached at uri; the catalog is on the server itself.
func newWorldBehind(t *testing.T, server *fleet.Server, uri string, change func(*splitter.Config)) *world {
	t.Helper()
	w := &world{relay: newRelay(t, server.Addr()), table: partition.NewTable()}
	var err error
	if w.b, err = backend.Open(t.Context(), backend.Config{ID: "b1", URI: uri, Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.b.Close(context.Background()) })
	set := &backend.Set{}
	if err := set.Add(w.b); err != nil {
		t.Fatal(err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + w.relay.l.Addr().String() + "/?directConnection=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	if w.store, err = catalog.Open(t.Context(), client, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	w.store.OnChange(w.table.Apply)
	if err := member.Enroll(t.Context(), w.store, w.b); err != nil {
		t.Fatal(err)
	}
	log := zerolog.Nop()
	if testing.Verbose() {
		log = zerolog.New(zerolog.NewTestWriter(t))
	}
	cfg := splitter.Config{Server: "test", Backends: set, Catalog: w.store, Table: w.table, Log: log, MonitorEvery: -1}
	if change != nil {
		change(&cfg)
	}
	w.split = splitter.New(cfg)
	t.Cleanup(w.split.Close)
	m := member.New(member.Config{Proxy: "test", Backends: set, Table: w.table, Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	kept.Go(func() { m.Keep(ctx, w.b) })
	t.Cleanup(func() { cancel(); kept.Wait() })
	if err := m.WaitJoined(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	return w
}

// shard shards db.c by a field.
func (w *world) shard(t *testing.T, field string, parts int) {
	t.Helper()
	key, err := shardkey.ParsePattern(bson.Raw(mustMarshal(t, bson.D{{Key: field, Value: "hashed"}})))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.split.ShardCollection(t.Context(), "db.c", key, parts); err != nil {
		t.Fatal(err)
	}
}

// A change of a map whose insert was not answered in time is told as what it was, and finished: here, done.
func TestDropWithoutAnAnswerOfTheCatalog(t *testing.T) {
	w := newWorld(t, nil)
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	db := w.b.Client().Database("db")
	if _, err := db.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	insert := []byte("\x02insert\x00\x05\x00\x00\x00maps\x00")
	w.relay.muteAt.Store(&insert)
	dropped := make(chan error, 1)
	go func() { dropped <- w.split.Drop(ctx, "db.c") }()
	<-ctx.Done()
	w.relay.muteAt.Store(nil)
	if !w.relay.mute.Swap(false) {
		t.Fatal("no map was inserted")
	}
	err := <-dropped
	if m := w.store.Snapshot().Maps["db.c"]; m == nil || !m.Dropped || m.Burnt {
		t.Fatalf("Drop: %v; the newest map is %+v", err, m)
	}
	if err != nil {
		t.Errorf("the collection was dropped, and Drop says %v", err)
	}
	waits.Until(t, "nothing of the collection is left on the backend", func() bool {
		if records, err := w.store.Reshapes(t.Context()); err != nil || len(records) > 0 {
			return false // on the stand-in a list makes anew what is dropped beside it (docs/test-server.md)
		}
		names, err := db.ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: "c"}})
		return err == nil && len(names) == 0
	})
}
