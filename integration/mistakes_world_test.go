package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

// mistakeDocs is how many documents shop.orders has in these tests, in mistakeParts partitions.
const (
	mistakeDocs  = 300
	mistakeParts = 6
)

// mistakeSettings have proxies sweep all the time. Their leases outlast a busy machine.
var mistakeSettings = []string{"--reshape-sweep-interval", "300ms", "--reshape-lease", "5s", "--reshape-lease-renew", "500ms", "--reshape-lease-margin", "500ms",
	"--reshape-backoff-min", "100ms"}

// mistakeWorld is a fleet with a sharded and an unsharded collection, whose documents are counted on
// the backends themselves.
type mistakeWorld struct {
	t       *testing.T
	servers []*fleet.Server
	direct  []*mongo.Client
	// filled are the namespaces that have mistakeDocs documents each.
	filled []string
}

func (w *mistakeWorld) collections(client *mongo.Client) (all []*mongo.Collection) {
	for _, ns := range w.filled {
		db, coll := catalog.SplitNS(ns)
		all = append(all, client.Database(db).Collection(coll))
	}
	return all
}

func newMistakeWorld(t *testing.T, n int, o ...fleettest.Option) *mistakeWorld {
	t.Helper()
	w := &mistakeWorld{t: t, servers: fleettest.Start(t, n, o...).Servers}
	for _, s := range w.servers {
		w.direct = append(w.direct, connect(t, "mongodb://"+s.Addr()+"/?directConnection=true"))
	}
	return w
}

// uris are the connection strings of servers, by their numbers.
func (w *mistakeWorld) uris(numbers ...int) []string {
	var all []string
	for _, n := range numbers {
		all = append(all, w.servers[n-1].URI())
	}
	return all
}

// fill makes shop.orders, and if asked plain.notes without a shard key, through a proxy.
func (w *mistakeWorld) fill(client *mongo.Client, unsharded bool) {
	w.t.Helper()
	w.filled = []string{"shop.orders"}
	if unsharded {
		w.filled = append(w.filled, "plain.notes")
	}
	command(w.t, client, "admin", shardCmd("shop.orders", "k", bson.E{Key: "numInitialChunks", Value: mistakeParts}))
	var docs []any
	for i := range mistakeDocs {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	for _, c := range w.collections(client) {
		eventually(w.t, time.Minute, "the documents of "+c.Name(), func(ctx context.Context) bool {
			_, err := c.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
			return err == nil || mongo.IsDuplicateKeyError(err) // whose first try was done
		})
	}
	w.whole("when they were inserted")
}

// counted is how many documents the collections of a database have on the servers themselves, whatever
// their physical names.
func (w *mistakeWorld) counted(db, coll string) (n int64) {
	w.t.Helper()
	for _, c := range w.direct {
		names, err := c.Database(db).ListCollectionNames(w.t.Context(), bson.D{})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, name := range names {
			if catalog.LogicalName(name) != coll {
				continue
			}
			m, err := c.Database(db).Collection(name).CountDocuments(w.t.Context(), bson.D{})
			if err != nil {
				w.t.Fatal(err)
			}
			n += m
		}
	}
	return n
}

// whole fails the test unless every document is there, once.
func (w *mistakeWorld) whole(when string) {
	w.t.Helper()
	for _, ns := range w.filled {
		if n := w.counted(catalog.SplitNS(ns)); n != mistakeDocs {
			w.t.Fatalf("%s: %d documents of %s on the backends, want %d", when, n, ns, mistakeDocs)
		}
	}
}

// served fails the test unless a client sees every document and can write. A busy machine ends a lease
// now and then, which is an error that clients repeat.
func (w *mistakeWorld) served(client *mongo.Client) {
	w.t.Helper()
	for _, c := range w.collections(client) {
		eventually(w.t, time.Minute, "an answer about "+c.Name(), func(ctx context.Context) bool {
			n, err := c.CountDocuments(ctx, bson.D{})
			if err == nil && n != mistakeDocs {
				w.t.Errorf("%s: %d documents", c.Name(), n)
			}
			return err == nil
		})
		eventually(w.t, time.Minute, "a write to "+c.Name(), func(ctx context.Context) bool {
			_, err := c.UpdateOne(ctx, bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}})
			return err == nil
		})
	}
}

// refused starts a proxy that must end by itself, and returns the end of its log.
func (w *mistakeWorld) refused(o running.Options, sentences ...string) {
	w.t.Helper()
	o.LogFile = filepath.Join(w.t.TempDir(), "refused.log")
	o.Args = append(o.Args, mistakeSettings...)
	p, err := running.Start(w.t.Context(), o)
	if err == nil {
		w.t.Errorf("a proxy with %v %v serves", o.IDs, o.Args)
		w.t.Cleanup(func() { _ = p.Close() })
		return
	}
	for _, s := range sentences {
		if !strings.Contains(err.Error(), s) {
			w.t.Errorf("it does not say %q: %v", s, err)
		}
	}
}

// sweeps waits until a running proxy must have swept several times.
func sweeps(t *testing.T) {
	select {
	case <-time.After(3 * time.Second):
	case <-t.Context().Done():
	}
}

// backendsIn are the ids that the catalog has.
func (w *mistakeWorld) backendsIn() string {
	w.t.Helper()
	cur, err := w.direct[0].Database("shardway").Collection("backends").Find(context.Background(), bson.D{})
	var rows []struct {
		ID string `bson:"_id"`
	}
	if err == nil {
		err = cur.All(context.Background(), &rows)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return fmt.Sprint(ids)
}
