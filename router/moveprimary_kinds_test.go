package router_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestMovePrimaryMovesEveryKind: views, capped and time-series collections and such with a default collation are moved like all others, while they are used.
func TestMovePrimaryMovesEveryKind(t *testing.T) {
	p := startProxy(t, 2)
	ctx := t.Context()
	if code := p.admin(t, bson.D{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "b1"}}); code != 0 {
		t.Fatal(code)
	}
	db := p.client.Database("db")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(db.CreateCollection(ctx, "ring", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20).SetMaxDocuments(20)))
	must(db.CreateCollection(ctx, "words", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	_, err := db.Collection("words").Indexes().CreateMany(ctx, []mongo.IndexModel{
		{Keys: bson.D{{Key: "w", Value: 1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{Key: "exact", Value: 1}}, Options: options.Index().SetUnique(true).SetCollation(&options.Collation{Locale: "simple"})}})
	must(err)
	series := db.CreateCollection(ctx, "series", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t").SetMetaField("m"))) == nil
	if !series {
		t.Log("the server has no time-series collections")
	}
	must(db.CreateView(ctx, "even", "words", mongo.Pipeline{st("$match", st("n", st("$mod", bson.A{2, 0})))}, options.CreateView().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	must(db.CreateView(ctx, "last", "ring", mongo.Pipeline{st("$sort", st("_id", -1)), st("$limit", 3)}))

	stop, halt := context.WithCancel(ctx)
	defer halt()
	var wg sync.WaitGroup
	var rings, words, measured int32
	load := func(name string, n *int32, doc func(int32) bson.D) {
		wg.Go(func() {
			for stop.Err() == nil {
				if _, err := db.Collection(name).InsertOne(ctx, doc(*n)); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				*n++
				time.Sleep(time.Millisecond)
			}
		})
	}
	load("ring", &rings, func(i int32) bson.D { return st("_id", i) })
	load("words", &words, func(i int32) bson.D {
		return bson.D{{Key: "w", Value: fmt.Sprint("word", i)}, {Key: "exact", Value: i}, {Key: "n", Value: i}}
	})
	if series {
		load("series", &measured, func(i int32) bson.D {
			return bson.D{{Key: "t", Value: time.UnixMilli(1e12 + int64(i)*1000)}, {Key: "m", Value: i % 3}, {Key: "v", Value: i}}
		})
	}
	wg.Go(func() {
		for stop.Err() == nil {
			cur, err := db.Collection("last").Find(ctx, bson.D{})
			var got []struct {
				ID int32 `bson:"_id"`
			}
			if err == nil {
				err = cur.All(ctx, &got)
			}
			if err != nil || len(got) == 3 && (got[0].ID != got[1].ID+1 || got[1].ID != got[2].ID+1) {
				t.Errorf("a view while it moves: %+v, %v", got, err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	for _, to := range []string{"b2", "b1", "b2"} {
		if err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "movePrimary", Value: "db"}, {Key: "to", Value: to}}).Err(); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
	}
	halt()
	wg.Wait()

	for _, m := range p.catalog.Snapshot().Maps {
		if m.Partitions[0].Backend != "b2" {
			t.Errorf("%s is on %s", m.NS, m.Partitions[0].Backend)
		}
	}
	cur, err := db.Collection("ring").Find(ctx, bson.D{})
	must(err)
	var ring []struct {
		ID int32 `bson:"_id"`
	}
	must(cur.All(ctx, &ring))
	for i, d := range ring {
		if d.ID != rings-int32(len(ring))+int32(i) || len(ring) != 20 {
			t.Fatalf("the capped collection after %d inserts: %+v", rings, ring)
		}
	}
	count := func(name string, filter bson.D, want int32) {
		t.Helper()
		if n, err := db.Collection(name).CountDocuments(ctx, filter); n != int64(want) || err != nil {
			t.Errorf("%s: %d documents, want %d; %v", name, n, want, err)
		}
	}
	count("words", bson.D{}, words)
	count("words", st("w", "WORD1"), 1)
	count("even", bson.D{}, (words+1)/2)
	count("even", st("w", "WORD2"), 1)
	if series {
		count("series", bson.D{}, measured)
	}
	if _, err := db.Collection("words").InsertOne(ctx, bson.D{{Key: "w", Value: "WORD0"}, {Key: "exact", Value: -1}}); !mongo.IsDuplicateKeyError(err) {
		t.Errorf("the index does not compare as before: %v", err)
	}
	if err := db.RunCommand(ctx, bson.D{{Key: "collMod", Value: "even"}, {Key: "viewOn", Value: "words"}, {Key: "pipeline", Value: bson.A{st("$limit", 1)}}}).Err(); err != nil {
		t.Error(err)
	}
	count("even", bson.D{}, 1)
	specs, err := db.ListCollectionSpecifications(ctx, bson.D{})
	must(err)
	kinds := map[string]string{}
	for _, s := range specs {
		if !strings.HasPrefix(s.Name, "system.") { // what some servers list of views and time series
			kinds[s.Name] = s.Type
		}
	}
	want := map[string]string{"ring": "collection", "words": "collection", "even": "view", "last": "view"}
	if series {
		want["series"] = "timeseries"
	}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("listed %v, want %v", kinds, want)
	}
	t.Logf("%d, %d and %d inserts meanwhile", rings, words, measured)
}
