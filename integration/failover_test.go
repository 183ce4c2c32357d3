package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/replicaset"
	"github.com/shardway/shardway/integration/running"
)

const (
	failoverElection = 12 * time.Second // what a set with default settings takes
	failoverBefore   = 2 * time.Second  // of load, before the primary dies
	failoverAfter    = 3 * time.Second  // of load, after the election
	failoverClients  = 6
	failoverDocs     = 16   // that are counted up
	failoverScanned  = 1000 // that the cursor reads
)

// TestFailover: the primary of a backend of three members is killed under load, and an election takes over 12 s. Drivers with default settings see latency
// and no error, no acknowledged write is lost or applied twice, and the cursor that is open on a secondary goes on. Proxies have their default settings, too.
func TestFailover(t *testing.T) {
	for name, setFirst := range map[string]bool{"of an ordinary backend": false, "of the catalog's backend": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFailoverWorld(t, setFirst, replicaset.Options{Election: failoverElection})
			w.run(t, func() { w.set.Primary().Kill() }, failoverElection+failoverAfter)
		})
	}
}

// TestStepDown: the same for a planned step-down.
func TestStepDown(t *testing.T) {
	w := newFailoverWorld(t, false, replicaset.Options{Handover: time.Second})
	w.run(t, func() { w.set.Primary().StepDown() }, failoverAfter)
}

// failoverWorld is a proxy in front of a set of three members and an ordinary backend.
type failoverWorld struct {
	set    *replicaset.Set
	proxy  *running.Proxy
	setID  string                   // the set as a backend
	direct map[string]*mongo.Client // of the servers, by backend
	// acknowledged counts what clients were told to be done: increments by document, and inserted documents.
	acknowledged [2][failoverDocs]atomic.Int64
	inserted     atomic.Int64
	longest      atomic.Int64 // wait of an operation
	mu           sync.Mutex
	errs         []string
}

func newFailoverWorld(t *testing.T, setFirst bool, o replicaset.Options) *failoverWorld {
	servers := fleettest.Start(t, 2).Servers
	w := &failoverWorld{setID: "b2", direct: map[string]*mongo.Client{}}
	o.Name, o.Target = "three", servers[0].Addr
	set, err := replicaset.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	w.set = set
	backends := []string{servers[1].URI(), set.URI()}
	if setFirst {
		backends[0], backends[1], w.setID = backends[1], backends[0], "b1"
	}
	w.direct["b1"], w.direct["b2"] = connect(t, servers[1].URI()), connect(t, servers[0].URI())
	if setFirst {
		w.direct["b1"], w.direct["b2"] = w.direct["b2"], w.direct["b1"]
	}
	if w.proxy, err = running.Start(t.Context(), running.Options{Backends: backends, LogFile: filepath.Join(t.TempDir(), "proxy.log")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log := w.proxy.Log()
			t.Log(log[max(0, len(log)-6000):])
		}
		_ = w.proxy.Close()
	})
	return w
}

// client is a driver with default settings.
func (w *failoverWorld) client(t *testing.T) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(w.proxy.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// run has clients work, fails the primary over in the middle, and checks what they were told.
func (w *failoverWorld) run(t *testing.T, fail func(), after time.Duration) {
	c := w.client(t)
	db := c.Database("failover")
	command(t, c, "admin", bson.D{{Key: "enableSharding", Value: "failover"}, {Key: "primaryShard", Value: w.setID}})
	command(t, c, "admin", bson.D{{Key: "shardCollection", Value: "failover.sharded"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}, {Key: "numInitialChunks", Value: 4}})
	for _, name := range []string{"plain", "sharded"} {
		var docs []any
		for i := range failoverDocs {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "name", Value: fmt.Sprint("d", i)}, {Key: "n", Value: 0}})
		}
		if _, err := db.Collection(name).InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
	var docs []any
	for i := range failoverScanned {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	if _, err := db.Collection("scanned").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	for i := range failoverClients {
		mine := w.client(t).Database("failover")
		work.Go(func() { w.work(ctx, mine, i) })
	}
	scanned := make(chan error, 1)
	ended := make(chan struct{})
	cursor := w.openOnSecondary(t, db)
	go func() { scanned <- w.scan(t.Context(), cursor, ended) }()

	time.Sleep(failoverBefore)
	before := w.set.Primary()
	fail()
	time.Sleep(after)
	if now := w.set.Primary(); now == nil || now == before {
		t.Error("nobody else was elected")
	}
	close(ended)
	stop()
	work.Wait()
	if err := <-scanned; err != nil {
		t.Errorf("the cursor on a secondary: %v", err)
	}
	for _, e := range w.errs {
		t.Error(e)
	}
	w.check(t)
	t.Logf("%d documents inserted; the longest wait was %s", w.inserted.Load(), time.Duration(w.longest.Load()).Round(time.Millisecond))
}

// openOnSecondary opens a cursor on a secondary of the set.
func (w *failoverWorld) openOnSecondary(t *testing.T, db *mongo.Database) *mongo.Cursor {
	t.Helper()
	coll := db.Collection("scanned", options.Collection().SetReadPreference(readpref.Secondary()))
	cursor, err := coll.Find(t.Context(), bson.D{}, options.Find().SetBatchSize(2))
	if err != nil {
		t.Fatal(err)
	}
	return cursor
}

// scan reads a cursor, slowly until ended is closed, to its end.
func (w *failoverWorld) scan(ctx context.Context, cursor *mongo.Cursor, ended <-chan struct{}) error {
	defer cursor.Close(ctx)
	n := 0
	for cursor.Next(ctx) {
		n++
		select {
		case <-ended:
		case <-time.After(50 * time.Millisecond):
		}
	}
	if n != failoverScanned && cursor.Err() == nil {
		return fmt.Errorf("%d of %d documents", n, failoverScanned)
	}
	return cursor.Err()
}

// work writes and reads, one thing after the other, until ctx ends. What is begun is ended.
func (w *failoverWorld) work(ctx context.Context, db *mongo.Database, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		err := w.step(context.WithoutCancel(ctx), db, worker, i)
		for took := int64(time.Since(began)); ; {
			if old := w.longest.Load(); took <= old || w.longest.CompareAndSwap(old, took) {
				break
			}
		}
		if err != nil {
			w.mu.Lock()
			w.errs = append(w.errs, fmt.Sprintf("worker %d, step %d, after %s: %v", worker, i%14, time.Since(began).Round(time.Millisecond), err))
			w.mu.Unlock()
		}
	}
}

func (w *failoverWorld) step(ctx context.Context, db *mongo.Database, worker, i int) error {
	which := i % 2
	coll := db.Collection([]string{"plain", "sharded"}[which])
	doc := (i/14 + worker*5) % failoverDocs
	byKey, inc := bson.D{{Key: "_id", Value: doc}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	byName := bson.D{{Key: "name", Value: fmt.Sprint("d", doc)}}
	counted := func(err error) error {
		if err == nil {
			w.acknowledged[which][doc].Add(1)
		}
		return err
	}
	switch i % 14 / 2 {
	case 0:
		_, err := coll.UpdateOne(ctx, byKey, inc)
		return counted(err)
	case 1:
		return counted(coll.FindOneAndUpdate(ctx, byKey, inc).Err())
	case 2:
		_, err := coll.UpdateOne(ctx, byName, inc)
		return counted(err)
	case 3:
		return counted(coll.FindOneAndUpdate(ctx, byName, inc).Err())
	case 4:
		many := []any{bson.D{{Key: "w", Value: worker}, {Key: "i", Value: i}}, bson.D{{Key: "w", Value: worker}, {Key: "i", Value: i}}, bson.D{{Key: "w", Value: worker}, {Key: "i", Value: i}}}
		res, err := db.Collection("inserted").InsertMany(ctx, many, options.InsertMany().SetOrdered(false))
		if err == nil {
			w.inserted.Add(int64(len(res.InsertedIDs)))
		}
		return err
	case 5:
		return coll.FindOne(ctx, byKey).Err()
	}
	cursor, err := coll.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var all []bson.Raw
	if err := cursor.All(ctx, &all); err == nil && len(all) != failoverDocs {
		return fmt.Errorf("found %d documents", len(all))
	} else if err != nil {
		return err
	}
	return nil
}

// check compares what the servers have with what clients were told.
func (w *failoverWorld) check(t *testing.T) {
	t.Helper()
	c := w.client(t).Database("failover")
	for which, name := range []string{"plain", "sharded"} {
		var docs []struct {
			ID int   `bson:"_id"`
			N  int64 `bson:"n"`
		}
		w.everything(t, name, &docs)
		if len(docs) != failoverDocs {
			t.Errorf("%s: %d documents", name, len(docs))
		}
		for _, d := range docs {
			if want := w.acknowledged[which][d.ID].Load(); d.N != want {
				t.Errorf("%s: document %d was counted up %d times, acknowledged were %d", name, d.ID, d.N, want)
			}
		}
	}
	if n, err := c.Collection("inserted").CountDocuments(t.Context(), bson.D{}); err != nil || n != w.inserted.Load() {
		t.Errorf("%d documents inserted (%v), acknowledged were %d", n, err, w.inserted.Load())
	}
}

// everything reads a collection's partitions straight from the servers.
func (w *failoverWorld) everything(t *testing.T, name string, into any) {
	t.Helper()
	var all []bson.Raw
	for _, direct := range w.direct {
		db := direct.Database("failover")
		names, err := db.ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^" + name + "(@|$)"}}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, physical := range names {
			cursor, err := db.Collection(physical).Find(t.Context(), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			var docs []bson.Raw
			if err := cursor.All(t.Context(), &docs); err != nil {
				t.Fatal(err)
			}
			all = append(all, docs...)
		}
	}
	raw, err := bson.Marshal(bson.D{{Key: "all", Value: all}})
	if err != nil {
		t.Fatal(err)
	}
	if err := bson.Raw(raw).Lookup("all").Unmarshal(into); err != nil {
		t.Fatal(err)
	}
}
