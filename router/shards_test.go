package router_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/internal/waits"
)

// hosts is the "host:port" of a server of the fleet.
func (p *proxy) hosts(i int) string {
	_, rest, _ := strings.Cut(p.fleet.Servers[i].URI(), "://")
	rest, _, _ = strings.Cut(rest, "/")
	return rest
}

// removeShard runs removeShard and returns its reply.
func (p *proxy) removeShard(t *testing.T, id string) (reply struct {
	State     string   `bson:"state"`
	DBsToMove []string `bson:"dbsToMove"`
	Remaining struct {
		Chunks int64 `bson:"chunks"`
		DBs    int64 `bson:"dbs"`
	} `bson:"remaining"`
}) {
	t.Helper()
	if err := p.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "removeShard", Value: id}}).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// TestShardsJoinAndLeave adds a server that has data, moves partitions to it, and takes it out of the fleet again.
func TestShardsJoinAndLeave(t *testing.T) {
	p := startProxy(t, 2, 1)
	ctx := t.Context()
	spare := connect(t, p.fleet.Servers[2].URI())
	defer func() { _ = spare.Disconnect(ctx) }()
	if _, err := spare.Database("brought").Collection("things").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	db := p.client.Database("db")
	p.shard(t, "db.c", "k", 4)
	for i := range int32(100) {
		if _, err := db.Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	add := func(address any, more ...bson.E) bson.D {
		return append(bson.D{{Key: "addShard", Value: address}}, more...)
	}
	name := func(s string) bson.E { return bson.E{Key: "name", Value: s} }
	for _, c := range []struct {
		what string
		cmd  bson.D
		code int32
	}{
		{"not a string", add(1), 14},
		{"no host", add("rs/"), 9},
		{"a bad name", add(p.hosts(2), name("")), 2},
		{"unreachable", add("127.0.0.1:1"), 96},
		{"there under another name", add(p.hosts(1), name("other")), 20},
		{"the name of another", add(p.hosts(2), name("b1")), 20},
		{"there already", add(p.hosts(1)), 0},
		{"with a database that is there", nil, 0},
		{"new", add(p.hosts(2)), 0},
		{"new, again", add("mongodb://"+p.hosts(2)+"/", name("shard0000")), 0},
		{"status of an unknown one", bson.D{{Key: "shardDrainingStatus", Value: "b9"}}, 70},
		{"status of one that stays", bson.D{{Key: "shardDrainingStatus", Value: "b1"}}, 20},
		{"remove unknown", bson.D{{Key: "removeShard", Value: "b9"}}, 70},
		{"remove the catalog's", bson.D{{Key: "removeShard", Value: "b1"}}, 20},
	} {
		if c.cmd == nil { // one database on two backends
			if _, err := spare.Database("db").Collection("x").InsertOne(ctx, bson.D{}); err != nil {
				t.Fatal(err)
			}
			if code := p.admin(t, add(p.hosts(2))); code != 96 {
				t.Errorf("%s: code %d, want 96", c.what, code)
			}
			if err := spare.Database("db").Drop(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if code := p.admin(t, c.cmd); code != c.code {
			t.Errorf("%s: code %d, want %d", c.what, code, c.code)
		}
	}
	if n, err := p.client.Database("brought").Collection("things").CountDocuments(ctx, bson.D{}); n != 1 || err != nil {
		t.Errorf("what the new shard brought: %d documents, %v", n, err)
	}

	if code := p.admin(t, bson.D{{Key: "moveChunk", Value: "db.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: 5}}}, {Key: "to", Value: "shard0000"}}); code != 0 {
		t.Fatalf("moveChunk: %d", code)
	}
	if got := p.removeShard(t, "shard0000"); got.State != "started" || len(got.DBsToMove) != 1 || got.DBsToMove[0] != "brought" {
		t.Errorf("first: %+v", got)
	}
	status := func() string {
		t.Helper()
		raw, err := p.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardDrainingStatus", Value: "shard0000"}}).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return raw.Lookup("state").StringValue()
	}
	if got := status(); got != "ongoing" {
		t.Errorf("shardDrainingStatus says %s", got)
	}
	if got := p.removeShard(t, "shard0000"); got.State != "ongoing" || got.Remaining.Chunks != 1 || got.Remaining.DBs != 1 {
		t.Errorf("second: %+v", got)
	}
	if code := p.admin(t, add(p.hosts(2), name("shard0000"))); code != 0 {
		t.Errorf("asked back: %d", code)
	}
	p.split.Drain(ctx)
	if got := p.removeShard(t, "shard0000"); got.State != "started" {
		t.Errorf("after it was asked back: %+v", got)
	}
	if code := p.admin(t, bson.D{{Key: "movePrimary", Value: "brought"}, {Key: "to", Value: "b2"}}); code != 0 {
		t.Fatalf("movePrimary: %d", code)
	}
	p.split.Drain(ctx)
	if got := p.removeShard(t, "shard0000"); got.State != "ongoing" || got.Remaining.Chunks != 0 || got.Remaining.DBs != 0 || status() != "drainingComplete" {
		t.Errorf("empty: %+v", got)
	}
	// Another machine's clock does not make it sooner.
	if err := p.catalog.SetDrained(ctx, "shard0000", time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := p.catalog.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if got := p.removeShard(t, "shard0000"); got.State != "ongoing" {
		t.Errorf("at once, by another clock: %+v", got)
	}
	waits.Until(t, "removeShard is completed", func() bool { return p.removeShard(t, "shard0000").State == "completed" })
	if code := p.admin(t, bson.D{{Key: "removeShard", Value: "shard0000"}}); code != 70 {
		t.Errorf("removed twice: %d", code)
	}
	if n, err := db.Collection("c").CountDocuments(ctx, bson.D{}); n != 100 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	if n, err := p.client.Database("brought").Collection("things").CountDocuments(ctx, bson.D{}); n != 1 || err != nil {
		t.Errorf("what the shard had brought: %d documents, %v", n, err)
	}
	p.noLeftovers(t)
}
