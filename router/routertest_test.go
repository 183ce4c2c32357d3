package router_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router"
	"github.com/shardway/shardway/splitter"
)

// proxy is a router in this process over real servers.
type proxy struct {
	client  *mongo.Client // to the proxy
	direct  *mongo.Client // to the first backend, past the proxy
	addr    string
	fleet   *fleet.Fleet
	catalog *catalog.Store
	split   *splitter.Splitter
}

// startProxy runs a router over n fresh servers, named b1, b2, …; the catalog is on b1. Spare servers run beside them.
func startProxy(t *testing.T, n int, spare ...int) *proxy {
	t.Helper()
	all := n
	for _, more := range spare {
		all += more
	}
	fl := fleettest.Start(t, all)
	set := &backend.Set{}
	ids := []string{"b1", "b2", "b3", "b4"}
	open := func(_ context.Context, id, uri string) (*backend.Backend, error) {
		return backend.Open(context.Background(), backend.Config{ID: id, URI: uri, Log: zerolog.Nop(), SelectionTimeout: 2 * time.Second})
	}
	for i, s := range fl.Servers[:n] {
		b, err := backend.Open(t.Context(), backend.Config{ID: ids[i], URI: s.URI(), Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Add(b); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
	}
	store, err := catalog.Open(t.Context(), set.Get("b1").Client(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	table := partition.NewTable()
	store.OnChange(table.Apply)
	log := zerolog.Nop()
	if testing.Verbose() {
		log = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel)
	}
	const lease, renew, margin = 2 * time.Second, 200 * time.Millisecond, 300 * time.Millisecond
	split := splitter.New(splitter.Config{Server: "test", Backends: set, Catalog: store, Table: table, Log: log, MonitorEvery: -1,
		Lease: lease, Renew: renew, Margin: margin})
	mem := member.New(member.Config{Proxy: "test", Backends: set, Table: table, Log: log, Refresh: store.Refresh, Burn: split.Burn})
	keep, stopKeep := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	roster := &router.Roster{Backends: set, Catalog: store, Table: table, Member: mem, Open: open}
	for _, b := range set.All() {
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := member.Enroll(t.Context(), store, b); err != nil {
			t.Fatal(err)
		}
		roster.Keep(keep, &kept, b)
		if err := mem.WaitJoined(t.Context(), b.ID()); err != nil {
			t.Fatal(err)
		}
	}
	kept.Go(func() { store.Run(keep) })
	kept.Go(func() { split.Run(keep) })
	r := router.New(router.Config{Backends: set, Catalog: store, Table: table, Member: mem, CatalogBackend: "b1", Reshaper: split, Log: log.Level(zerolog.WarnLevel),
		AddBackend: roster.Adder(keep, &kept), RemoveBackend: roster.Remove, RetryWindow: 2 * time.Second})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = r.Serve(context.Background(), l) }()
	p := &proxy{addr: l.Addr().String(), fleet: fl, catalog: store, split: split}
	p.client = connect(t, "mongodb://"+p.addr+"/")
	p.direct = connect(t, fl.Servers[0].URI())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = p.client.Disconnect(ctx)
		_ = p.direct.Disconnect(ctx)
		r.Shutdown(ctx)
		<-served
		split.Close()
		stopKeep()
		kept.Wait()
		for _, b := range set.All() {
			_ = b.Close(ctx)
		}
	})
	return p
}

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
