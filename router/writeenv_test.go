package router

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/internal/instructions"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

func TestMain(m *testing.M) {
	instructions.Main(counted)
	os.Exit(fleettest.Main(m))
}

// writeEnv is a router over backends with a table made by hand.
type writeEnv struct {
	t      *testing.T
	ctx    context.Context
	router *Router
	table  *partition.Table
	snap   *catalog.Snapshot
	db     string
	addr   string
	client *mongo.Client
	// direct are clients of the backends, by id.
	direct map[string]*mongo.Client
}

// newWriteEnv serves a router over backends with these ids and URIs, until the test ends.
func newWriteEnv(t *testing.T, uris map[string]string, change ...func(*backend.Config)) *writeEnv {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	e := &writeEnv{t: t, ctx: ctx, table: partition.NewTable(), db: fleettest.DB(t), direct: map[string]*mongo.Client{}}
	set := &backend.Set{}
	for id, uri := range uris {
		cfg := backend.Config{ID: id, URI: uri, HeartbeatInterval: time.Second}
		for _, f := range change {
			f(&cfg)
		}
		b, err := backend.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Add(b); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
	}
	e.snap = &catalog.Snapshot{Maps: map[string]*catalog.Map{}, Databases: map[string]*catalog.Database{e.db: {Name: e.db, Primary: "b0"}}}
	e.table.Apply(e.snap)
	e.router = New(Config{Backends: set, Table: e.table, CatalogBackend: "b0", Log: zerolog.Nop()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = e.router.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		stop, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		e.router.Shutdown(stop)
		<-served
	})
	e.addr = l.Addr().String()
	e.client = connect(t, "mongodb://"+l.Addr().String()+"/")
	return e
}

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// fleetEnv is a writeEnv over three servers.
func fleetEnv(t *testing.T) *writeEnv {
	t.Helper()
	uris := map[string]string{}
	servers := fleettest.Shared(t, 3)
	for i, s := range servers {
		uris["b"+itoa(i)] = s.URI()
	}
	e := newWriteEnv(t, uris)
	for id, uri := range uris {
		e.direct[id] = connect(t, uri)
	}
	t.Cleanup(func() {
		for _, c := range e.direct {
			_ = c.Database(e.db).Drop(context.Background())
		}
	})
	return e
}

// shard makes a map of n partitions, round robin over b0, b1, b2, and returns the collection as clients see it.
func (e *writeEnv) shard(name, key string, n int) *mongo.Collection {
	e.t.Helper()
	raw, _ := bson.Marshal(bson.D{{Key: key, Value: "hashed"}})
	p, err := shardkey.ParsePattern(raw)
	if err != nil {
		e.t.Fatal(err)
	}
	ns := e.db + "." + name
	m := &catalog.Map{NS: ns, V: 1, Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID()}
	for i, r := range shardkey.Even(n) {
		m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b" + itoa(i%3), Physical: catalog.PhysicalName("db", name, uint64(i+1), 0, i)})
	}
	next := *e.snap
	next.Maps = map[string]*catalog.Map{ns: m}
	for k, v := range e.snap.Maps {
		next.Maps[k] = v
	}
	e.snap = &next
	e.table.Apply(e.snap)
	return e.client.Database(e.db).Collection(name)
}

// all returns every document of a collection with the range it lies in, read from the backends themselves.
func (e *writeEnv) all(name string) []bson.Raw {
	e.t.Helper()
	var docs []bson.Raw
	c := e.table.View().Collection(e.db + "." + name)
	for _, part := range c.Parts {
		cur, err := e.direct[part.Backend].Database(e.db).Collection(part.Physical).Find(e.ctx, bson.D{})
		if err != nil {
			e.t.Fatal(err)
		}
		for cur.Next(e.ctx) {
			doc := append(bson.Raw(nil), cur.Current...)
			docs = append(docs, doc)
			if c.Key == nil {
				continue
			}
			if pos, err := c.Key.Position(doc); err != nil || !part.Range.Contains(pos) {
				e.t.Errorf("%v lies in %v, which does not hold it (%v)", doc, part.Range, err)
			}
		}
		if err := cur.Err(); err != nil {
			e.t.Fatal(err)
		}
	}
	return docs
}

// run runs a command through the router and returns its reply; err is a command error.
func (e *writeEnv) run(cmd bson.D) (bson.M, error) {
	var out bson.M
	raw, err := e.client.Database(e.db).RunCommand(e.ctx, cmd).Raw()
	if raw != nil {
		_ = bson.Unmarshal(raw, &out)
	}
	if errors.As(err, &mongo.WriteException{}) {
		err = nil // the reply has them
	}
	return out, err
}

// writeCodes returns the codes of a reply's writeErrors by index, and fails the test on a text with a physical name.
func (e *writeEnv) writeCodes(reply bson.M) map[int32]int32 {
	out := map[int32]int32{}
	errs, _ := reply["writeErrors"].(bson.A)
	for _, x := range errs {
		d := bson.M{}
		for _, el := range x.(bson.D) {
			d[el.Key] = el.Value
		}
		out[d["index"].(int32)] = d["code"].(int32)
		if text, _ := d["errmsg"].(string); strings.Contains(text, "@") {
			e.t.Errorf("a physical name in %q", text)
		}
	}
	return out
}

func codeOf(err error) wire.Code {
	if se, ok := err.(mongo.CommandError); ok {
		return wire.Code(se.Code)
	}
	return 0
}
