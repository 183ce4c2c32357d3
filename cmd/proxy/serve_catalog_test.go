package main

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/member"
)

// TestWrongCatalog: a proxy that is given another catalog than its backends' must not start, since what its catalog does not name would be dropped; also on
// backends that were not marked yet.
func TestWrongCatalog(t *testing.T) {
	f := fleettest.Start(t, 2)
	args := append([]string{"serve"}, backendArgs(f.Servers...)...)
	p := start(t, args...)
	client := connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/")
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardCollection", Value: "shop.orders"}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	if _, err := client.Database("shop").Collection("orders").InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	p.terminate(t)

	there := func() (n int64) {
		t.Helper()
		for _, s := range f.Servers {
			db := connect(t, s.URI()).Database("shop")
			names, err := db.ListCollectionNames(t.Context(), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				m, err := db.Collection(name).CountDocuments(t.Context(), bson.D{})
				if err != nil {
					t.Fatal(err)
				}
				n += m
			}
		}
		return n
	}
	wrong := append([]string(nil), args...)
	for i, a := range wrong {
		if a == "--catalog" {
			wrong[i+1] = "b2"
		}
	}
	refused := func(why string) {
		t.Helper()
		p := start(t, wrong...)
		select {
		case err := <-p.exited:
			if err == nil || !strings.Contains(p.stderr.String(), why) {
				t.Errorf("it ended with %v and said %s", err, p.stderr.String())
			}
		case <-time.After(time.Minute):
			t.Error("it goes on with the wrong catalog")
			p.terminate(t)
		}
		if n := there(); n != 100 {
			t.Fatalf("%d documents, want 100", n)
		}
	}
	refused("belongs to the fleet with the clusterId")
	for _, s := range f.Servers { // as a program without marks would have left it
		if _, err := connect(t, s.URI()).Database(catalog.MemberDB).Collection(member.Fleet).DeleteMany(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
	}
	refused("this catalog names none on it")
	lost := func(why string) {
		t.Helper()
		p := start(t, args...)
		select {
		case err := <-p.exited:
			if err == nil || !strings.Contains(p.stderr.String(), why) {
				t.Errorf("it ended with %v and said %s", err, p.stderr.String())
			}
		case <-time.After(time.Minute):
			t.Error("it goes on with servers that have lost their marks")
			p.terminate(t)
		}
	}
	lost("is missing")
	// A catalog that an older program has written knows no marks: what is on the backends decides.
	if _, err := connect(t, f.Servers[0].URI()).Database(catalog.DB).Collection("backends").UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$unset", Value: bson.D{{Key: "token", Value: ""}}}}); err != nil {
		t.Fatal(err)
	}
	p = start(t, args...)
	client = connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/")
	if n, err := client.Database("shop").Collection("orders").CountDocuments(t.Context(), bson.D{}); n != 100 || err != nil {
		t.Errorf("with its own catalog: %d documents, %v", n, err)
	}
	p.terminate(t)
}
