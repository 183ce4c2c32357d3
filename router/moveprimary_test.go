package router_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestMovePrimary moves a database to and fro while documents are written to its collections and new collections are made in it.
func TestMovePrimary(t *testing.T) {
	p := startProxy(t, 3)
	ctx := t.Context()
	if code := p.admin(t, bson.D{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "b1"}}); code != 0 {
		t.Fatal(code)
	}
	p.shard(t, "db.c", "k", 3)
	db := p.client.Database("db")
	unique := mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := db.Collection("plain").Indexes().CreateOne(ctx, unique); err != nil {
		t.Fatal(err)
	}
	for i := range int32(200) {
		if _, err := db.Collection("plain").InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "u", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		cmd  bson.D
		code int32
	}{
		{bson.D{{Key: "movePrimary", Value: "db"}, {Key: "to", Value: "b9"}}, 70},
		{bson.D{{Key: "movePrimary", Value: "none"}, {Key: "to", Value: "b2"}}, 26},
		{bson.D{{Key: "movePrimary", Value: "db"}}, 72},
		{bson.D{{Key: "movePrimary", Value: "config"}, {Key: "to", Value: "b2"}}, 72},
		{bson.D{{Key: "movePrimary", Value: "db"}, {Key: "to", Value: "b1"}}, 0},
	} {
		if code := p.admin(t, c.cmd); code != c.code {
			t.Errorf("%v: code %d, want %d", c.cmd, code, c.code)
		}
	}

	stop, halt := context.WithCancel(ctx)
	var wg sync.WaitGroup
	made, rounds := 0, int32(0)
	wg.Go(func() {
		for ; stop.Err() == nil && made < 30; made++ {
			if _, err := db.Collection(fmt.Sprint("new", made)).InsertOne(ctx, bson.D{{Key: "_id", Value: made}}); err != nil {
				t.Errorf("a new collection: %v", err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	wg.Go(func() {
		for ; stop.Err() == nil; rounds++ {
			_, err := db.Collection("plain").UpdateByID(ctx, rounds%200, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}})
			if err != nil {
				t.Errorf("an update: %v", err)
				return
			}
		}
	})
	for _, to := range []string{"b2", "b3", "b1", "b2"} {
		if err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "movePrimary", Value: "db"}, {Key: "to", Value: to}}).Err(); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
	}
	halt()
	wg.Wait()

	if got := p.catalog.Snapshot().Databases["db"].Primary; got != "b2" {
		t.Errorf("primary %s", got)
	}
	cur, err := db.Collection("plain").Aggregate(ctx, mongo.Pipeline{{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$n"}}}, {Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}}}}}})
	var sums []struct {
		N    int32 `bson:"n"`
		Docs int32 `bson:"docs"`
	}
	if err == nil {
		err = cur.All(ctx, &sums)
	}
	if err != nil || len(sums) != 1 || sums[0].N != rounds || sums[0].Docs != 200 {
		t.Errorf("sums %+v, want %d updates of 200 documents; %v", sums, rounds, err)
	}
	for i := range made {
		if n, err := db.Collection(fmt.Sprint("new", i)).CountDocuments(ctx, bson.D{}); n != 1 || err != nil {
			t.Errorf("new%d: %d documents, %v", i, n, err)
		}
	}
	if _, err := db.Collection("plain").InsertOne(ctx, bson.D{{Key: "_id", Value: 1000}, {Key: "u", Value: 5}}); !mongo.IsDuplicateKeyError(err) {
		t.Errorf("the unique index was not kept: %v", err)
	}
	names, err := db.ListCollectionNames(ctx, bson.D{})
	if err != nil || len(names) != made+2 {
		t.Errorf("%d collections listed, want %d: %v", len(names), made+2, err)
	}
	for _, m := range p.catalog.Snapshot().Maps {
		if !m.Sharded() && m.Partitions[0].Backend != "b2" {
			t.Errorf("%s is on %s", m.NS, m.Partitions[0].Backend)
		}
	}
	t.Logf("%d updates, %d collections made meanwhile", rounds, made)
}
