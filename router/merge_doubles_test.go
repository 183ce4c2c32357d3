package router_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/wire"
)

// mergeAll makes one partition of all of db.c's.
func (p *proxy) mergeAll(t *testing.T) int32 {
	t.Helper()
	return p.admin(t, bson.D{{Key: "mergeChunks", Value: "db.c"}, {Key: "bounds", Value: bson.A{st("k", bson.MinKey{}), st("k", bson.MaxKey{})}}})
}

// TestMergeWhileDocumentsChangeTheirKeys: an _id that is deleted in one input and inserted into another while they are merged is no double.
func TestMergeWhileDocumentsChangeTheirKeys(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "k", 4)
	coll := p.client.Database("db").Collection("c")
	const wanderers = 50
	for i := range int32(2000) {
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	stop, halt := context.WithCancel(t.Context())
	defer halt()
	keys := make([]int32, wanderers)
	for i := range keys {
		keys[i] = int32(i)
	}
	var wg sync.WaitGroup
	moves := 0
	wg.Go(func() {
		for n := int32(5000); stop.Err() == nil; n++ {
			id := n % wanderers
			if _, err := coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: keys[id]}}); err != nil {
				t.Errorf("delete: %v", err)
				return
			}
			keys[id] = n
			if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: n}}); err != nil {
				t.Errorf("insert: %v", err)
				return
			}
			moves++
		}
	})
	code := p.mergeAll(t)
	halt()
	wg.Wait()
	if code != 0 {
		t.Fatalf("the merge: code %d", code)
	}
	cur, err := coll.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		ID int32 `bson:"_id"`
		K  int32 `bson:"k"`
	}
	if err := cur.All(t.Context(), &all); err != nil || len(all) != 2000 {
		t.Errorf("%d documents, %v", len(all), err)
	}
	for _, d := range all {
		if d.ID < wanderers && d.K != keys[d.ID] || d.ID >= wanderers && d.K != d.ID {
			t.Errorf("%+v is not where it went", d)
		}
	}
	t.Logf("%d moves meanwhile", moves)
}

// TestMergeNamesDoubles: two documents with one _id, under two key values, cannot be in one partition.
func TestMergeNamesDoubles(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "k", 4)
	coll := p.client.Database("db").Collection("c")
	var docs []any
	for i := range int32(500) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	docs = append(docs, bson.D{{Key: "_id", Value: "double"}, {Key: "k", Value: int32(1)}}, bson.D{{Key: "_id", Value: "double"}, {Key: "k", Value: int32(2)}},
		bson.D{{Key: "_id", Value: "double"}, {Key: "k", Value: int32(3)}})
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err) // 1, 2 and 3 are in two partitions at least
	}
	err := p.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "mergeChunks", Value: "db.c"},
		{Key: "bounds", Value: bson.A{st("k", bson.MinKey{}), st("k", bson.MaxKey{})}}}).Err()
	var ce mongo.CommandError
	if !asCommandError(err, &ce) || ce.Code != int32(wire.DuplicateKey) || !strings.Contains(ce.Message, `"double"`) {
		t.Errorf("the merge: %v", err)
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); n != 503 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
}
