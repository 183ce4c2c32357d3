package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// ddlWorld is a proxy over three servers, b1 to b3, with a direct client to each.
type ddlWorld struct {
	*proxy
	t      *testing.T
	db     string
	ids    []string
	direct map[string]*mongo.Client
}

func newDDLWorld(t *testing.T) *ddlWorld {
	t.Helper()
	w := &ddlWorld{proxy: startProxy(t, 3), t: t, db: "d", ids: []string{"b1", "b2", "b3"}, direct: map[string]*mongo.Client{}}
	for i, s := range w.fleet.Servers {
		c := connect(t, s.URI())
		t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
		w.direct[w.ids[i]] = c
	}
	return w
}

func (w *ddlWorld) on(id string) *mongo.Database { return w.direct[id].Database(w.db) }

func (w *ddlWorld) ns(coll string) string { return w.db + "." + coll }

// shard makes coll a sharded collection of four partitions, on b1, b2, b3 and b1 again, and returns its map.
func (w *ddlWorld) shard(coll, field string) *catalog.Map {
	w.t.Helper()
	ctx := context.Background()
	key, err := bson.Marshal(bson.D{{Key: field, Value: "hashed"}})
	if err != nil {
		w.t.Fatal(err)
	}
	pattern, err := shardkey.ParsePattern(key)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.catalog.CreateDatabase(ctx, w.db, "b2"); err != nil {
		w.t.Fatal(err)
	}
	m := &catalog.Map{NS: w.ns(coll), V: 1, Key: &pattern, Hash: shardkey.HashName, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID()}
	if old := w.catalog.Snapshot().Map(m.NS); old != nil {
		m.V = old.V + 1
	}
	number, err := w.catalog.NextNumber(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	const quarter = 1 << 62
	for i, id := range []string{"b1", "b2", "b3", "b1"} {
		p := catalog.Partition{Backend: id, Physical: catalog.PhysicalName("db", coll, number, 1, i)}
		p.Range.Lo = shardkey.Position(uint64(i) * quarter)
		if i < 3 {
			p.Range.Hi = shardkey.Position(uint64(i+1) * quarter)
		}
		m.Partitions = append(m.Partitions, p)
	}
	if err := w.catalog.InsertMap(ctx, m); err != nil { // first: the proxy's sweep takes collections that nothing names
		w.t.Fatal(err)
	}
	for _, p := range m.Partitions {
		if err := w.on(p.Backend).CreateCollection(ctx, p.Physical); err != nil {
			w.t.Fatal(err)
		}
	}
	return m
}

// fill puts n documents into each partition, directly.
func (w *ddlWorld) fill(m *catalog.Map, n int) {
	w.t.Helper()
	for i, p := range m.Partitions {
		docs := make([]any, n)
		for j := range docs {
			docs[j] = bson.D{{Key: "_id", Value: i*n + j}, {Key: "v", Value: strings.Repeat("x", 100)}}
		}
		if _, err := w.on(p.Backend).Collection(p.Physical).InsertMany(context.Background(), docs); err != nil {
			w.t.Fatal(err)
		}
	}
}

// run runs a command through the proxy.
func (w *ddlWorld) run(cmd bson.D) (bson.Raw, error) { return w.runOn(w.db, cmd) }

func (w *ddlWorld) runOn(db string, cmd bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return w.client.Database(db).RunCommand(ctx, cmd).Raw()
}

func (w *ddlWorld) must(cmd bson.D) bson.Raw {
	w.t.Helper()
	reply, err := w.run(cmd)
	if err != nil {
		w.t.Fatalf("%v: %v", cmd, err)
	}
	if showsPhysical(reply) {
		w.t.Errorf("%v: the reply shows a physical name: %v", cmd, reply)
	}
	return reply
}

// fails runs a command that must fail with code and not show physical names.
func (w *ddlWorld) fails(cmd bson.D, code wire.Code) {
	w.t.Helper()
	_, err := w.run(cmd)
	w.hasCode(cmd, err, code)
}

func (w *ddlWorld) hasCode(cmd any, err error, code wire.Code) {
	w.t.Helper()
	var ce mongo.CommandError
	if !errors.As(err, &ce) || ce.Code != int32(code) {
		w.t.Errorf("%v: got %v, want code %d", cmd, err, code)
		return
	}
	if showsPhysical(ce.Raw) && !strings.Contains(fmt.Sprint(cmd), "@") {
		w.t.Errorf("%v: the error shows a physical name: %v", cmd, ce.Raw)
	}
}

// showsPhysical reports whether a physical name is anywhere in a reply.
func showsPhysical(reply bson.Raw) bool {
	text := reply.String()
	return catalog.HidePhysicalNames(text) != text
}

// collections lists the database through the driver's helper, sorted.
// gone waits until a backend has no collection that matches: what a map names no more is dropped once nobody uses it. It lists nothing while
// a change may still drop: on the stand-in a list makes anew what is dropped beside it (docs/test-server.md).
func (w *ddlWorld) gone(id string, filter bson.D) {
	w.t.Helper()
	w.settled(w.t)
	waits.Until(w.t, "backend "+id+" has no collection that matches", func() bool {
		names, err := w.on(id).ListCollectionNames(context.Background(), filter)
		return err == nil && len(names) == 0
	})
}

func (w *ddlWorld) collections(filter bson.D) []string {
	w.t.Helper()
	names, err := w.client.Database(w.db).ListCollectionNames(context.Background(), filter)
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// indexNames lists a partition's indexes, directly.
func (w *ddlWorld) indexNames(p catalog.Partition) []string {
	w.t.Helper()
	specs, err := w.on(p.Backend).Collection(p.Physical).Indexes().ListSpecifications(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}
