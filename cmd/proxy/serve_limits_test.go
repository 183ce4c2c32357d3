package main

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/internal/waits"
)

// TestServeReportsWhatCannotBeSplit: a partition with one shard key value is reported once, and split when documents with other values have come; another that is
// full is split, its progress logged, and not while the balancer is stopped. Slow requests and ended connections are logged too.
func TestServeReportsWhatCannotBeSplit(t *testing.T) {
	f := fleettest.Start(t, 2)
	p := start(t, append(append([]string{"serve"}, backendArgs(f.Servers...)...),
		"--max-partition-bytes", "20KB", "--reshape-check-interval", "100ms", "--log-slow-request", "1us")...)
	uri := "mongodb://" + p.logged(t, "listening")["address"].(string) + "/"
	client := connect(t, uri)
	admin := client.Database("admin")
	command := func(cmd bson.D) {
		t.Helper()
		if err := admin.RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	command(bson.D{{Key: "balancerStop", Value: 1}})
	fill := func(name string, key func(int32) int32) {
		t.Helper()
		command(bson.D{{Key: "shardCollection", Value: "db." + name}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}, {Key: "numInitialChunks", Value: 1}})
		var docs []any
		for i := range int32(200) {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: key(i)}, {Key: "pad", Value: strings.Repeat("x", 200)}})
		}
		if _, err := client.Database("db").Collection(name).InsertMany(t.Context(), docs); err != nil {
			t.Fatal(err)
		}
	}
	fill("one", func(int32) int32 { return 7 })
	fill("many", func(i int32) int32 { return i })
	chunks := func(ns string) int64 {
		t.Helper()
		var coll struct{ UUID bson.Binary }
		if err := client.Database("config").Collection("collections").FindOne(t.Context(), bson.D{{Key: "_id", Value: ns}}).Decode(&coll); err != nil {
			t.Fatal(err)
		}
		n, err := client.Database("config").Collection("chunks").CountDocuments(t.Context(), bson.D{{Key: "uuid", Value: coll.UUID}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	time.Sleep(500 * time.Millisecond) // several looks at the sizes
	if n := chunks("db.many"); n != 1 {
		t.Errorf("%d partitions although the balancer is stopped", n)
	}
	command(bson.D{{Key: "balancerStart", Value: 1}})
	const stuck = "a partition is over its limit and cannot be split: all its documents have one shard key value"
	if line := p.logged(t, stuck); line["ns"] != "db.one" {
		t.Errorf("%v", line)
	}
	if line := p.logged(t, "flip"); line["ns"] != "db.many" || line["pause"] == nil {
		t.Errorf("%v", line)
	}
	if line := p.logged(t, "reshape"); line["phase"] == nil || line["documents"] == nil || line["bytes"] == nil {
		t.Errorf("%v", line)
	}
	waits.Until(t, "db.many has three partitions", func() bool { return chunks("db.many") >= 3 })
	if n := chunks("db.one"); n != 1 {
		t.Errorf("one shard key value in %d partitions", n)
	}
	status := func() bson.Raw {
		t.Helper()
		reply, err := admin.RunCommand(t.Context(), bson.D{{Key: "balancerCollectionStatus", Value: "db.one"}}).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if jumbo, err := status().Lookup("jumboChunks").Array().Values(); err != nil || len(jumbo) != 1 || jumbo[0].Document().Lookup("bytes").AsInt64() <= 20<<10 {
		t.Errorf("balancerCollectionStatus of a partition that cannot be split: %v", status())
	}
	if n := strings.Count(p.stderr.String(), stuck); n != 1 {
		t.Errorf("reported %d times", n)
	}
	// Other keys come: the partition is looked at again, and split.
	var more []any
	for i := range int32(200) {
		more = append(more, bson.D{{Key: "_id", Value: 1000 + i}, {Key: "k", Value: i}, {Key: "pad", Value: strings.Repeat("x", 200)}})
	}
	if _, err := client.Database("db").Collection("one").InsertMany(t.Context(), more); err != nil {
		t.Fatal(err)
	}
	waits.Until(t, "db.one is split when it has other keys", func() bool { return chunks("db.one") >= 3 })
	if line := p.logged(t, "slow request"); line["command"] == nil || line["took"] == nil {
		t.Errorf("%v", line)
	}
	if err := client.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
	if line := p.logged(t, "connection ended"); line["reason"] == nil {
		t.Errorf("%v", line)
	}
	p.terminate(t)
}

// TestServeStandalonePause: a standalone's partition is split while its writes wait, and not when that would take longer than the limit.
func TestServeStandalonePause(t *testing.T) {
	f, alone := fleettest.Start(t, 1), fleettest.Start(t, 1, fleettest.Standalone)
	args := append([]string{"serve"}, backendArgs(append(f.Servers, alone.Servers...)...)...)
	serve := func(limit string) *program {
		return start(t, append(args, "--reshape-standalone-pause", limit)...)
	}
	move := bson.D{{Key: "moveChunk", Value: "db.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "to", Value: "b1"}}

	p := serve("1ms")
	client := connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/?retryWrites=false")
	admin := client.Database("admin")
	for _, cmd := range []bson.D{
		{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "b2"}},
		{{Key: "shardCollection", Value: "db.c"}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}, {Key: "numInitialChunks", Value: 1}},
	} {
		if err := admin.RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var docs []any
	for i := range int32(3000) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	coll := client.Database("db").Collection("c")
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	// An empty collection's one partition may have been made on either backend.
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "moveChunk", Value: "db.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "to", Value: "b2"}}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.RunCommand(t.Context(), move).Err(); err == nil || !strings.Contains(err.Error(), "would hold the writes of db.c for longer than 1ms") {
		t.Errorf("beyond the limit: %v", err)
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); n != 3000 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	p.terminate(t)

	p = serve("20s")
	client = connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/?retryWrites=false")
	coll = client.Database("db").Collection("c")
	stop, written := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { written <- n }()
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 10000 + n}, {Key: "k", Value: 10000 + n}}); err != nil {
				t.Errorf("a write meanwhile: %v", err)
				return
			}
		}
	}()
	if err := client.Database("admin").RunCommand(t.Context(), move).Err(); err != nil {
		t.Errorf("within the limit: %v", err)
	}
	close(stop)
	n := <-written
	if got, err := coll.CountDocuments(t.Context(), bson.D{}); int(got) != 3000+n || err != nil {
		t.Errorf("%d documents, want %d; %v", got, 3000+n, err)
	}
	p.terminate(t)
}
