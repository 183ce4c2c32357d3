package router_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestConfigWrites: what shells' helpers write to config takes effect and is shown, and nothing else is taken.
func TestConfigWrites(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	p.shard(t, "db.c", "k", 2)
	config := p.client.Database("config")
	upsert := options.UpdateOne().SetUpsert(true)
	set := func(k string, v any) bson.D {
		return bson.D{{Key: "$set", Value: bson.D{{Key: k, Value: v}}}}
	}
	for _, c := range []struct {
		coll, id, field string
		value           any
	}{
		{"settings", "balancer", "stopped", true},
		{"settings", "chunksize", "value", 0.5},
		{"settings", "autosplit", "enabled", false},
		{"settings", "automerge", "enabled", true},
		{"settings", "automerge", "enabled", false},
		{"collections", "db.c", "noBalance", true},
		{"collections", "db.c", "noBalance", false},
	} {
		by := bson.D{{Key: "_id", Value: c.id}}
		res, err := config.Collection(c.coll).UpdateOne(ctx, by, set(c.field, c.value), upsert)
		if err != nil {
			t.Errorf("%s %s: %v", c.coll, c.id, err)
			continue
		}
		if res.MatchedCount+res.UpsertedCount != 1 {
			t.Errorf("%s %s: %+v", c.coll, c.id, res)
		}
		var doc bson.M
		if err := config.Collection(c.coll).FindOne(ctx, by).Decode(&doc); err != nil || doc[c.field] != c.value {
			t.Errorf("%s %s shows %v, want %v; %v", c.coll, c.id, doc[c.field], c.value, err)
		}
	}
	if got := p.split.MaxPartitionBytes("db.c"); got != 1<<19 {
		t.Errorf("partitions are split beyond %d bytes, want %d", got, 1<<19)
	}
	snap := p.catalog.Snapshot()
	if !snap.BalancerStopped {
		t.Error("the balancer was not stopped")
	}
	if res, err := config.Collection("collections").UpdateOne(ctx, bson.D{{Key: "_id", Value: "db.none"}}, set("noBalance", true), upsert); err != nil || res.MatchedCount+res.UpsertedCount != 0 {
		t.Errorf("an unknown collection: %+v, %v", res, err)
	}
	for _, c := range []struct {
		what, coll string
		by, change bson.D
		code       int
	}{
		{"another field", "settings", bson.D{{Key: "_id", Value: "balancer"}}, set("activeWindow", 1), 115},
		{"another setting", "settings", bson.D{{Key: "_id", Value: "x"}}, set("y", 1), 115},
		{"another operator", "settings", bson.D{{Key: "_id", Value: "balancer"}}, bson.D{{Key: "$unset", Value: bson.D{{Key: "stopped", Value: 1}}}}, 115},
		{"an empty $set", "collections", bson.D{{Key: "_id", Value: "db.c"}}, bson.D{{Key: "$set", Value: bson.D{}}}, 115},
		{"another filter", "settings", bson.D{}, set("stopped", true), 115},
		{"another collection", "chunks", bson.D{{Key: "_id", Value: "x"}}, set("y", 1), 115},
		{"another field of a collection", "collections", bson.D{{Key: "_id", Value: "db.c"}}, set("unique", true), 115},
		{"a wrong type", "settings", bson.D{{Key: "_id", Value: "balancer"}}, set("stopped", "yes"), 14},
		{"a wrong size", "settings", bson.D{{Key: "_id", Value: "chunksize"}}, set("value", -1), 2},
	} {
		_, err := config.Collection(c.coll).UpdateOne(ctx, c.by, c.change, upsert)
		var se mongo.ServerError
		if !errors.As(err, &se) || !se.HasErrorCode(c.code) {
			t.Errorf("%s: %v, want code %d", c.what, err, c.code)
		}
	}
}
