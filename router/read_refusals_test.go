package router

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// runPlain runs a command without a deadline, to which the driver would add a maxTimeMS.
func (e *writeEnv) runPlain(cmd bson.D) (bson.M, error) {
	plain := *e
	plain.ctx = context.Background()
	return plain.run(cmd)
}

// TestRefusedReads are what a router refuses that a server would take: mongos-behaviour §3.4, §5.3, §6.1. The find by the key takes the hot path
// where it is plain.
func TestRefusedReads(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "k", 3)
	for _, c := range []struct {
		cmd  bson.D
		code wire.Code
	}{
		{d("find", "c", "projection", d("$sortKey", 1)), 2},
		{d("find", "c", "filter", d("k", 1), "limit", 1, "singleBatch", true, "projection", d("v", 1, "$sortKey", d("$meta", "sortKey"))), 2},
		{d("find", "unsharded", "projection", d("$sortKey", 1)), 2},
		{d("find", "c", "filter", d("k", 1), "limit", 1, "singleBatch", true, "projection", d("v", 1)), 0},
		{d("find", "c", "runtimeConstants", d()), 51202},
		{d("find", "c", "legacyRuntimeConstants", d()), 51202},
		{d("find", "c", "$_requestResumeToken", true), 2},
		{d("aggregate", "c", "pipeline", bson.A{}, "cursor", d(), "legacyRuntimeConstants", d()), 51143},
		{d("aggregate", "c", "pipeline", bson.A{}, "cursor", d(), "runtimeConstants", d()), 51143},
		{d("aggregate", "c", "pipeline", bson.A{}, "cursor", d("nope", 1)), 40415},
		{d("aggregate", 2, "pipeline", bson.A{d("$documents", bson.A{})}, "cursor", d()), 9},
		{d("find", "c", "filter", d("k", 1), "limit", 1, "$readPreference", d("mode", "primary", "tags", bson.A{d("a", "b")})), 2},
		{d("find", "c", "$readPreference", d("mode", "primary", "tags", bson.A{d()})), 0},
		{d("find", "c", "$readPreference", d("mode", "primary", "maxStalenessSeconds", 100)), 2},
		{d("find", "c", "$readPreference", d("mode", "nearest", "maxStalenessSeconds", 10)), 160},
		{d("find", "c", "$readPreference", d("mode", "elsewhere")), 9},
		{d("getMore", int64(1), "collection", 1), 14},
		{d("getMore", int64(1)), 40414},
		{d("getMore", int64(1), "collection", "c", "hint", 1), 40415},
		{d("getMore", int64(1), "collection", "c", "batchSize", -1), 51024},
		{d("getMore", int64(1), "collection", "c", "batchSize", 3, "maxTimeMS", 5, "comment", "x"), 43},
		{d("getMore", 1, "collection", "c"), 14},
	} {
		if _, err := e.runPlain(c.cmd); codeOf(err) != c.code {
			t.Errorf("%v: %v, want %d", c.cmd, err, c.code)
		}
	}
}

// TestGetMoreRepeatsTheAPI checks that a getMore must carry the Stable API fields of the command that opened the cursor: 347, and no batch is lost.
func TestGetMoreRepeatsTheAPI(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 3)
	for i := range 20 {
		if _, err := coll.InsertOne(e.ctx, d("_id", i, "k", i)); err != nil {
			t.Fatal(err)
		}
	}
	v1 := d("apiVersion", "1")
	strict := d("apiVersion", "1", "apiStrict", true, "apiDeprecationErrors", false)
	for _, c := range []struct {
		name       string
		open, more bson.D
		code       wire.Code
	}{
		{"none", nil, nil, 0},
		{"the same", v1, v1, 0},
		{"all the same", strict, strict, 0},
		{"only the getMore", nil, v1, 347},
		{"only the find", v1, nil, 347},
		{"other strictness", v1, strict, 347},
		{"a field that says the default", v1, d("apiVersion", "1", "apiStrict", false), 347},
	} {
		for _, filter := range []bson.D{{}, d("k", d("$gte", 0), "_id", d("$gte", 0)), d("k", 1)} {
			open := append(d("find", "c", "filter", filter, "batchSize", 0), c.open...)
			reply, err := e.runPlain(open)
			if err != nil {
				t.Fatal(err)
			}
			more := d("getMore", cursorIn(t, reply), "collection", "c", "batchSize", 30)
			if _, err := e.runPlain(append(append(bson.D{}, more...), c.more...)); codeOf(err) != c.code {
				t.Errorf("%s, %v: %v, want %d", c.name, filter, err, c.code)
			}
			if c.code == 0 {
				continue
			}
			if _, err := e.runPlain(append(append(bson.D{}, more...), c.open...)); err != nil {
				t.Errorf("%s, %v: the cursor was lost: %v", c.name, filter, err)
			}
		}
	}
}

// cursorIn is the id of the cursor in a reply.
func cursorIn(t *testing.T, reply bson.M) int64 {
	t.Helper()
	for _, e := range reply["cursor"].(bson.D) {
		if e.Key == "id" {
			return e.Value.(int64)
		}
	}
	t.Fatalf("no cursor in %v", reply)
	return 0
}

// TestCountReply checks the shape of count's reply: what each backend has counted, before skip and limit, and the number as the client's one server
// would give it (mongos-behaviour §3.13).
func TestCountReply(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 7)
	for i := range 30 {
		if _, err := coll.InsertOne(e.ctx, d("_id", i, "k", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.client.Database(e.db).Collection("plain").InsertOne(e.ctx, d("_id", 1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cmd    bson.D
		n      int32
		shards int // how many
		sum    int32
	}{
		{d("count", "c"), 30, 3, 30},
		{d("count", "c", "query", d("_id", d("$lt", 10)), "skip", 4), 6, 3, 10},
		{d("count", "c", "query", d("_id", d("$lt", 10)), "skip", 2, "limit", -3), 3, 3, -1},
		{d("count", "c", "query", d("k", 7)), 1, 1, 1},
		{d("count", "c", "query", d("k", 7), "skip", 5), 0, 1, 1},
		{d("count", "plain"), 1, 1, 1},
		{d("count", "nothinghere"), 0, -1, 0},
	} {
		reply, err := e.run(c.cmd)
		if err != nil {
			t.Fatal(err)
		}
		shards, has := reply["shards"].(bson.D)
		var sum int32
		for _, s := range shards {
			sum += s.Value.(int32)
		}
		if reply["n"] != c.n || !has || c.shards >= 0 && len(shards) != c.shards || c.sum >= 0 && sum != c.sum {
			t.Errorf("%v: %v", c.cmd, reply)
		}
	}
}
