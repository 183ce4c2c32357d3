package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

// shutDown ends a server in order, so that its files can be copied.
func shutDown(t *testing.T, s *fleet.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func restart(t *testing.T, s *fleet.Server) {
	t.Helper()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// filesOf copies the files of a server, which is stopped for it.
func filesOf(t *testing.T, s *fleet.Server) string {
	t.Helper()
	shutDown(t, s)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(s.Dir(), "data"))); err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	return dir
}

// swapFiles has a server start on other files, none if dir is empty. What it had is returned.
func swapFiles(t *testing.T, s *fleet.Server, dir string) (had string) {
	t.Helper()
	shutDown(t, s)
	data := filepath.Join(s.Dir(), "data")
	had = filepath.Join(t.TempDir(), "had")
	if err := os.Rename(data, had); err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.CopyFS(data, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	return had
}

// logged waits until a proxy has logged a text.
func logged(t *testing.T, p *running.Proxy, text string) {
	t.Helper()
	eventually(t, 30*time.Second, "a log line with "+text, func(context.Context) bool { return strings.Contains(p.Log(), text) })
}

// refusesReads looks that a proxy does not pass off what is left for the whole.
func refusesReads(t *testing.T, client *mongo.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if n, err := client.Database("shop").Collection("orders").CountDocuments(ctx, bson.D{}); err == nil {
		t.Errorf("a proxy that runs counts %d documents", n)
	}
}

// Files that are not what the backend had are noticed, by proxies that run and by one that starts; nothing is served of them and nothing is dropped. With the right
// files everything is there again.
func TestWrongFilesOfABackend(t *testing.T) {
	long(t)
	for what, c := range map[string]struct {
		files func(t *testing.T, w *mistakeWorld, p *running.Proxy) (dir string)
		says  string
	}{
		"an older copy": {func(t *testing.T, w *mistakeWorld, p *running.Proxy) string {
			dir := filesOf(t, w.servers[1])
			// What is acknowledged since is not in the copy. A proxy that starts counts, as each does every minute.
			running.Test(t, w.servers[:backends], mistakeSettings...)
			w.awaitPulse(2)
			return dir
		}, "restored from a copy that is older"},
		"another fleet's": {func(t *testing.T, w *mistakeWorld, p *running.Proxy) string {
			running.Test(t, w.servers[backends:], mistakeSettings...)
			return filesOf(t, w.servers[backends])
		}, "belongs to the fleet with the clusterId"},
		"none": {func(*testing.T, *mistakeWorld, *running.Proxy) string { return "" }, "is missing"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newMistakeWorld(t, backends+1, fleettest.Durable)
			p := running.Test(t, w.servers[:backends], mistakeSettings...)
			client := connect(t, p.URI())
			w.fill(client, true)
			w.awaitPulse(1)
			dir := c.files(t, w, p)
			w.whole("before")
			had := swapFiles(t, w.servers[1], dir)
			w.refused(running.Options{Backends: w.uris(1, 2, 3)}, c.says, "'b2'")
			logged(t, p, c.says)
			refusesReads(t, client)
			sweeps(t)
			swapFiles(t, w.servers[1], had)
			w.whole("with the right files again")
			w.served(client)
			w.served(connect(t, running.Test(t, w.servers[:backends], mistakeSettings...).URI()))
		})
	}
}

// awaitPulse waits until the catalog remembers that b2 has counted that far.
func (w *mistakeWorld) awaitPulse(n int64) {
	w.t.Helper()
	eventually(w.t, 30*time.Second, "the pulse of b2 in the catalog", func(ctx context.Context) bool {
		var d struct{ N int64 }
		err := w.direct[0].Database("shardway").Collection("pulses").FindOne(ctx, bson.D{{Key: "_id", Value: "b2"}}).Decode(&d)
		return err == nil && d.N >= n
	})
}

// dump reads all of a database.
func dump(t *testing.T, db *mongo.Database) map[string][]any {
	t.Helper()
	all := map[string][]any{}
	names, err := db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		cur, err := db.Collection(name).Find(t.Context(), bson.D{})
		var docs []bson.D
		if err == nil {
			err = cur.All(t.Context(), &docs)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[name] = []any{}
		for _, d := range docs {
			all[name] = append(all[name], d)
		}
	}
	return all
}

// undump makes a database what a dump of it is.
func undump(t *testing.T, db *mongo.Database, all map[string][]any) {
	t.Helper()
	names, err := db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if _, err := db.Collection(name).DeleteMany(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
		if len(all[name]) == 0 {
			continue
		}
		if _, err := db.Collection(name).InsertMany(t.Context(), all[name]); err != nil {
			t.Fatal(err)
		}
	}
}

// A catalog that was restored from before a change of a map names partitions that are no more, and does not name those that have the documents. No proxy starts with
// it, one that runs drops nothing, and with the newest catalog everything is there.
func TestOlderCatalog(t *testing.T) {
	w := newMistakeWorld(t, backends)
	p := running.Test(t, w.servers, mistakeSettings...)
	client := connect(t, p.URI())
	w.fill(client, true)
	cat := w.direct[0].Database("shardway")
	older := dump(t, cat)
	all, err := chunks(t.Context(), w.direct[0], "shop.orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all[:3] {
		command(t, client, "admin", bson.D{{Key: "moveChunk", Value: "shop.orders"}, {Key: "bounds", Value: c.bounds()}, {Key: "to", Value: map[string]string{"b1": "b2", "b2": "b3", "b3": "b1"}[c.Shard]}})
	}
	noLeftovers(t, 60*time.Second, w.servers)
	newest := dump(t, cat)
	undump(t, cat, older)
	w.refused(running.Options{Backends: w.uris(1, 2, 3)}, "the catalog is older than backend")
	sweeps(t)
	w.whole("with the older catalog")
	for _, c := range all[:3] {
		err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "split", Value: "shop.orders"}, {Key: "bounds", Value: c.bounds()}}).Err()
		if err == nil {
			t.Error("a partition was split with the older catalog")
		}
	}
	w.whole("after the refused changes")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	undump(t, cat, newest)
	again := running.Test(t, w.servers, mistakeSettings...)
	w.served(connect(t, again.URI()))
	w.whole("with the newest catalog")
}

// Two fleets do not share a backend: the second one does not start, and the first is not touched.
func TestTwoFleetsShareABackend(t *testing.T) {
	w := newMistakeWorld(t, backends+1)
	client := connect(t, running.Test(t, w.servers[:backends], mistakeSettings...).URI())
	w.fill(client, true)
	w.refused(running.Options{Backends: w.uris(4, 2), IDs: []string{"c1", "c2"}}, "belongs to the fleet with the clusterId", "'c2'")
	sweeps(t)
	w.whole("after the start of the second fleet")
	w.served(client)
	// The second fleet's own backend alone is well.
	second := running.Test(t, w.servers[backends:], mistakeSettings...)
	err := connect(t, second.URI()).Database("admin").RunCommand(t.Context(), bson.D{{Key: "addShard", Value: w.servers[1].URI()}}).Err()
	if err == nil || !strings.Contains(err.Error(), "belongs to the fleet") {
		t.Errorf("addShard of the first fleet's backend: %v", err)
	}
	sweeps(t)
	w.whole("after addShard")
	w.served(client)
}

// A collection that somebody made straight on a backend, in a database that lives elsewhere, stops no start and is listed.
func TestStrayCollectionStopsNoStart(t *testing.T) {
	w := newMistakeWorld(t, backends)
	p := running.Test(t, w.servers, mistakeSettings...)
	client := connect(t, p.URI())
	w.fill(client, true)
	d := struct {
		Primary string
	}{}
	if err := client.Database("config").Collection("databases").FindOne(t.Context(), bson.D{{Key: "_id", Value: "plain"}}).Decode(&d); err != nil {
		t.Fatal(err)
	}
	other := w.direct[0]
	if d.Primary == "b1" {
		other = w.direct[2]
	}
	for _, name := range []string{"stray", "stray@fffff.0.0"} {
		if _, err := other.Database("plain").Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.served(client)
	sweeps(t)
	if n := w.counted("plain", "stray"); n != 2 {
		t.Errorf("%d of 2 strays are left", n)
	}
	reply := command(t, client, "admin", bson.D{{Key: "listUnmatchedCollections", Value: 1}})
	if n, _ := reply.Lookup("total").AsInt64OK(); n != 2 || !strings.Contains(reply.String(), "stray@fffff.0.0") {
		t.Errorf("unmatched are %v", reply)
	}
	logged(t, p, "collections of databases that live on other backends are left alone")
	logged(t, p, "stray@fffff.0.0")
}
