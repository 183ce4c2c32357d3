package integration

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend/commands"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/rules"
	"github.com/shardway/shardway/integration/running"
)

// clientsComment marks the commands of this test's client, so that a command of the proxy's own is not taken for one.
const clientsComment = "sent by the client"

// recorder compares what passes with the table of commands.
type recorder struct {
	rows []commands.Row // all of them
	own  []commands.Row // all but clients'

	mu       sync.Mutex
	seen     map[string]int
	unlisted map[string]int
}

func newRecorder() *recorder {
	r := &recorder{rows: commands.Rows(), seen: map[string]int{}, unlisted: map[string]int{}}
	for _, row := range r.rows {
		if row.By != commands.Client {
			r.own = append(r.own, row)
		}
	}
	return r
}

func (r *recorder) show(command bson.Raw) {
	rows := r.own
	if comment, _ := command.Lookup("comment").StringValueOK(); comment == clientsComment {
		rows = r.rows
	} else if _, ok := command.Lookup("explain").DocumentOK(); ok { // the comment is inside
		rows = r.rows
	}
	row, why := commands.Find(rows, command)
	r.mu.Lock()
	defer r.mu.Unlock()
	if row != nil {
		r.seen[row.String()]++
		return
	}
	r.unlisted[fmt.Sprintf("%s\n\t%s", commands.Shape(command), strings.Join(why, "\n\t"))]++
}

// relayShowing starts a relay in front of a server, shows every command that passes, and returns its address. Whoever asks the
// server for the members of its set is told that address.
func relayShowing(t *testing.T, server string, show func(bson.Raw)) string {
	t.Helper()
	var address string
	ready := make(chan struct{}) // closed when address is known
	k, err := rules.New(rules.Options{Target: func() string { return server }, Hooks: []rules.Hook{func(r *rules.Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		show(whole(r))
		if !r.Is("hello", "isMaster") {
			return nil, nil
		}
		return nil, func(reply bson.Raw) bson.Raw { <-ready; return renamed(reply, server, address) }
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	address = k.Addr()
	close(ready)
	return address
}

// whole is a command with its sequences written into it as arrays.
func whole(r *rules.Request) bson.Raw {
	if len(r.Sequences) == 0 {
		return r.Body
	}
	d := bson.D{}
	elements, _ := r.Body.Elements()
	for _, e := range elements {
		d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
	}
	for _, s := range r.Sequences {
		d = append(d, bson.E{Key: s.Identifier, Value: r.Docs(s.Identifier)})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic("BUG: a command that was read cannot be written: " + err.Error())
	}
	return raw
}

// renamed is a hello's reply with one address in place of another.
func renamed(reply bson.Raw, from, to string) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(reply, &d); err != nil {
		return reply
	}
	for i, e := range d {
		switch v := e.Value.(type) {
		case string:
			if v == from {
				d[i].Value = to
			}
		case bson.A:
			for j := range v {
				if v[j] == from {
					v[j] = to
				}
			}
		}
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		return reply
	}
	return raw
}

// tapped is a fleet whose proxies reach their backends through relays that show what passes.
type tapped struct {
	uris    []string
	clients []*mongo.Client
	proxies []*running.Proxy
	catalog *mongo.Client
}

// startTapped starts two replica sets and a standalone, b1 to b3, with two proxies; the last of uris is a replica set that is in
// no fleet.
func startTapped(t *testing.T, show func(bson.Raw), args ...string) *tapped {
	t.Helper()
	sets := fleettest.Start(t, 3)
	fleettest.Need(t, sets, fleet.ReplicaSet)
	alone := fleettest.Start(t, 1, fleettest.Standalone)
	w := &tapped{catalog: connect(t, sets.Servers[0].URI())}
	for _, s := range []*fleet.Server{sets.Servers[0], sets.Servers[1], alone.Servers[0], sets.Servers[2]} {
		uri := "mongodb://" + relayShowing(t, s.Addr(), show) + "/"
		if s.SetName() != "" {
			uri += "?replicaSet=" + s.SetName()
		}
		w.uris = append(w.uris, uri)
	}
	for range 2 {
		o := running.Options{Backends: w.uris[:3], LogFile: filepath.Join(t.TempDir(), "proxy.log"), Args: args}
		p, err := running.Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = p.Close()
			if t.Failed() {
				t.Logf("the proxy's log:\n%s", p.Log())
			}
		})
		w.proxies = append(w.proxies, p)
		w.clients = append(w.clients, connect(t, p.URI()))
	}
	return w
}

// Every command that proxies send to backends, with its fields and concerns, is a row of package commands, and every row is
// sent: what docs/backends.md says is neither too little nor too much.
func TestCommandsSentToBackendsAreListed(t *testing.T) {
	r := newRecorder()
	w := startTapped(t, r.show, "--reshape-check-interval", "1s", "--max-partition-bytes", "20KB")
	useEverything(t, w)
	for _, p := range w.proxies {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(r.unlisted)) {
		t.Errorf("not listed in package backend/commands, seen %d times: %s", r.unlisted[what], what)
	}
	for _, row := range r.rows {
		if n := r.seen[row.String()]; n == 0 && row.Unseen == "" {
			t.Errorf("nobody sent this: %s", row.String())
		}
	}
}

// useEverything has proxies do, through clients' commands, everything for which they ask backends.
func useEverything(t *testing.T, w *tapped) {
	u := user{t: t, ctx: t.Context(), client: w.clients[0]}
	u.must("admin", shardCmd("d.c", "k", bson.E{Key: "numInitialChunks", Value: 2}))
	u.write()
	u.read()
	u.changeCollections()
	u.reshape(w)
	u.transact()
	u.unsharded()
	u.administer(w)
	u.tryEveryCommand()
	u.dropAll()
}

// user is a client that marks its commands.
type user struct {
	t      *testing.T
	ctx    context.Context
	client *mongo.Client
}

// try runs a command; servers that do not know it refuse it, which says nothing of what was sent.
func (u user) try(db string, cmd bson.D) {
	u.t.Helper()
	if err := u.client.Database(db).RunCommand(u.ctx, append(cmd[:len(cmd):len(cmd)], bson.E{Key: "comment", Value: clientsComment})).Err(); err != nil {
		u.t.Logf("%v: %v", cmd[0], err)
	}
}

func (u user) must(db string, cmd bson.D) {
	u.t.Helper()
	if err := u.client.Database(db).RunCommand(u.ctx, append(cmd[:len(cmd):len(cmd)], bson.E{Key: "comment", Value: clientsComment})).Err(); err != nil {
		u.t.Errorf("%v: %v", cmd, err)
	}
}

// all runs a command that answers with a cursor, to the cursor's end.
func (u user) all(db string, cmd bson.D) {
	u.t.Helper()
	cur, err := u.client.Database(db).RunCommandCursor(u.ctx, append(cmd[:len(cmd):len(cmd)], bson.E{Key: "comment", Value: clientsComment}))
	if err == nil {
		cur.SetComment(clientsComment)
		var docs []bson.Raw
		err = cur.All(u.ctx, &docs)
	}
	if err != nil {
		u.t.Logf("%v: %v", cmd[0], err)
	}
}

func (u user) collection(db, name string) *mongo.Collection {
	return u.client.Database(db).Collection(name)
}

func (u user) insert(db, coll string, docs ...any) {
	u.t.Helper()
	if _, err := u.collection(db, coll).InsertMany(u.ctx, docs, options.InsertMany().SetComment(clientsComment)); err != nil {
		u.t.Errorf("insert into %s.%s: %v", db, coll, err)
	}
}

func (u user) update(db, coll string, filter, update any) {
	u.t.Helper()
	if _, err := u.collection(db, coll).UpdateOne(u.ctx, filter, update, options.UpdateOne().SetComment(clientsComment)); err != nil {
		u.t.Errorf("update of %s.%s: %v", db, coll, err)
	}
}

func one(key string, value any) bson.D { return bson.D{{Key: key, Value: value}} }

func set(key string, value any) bson.D { return one("$set", one(key, value)) }

// write writes with and without the shard key, singly and in batches.
func (u user) write() {
	for i := range 100 {
		u.insert("d", "c", bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "x", Value: i}, {Key: "pad", Value: strings.Repeat("x", 500)}})
	}
	for i := range 20 {
		u.insert("e", "c", one("k", i))
	}
	var many []any
	for i := range 100 {
		many = append(many, bson.D{{Key: "_id", Value: 100 + i}, {Key: "k", Value: 100 + i}, {Key: "x", Value: 100 + i}})
	}
	u.insert("d", "c", many...)
	u.update("d", "c", one("k", 1), set("y", 1))
	u.update("d", "c", one("x", 2), set("y", 1))
	c := u.collection("d", "c")
	for what, err := range map[string]error{
		"update of many":        errorOf(c.UpdateMany(u.ctx, one("x", 2), set("y", 1), options.UpdateMany().SetComment(clientsComment))),
		"update of the key":     errorOf(c.UpdateOne(u.ctx, one("x", 7), set("k", 7), options.UpdateOne().SetComment(clientsComment))),
		"delete by another":     errorOf(c.DeleteOne(u.ctx, one("x", 3), options.DeleteOne().SetComment(clientsComment))),
		"delete by the key":     errorOf(c.DeleteOne(u.ctx, one("k", 4), options.DeleteOne().SetComment(clientsComment))),
		"delete of many":        errorOf(c.DeleteMany(u.ctx, one("x", 8), options.DeleteMany().SetComment(clientsComment))),
		"findAndModify":         c.FindOneAndUpdate(u.ctx, one("x", 5), set("y", 1), options.FindOneAndUpdate().SetSort(one("x", 1)).SetComment(clientsComment)).Err(),
		"findAndModify, remove": c.FindOneAndDelete(u.ctx, one("k", 6), options.FindOneAndDelete().SetComment(clientsComment)).Err(),
	} {
		if err != nil {
			u.t.Errorf("%s: %v", what, err)
		}
	}
}

func errorOf(_ any, err error) error { return err }

// read reads one partition and several, with cursors that go on and one that is left.
func (u user) read() {
	u.all("d", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: one("k", 1)}})
	u.all("e", bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 5}})
	u.all("d", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{}}, {Key: "batchSize", Value: 5}, {Key: "sort", Value: one("x", 1)},
		{Key: "projection", Value: one("y", 1)}, {Key: "skip", Value: 2}, {Key: "limit", Value: 100}})
	u.all("d", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{}}, {Key: "readConcern", Value: one("level", "majority")},
		{Key: "$readPreference", Value: one("mode", "secondaryPreferred")}})
	if cur, err := u.client.Database("d").RunCommandCursor(u.ctx, bson.D{{Key: "find", Value: "c"}, {Key: "batchSize", Value: 2}, {Key: "comment", Value: clientsComment}}); err != nil {
		u.t.Error(err)
	} else if err := cur.Close(u.ctx); err != nil {
		u.t.Error(err)
	}
	u.must("d", bson.D{{Key: "count", Value: "c"}})
	u.must("d", bson.D{{Key: "distinct", Value: "c"}, {Key: "key", Value: "x"}})
	u.must("d", bson.D{{Key: "distinct", Value: "c"}, {Key: "key", Value: "x"}, {Key: "query", Value: one("k", 1)}})
	u.must("d", bson.D{{Key: "explain", Value: bson.D{{Key: "find", Value: "c"}}}})
	for _, stages := range []bson.A{
		{one("$group", bson.D{{Key: "_id", Value: "$y"}, {Key: "n", Value: one("$sum", 1)}})},
		{one("$sort", one("x", 1)), one("$limit", 3), one("$bucketAuto", bson.D{{Key: "groupBy", Value: "$x"}, {Key: "buckets", Value: 2}})},
		{one("$collStats", one("count", bson.D{}))},
		{one("$indexStats", bson.D{})},
	} {
		u.all("d", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: stages}, {Key: "cursor", Value: bson.D{}}})
	}
	u.all("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{one("$shardedDataDistribution", bson.D{})}}, {Key: "cursor", Value: bson.D{}}})
}

// changeCollections changes indexes and options, and asks for them.
func (u user) changeCollections() {
	u.must("d", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: one("x", 1)}, {Key: "name", Value: "x_1"}}, bson.D{{Key: "key", Value: one("z", 1)}, {Key: "name", Value: "z_1"}, {Key: "expireAfterSeconds", Value: 3600}}}}})
	u.must("d", bson.D{{Key: "listIndexes", Value: "c"}})
	u.must("d", bson.D{{Key: "collMod", Value: "c"}, {Key: "validationLevel", Value: "off"}})
	u.must("d", bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "x_1"}})
	u.must("d", bson.D{{Key: "collStats", Value: "c"}})
	u.must("d", bson.D{{Key: "validate", Value: "c"}})
	u.must("d", bson.D{{Key: "dbStats", Value: 1}})
	u.must("d", bson.D{{Key: "dataSize", Value: "d.c"}})
}

// reshape splits, moves to a replica set, to the standalone and back, and merges; then it writes what may be a repetition.
func (u user) reshape(w *tapped) {
	all, err := chunks(u.ctx, w.catalog, "d.c")
	if err != nil {
		u.t.Fatal(err)
	}
	u.must("admin", bson.D{{Key: "split", Value: "d.c"}, {Key: "bounds", Value: all[0].bounds()}})
	if all, err = chunks(u.ctx, w.catalog, "d.c"); err != nil {
		u.t.Fatal(err)
	}
	stop := u.keepWriting()
	defer stop()
	for _, to := range []string{"b2", "b3", "b1", "b2"} {
		for _, c := range all[:2] {
			u.must("admin", bson.D{{Key: "moveChunk", Value: "d.c"}, {Key: "bounds", Value: c.bounds()}, {Key: "to", Value: to}})
		}
	}
	u.must("admin", bson.D{{Key: "mergeChunks", Value: "d.c"}, {Key: "bounds", Value: bson.A{all[0].Min, all[1].Max}}})
	for i := range 10 {
		u.update("d", "c", one("k", 100+i), set("y", 1))
	}
	u.update("d", "c", one("x", 120), set("y", 1))
}

// keepWriting changes and deletes documents until stop is called, so that copies have something to follow.
func (u user) keepWriting() (stop func()) {
	ctx, cancel := context.WithCancel(u.ctx)
	var writing sync.WaitGroup
	writing.Go(func() {
		c := u.collection("d", "c")
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = c.UpdateOne(ctx, one("k", i%200), set("y", i), options.UpdateOne().SetUpsert(true).SetComment(clientsComment))
			_, _ = c.DeleteOne(ctx, one("k", (i+50)%200), options.DeleteOne().SetComment(clientsComment))
		}
	})
	return func() { cancel(); writing.Wait() }
}

// transact commits a transaction and aborts another one.
func (u user) transact() {
	u.must("admin", bson.D{{Key: "enableSharding", Value: "tx"}, {Key: "primaryShard", Value: "b1"}})
	err := u.client.UseSession(u.ctx, func(ctx context.Context) error {
		s := mongo.SessionFromContext(ctx)
		for _, end := range []func(context.Context) error{s.CommitTransaction, s.AbortTransaction} {
			if err := s.StartTransaction(); err != nil {
				return err
			}
			u := u
			u.ctx = ctx
			u.insert("tx", "c", one("k", 1))
			if err := u.collection("tx", "c").FindOne(ctx, one("k", 1), options.FindOne().SetComment(clientsComment)).Err(); err != nil {
				return err
			}
			if err := end(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		u.t.Error(err)
	}
}

// unsharded uses collections of every kind, moves them to other primaries, and renames.
func (u user) unsharded() {
	u.must("admin", bson.D{{Key: "enableSharding", Value: "p"}, {Key: "primaryShard", Value: "b1"}})
	u.insert("p", "plain", one("a", 1))
	u.must("p", bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 100000}})
	u.insert("p", "capped", one("a", 1))
	u.must("p", bson.D{{Key: "create", Value: "ts"}, {Key: "timeseries", Value: one("timeField", "t")}})
	u.insert("p", "ts", one("t", time.Now()))
	u.must("p", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "plain"}, {Key: "pipeline", Value: bson.A{}}})
	u.must("d", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	u.must("d", bson.D{{Key: "collMod", Value: "v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	u.all("d", bson.D{{Key: "find", Value: "v"}})
	u.all("p", bson.D{{Key: "find", Value: "v"}})
	u.all("p", bson.D{{Key: "aggregate", Value: "plain"}, {Key: "pipeline", Value: bson.A{one("$out", "copy")}}, {Key: "cursor", Value: bson.D{}}})
	for _, to := range []string{"b2", "b3", "b1"} {
		u.try("admin", bson.D{{Key: "movePrimary", Value: "p"}, {Key: "to", Value: to}})
	}
	u.must("admin", bson.D{{Key: "renameCollection", Value: "d.c"}, {Key: "to", Value: "d.c2"}})
	u.must("admin", bson.D{{Key: "renameCollection", Value: "p.plain"}, {Key: "to", Value: "p.plain2"}})
	u.must("p", bson.D{{Key: "listCollections", Value: 1}})
}

// administer runs diagnostics and what is about the fleet and about sessions.
func (u user) administer(w *tapped) {
	session := bson.A{bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("0123456789abcdef")}}}}
	u.must("d", bson.D{{Key: "find", Value: "c2"}, {Key: "filter", Value: one("k", 1)}, {Key: "limit", Value: 1}})
	for _, cmd := range []bson.D{
		one("currentOp", 1), {{Key: "killOp", Value: 1}, {Key: "op", Value: "b1:12345"}},
		one("serverStatus", 1), one("hostInfo", 1), one("buildInfo", 1), one("connectionStatus", 1), one("listDatabases", 1), one("getLog", "global"),
		one("getDefaultRWConcern", 1), {{Key: "setDefaultRWConcern", Value: 1}, {Key: "defaultWriteConcern", Value: one("w", "majority")}},
		one("getClusterParameter", "*"), one("setClusterParameter", one("changeStreamOptions", bson.D{})),
		one("refreshSessions", session), one("killSessions", session), one("endSessions", session), one("killAllSessions", bson.A{}),
		one("fsync", 1), one("getShardMap", 1), one("balancerStatus", 1), one("listShards", 1),
		{{Key: "addShard", Value: w.uris[3]}, {Key: "name", Value: "b4"}}, one("removeShard", "b4"), one("removeShard", "b4"),
	} {
		u.try("admin", cmd)
	}
	for _, name := range []string{"chunks", "shards", "changelog", "databases", "collections", "mongos", "settings", "version"} {
		u.all("config", one("find", name))
	}
	u.all("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{one("$currentOp", bson.D{})}}, {Key: "cursor", Value: bson.D{}}})
}

// tryEveryCommand runs every command that the proxy knows, as far as that goes without knowing its fields: one that is new and
// sends something is seen then.
func (u user) tryEveryCommand() {
	reply, err := u.client.Database("admin").RunCommand(u.ctx, one("listCommands", 1)).Raw()
	if err != nil {
		u.t.Fatal(err)
	}
	listed, _ := reply.Lookup("commands").Document().Elements()
	for _, e := range listed {
		switch name := e.Key(); name {
		case "shutdown", "drop", "dropDatabase":
		case "convertToCapped":
			u.try("e", bson.D{{Key: name, Value: "c"}, {Key: "size", Value: 100000}})
		case "planCacheSetFilter":
			u.try("e", bson.D{{Key: name, Value: "c"}, {Key: "query", Value: one("k", 1)}, {Key: "indexes", Value: bson.A{one("k", 1)}}})
		default:
			for _, first := range []any{"c", 1} {
				// What is refused says nothing: it is the sending that is looked at.
				_ = u.client.Database("e").RunCommand(u.ctx, bson.D{{Key: name, Value: first}, {Key: "comment", Value: clientsComment}}).Err()
			}
		}
	}
}

// dropAll drops collections and databases.
func (u user) dropAll() {
	u.must("d", one("drop", "c2"))
	u.must("d", one("dropDatabase", 1))
	u.must("p", one("dropDatabase", 1))
}
