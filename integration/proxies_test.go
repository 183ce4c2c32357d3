package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

// threeProxies starts three proxies over three backends and a client of each.
func threeProxies(t *testing.T, args ...string) (clients []*mongo.Client, proxies []*running.Proxy) {
	t.Helper()
	f := fleettest.Start(t, backends)
	for range 3 {
		p := running.Test(t, f.Servers, args...)
		proxies = append(proxies, p)
		clients = append(clients, connect(t, p.URI()))
	}
	return clients, proxies
}

// What one proxy has told a client that it did is seen through every other at once: databases, collections made, dropped, renamed and sharded, documents.
func TestProxiesBehaveAsOne(t *testing.T) {
	clients, _ := threeProxies(t)
	ctx := t.Context()
	var dropped []time.Duration
	for i := range 12 {
		round := time.Now()
		a, b, c := clients[i%3], clients[(i+1)%3], clients[(i+2)%3]
		db := fmt.Sprintf("d%d", i%4)
		coll := func(m *mongo.Client, name string) *mongo.Collection { return m.Database(db).Collection(name) }
		count := func(m *mongo.Client, name string, want int64) {
			t.Helper()
			n, err := coll(m, name).CountDocuments(ctx, bson.D{})
			if err != nil || n != want {
				t.Fatalf("round %d: %s has %d documents (%v), want %d", i, name, n, err, want)
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		insert := func(m *mongo.Client, name string, n int) {
			t.Helper()
			for j := range n {
				_, err := coll(m, name).InsertOne(ctx, bson.D{{Key: "k", Value: j}})
				must(err)
			}
		}
		insert(a, "x", 1)
		count(b, "x", 1)
		insert(b, "x", 1)
		count(c, "x", 2)
		began := time.Now()
		must(coll(b, "x").Drop(ctx))
		dropped = append(dropped, time.Since(began))
		count(a, "x", 0)
		count(c, "x", 0)
		insert(c, "x", 3)
		count(a, "x", 3)
		must(a.Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: db + ".x"}, {Key: "to", Value: db + ".y"}, {Key: "dropTarget", Value: true}}).Err())
		count(b, "y", 3)
		count(c, "x", 0)
		must(coll(c, "y").Drop(ctx))
		command(t, b, "admin", shardCmd(db+".y", "k"))
		insert(a, "y", 5)
		count(c, "y", 5)
		_, err := coll(c, "y").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "z", Value: 1}}})
		must(err)
		specs, err := coll(a, "y").Indexes().ListSpecifications(ctx)
		must(err)
		if len(specs) < 3 {
			t.Fatalf("round %d: %d indexes", i, len(specs))
		}
		must(a.Database(db).Drop(ctx))
		count(b, "y", 0)
		count(c, "x", 0)
		t.Logf("round %d took %v", i, time.Since(round))
	}
	t.Logf("drops took %v", dropped)
}

// A backend that one proxy brings into the fleet is used by all, and settings made at one hold at all, within a second.
func TestFleetChangesReachEveryProxy(t *testing.T) {
	f := fleettest.Start(t, backends+1)
	fleettest.Need(t, f, fleet.ReplicaSet)
	var clients []*mongo.Client
	for range 3 {
		clients = append(clients, connect(t, running.Test(t, f.Servers[:backends]).URI()))
	}
	fourth := f.Servers[backends]
	command(t, clients[0], "admin", bson.D{{Key: "addShard", Value: fourth.SetName() + "/" + fourth.Addr()}, {Key: "name", Value: "b4"}})
	command(t, clients[1], "admin", shardCmd("wide.c", "k", bson.E{Key: "numInitialChunks", Value: 8}))
	for i := range 40 {
		if _, err := clients[i%3].Database("wide").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range clients {
		if n, err := c.Database("wide").Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 40 {
			t.Errorf("proxy %d: %d documents, %v", i, n, err)
		}
		if n, err := c.Database("config").Collection("chunks").CountDocuments(t.Context(), bson.D{{Key: "shard", Value: "b4"}}); err != nil || n != 2 {
			t.Errorf("proxy %d: %d partitions on b4, %v", i, n, err)
		}
	}
	for i, c := range clients {
		if n, err := c.Database("config").Collection("mongos").CountDocuments(t.Context(), bson.D{}); err != nil || n != 3 {
			t.Errorf("proxy %d: config.mongos has %d documents, %v", i, n, err)
		}
	}
	command(t, clients[2], "admin", bson.D{{Key: "balancerStop", Value: 1}})
	for i, c := range clients {
		eventually(t, 3*time.Second, fmt.Sprintf("proxy %d knows that the balancer is stopped", i), func(ctx context.Context) bool {
			raw, err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "balancerStatus", Value: 1}}).Raw()
			return err == nil && raw.Lookup("mode").StringValue() == "off"
		})
	}
}

// With the catalog's backend down everything that lives on the others goes on, through every proxy, after its closings, floors and leases have been
// renewed several times.
func TestCatalogDown(t *testing.T) {
	f := fleettest.Start(t, backends, fleettest.Durable)
	fleettest.Need(t, f, fleet.ReplicaSet, fleet.DurableCommits)
	var clients []*mongo.Client
	for range 2 {
		clients = append(clients, connect(t, running.Test(t, f.Servers, faultSettings...).URI()))
	}
	command(t, clients[0], "admin", bson.D{{Key: "enableSharding", Value: "far"}, {Key: "primaryShard", Value: "b2"}})
	command(t, clients[0], "admin", shardCmd("far.c", "k"))
	var keys []int // of documents that are not on b1
	for i := range 60 {
		if _, err := clients[0].Database("far").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range f.Servers[1:] {
		direct := connect(t, s.URI()).Database("far")
		names, err := direct.ListCollectionNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			var docs []struct{ K int }
			cur, err := direct.Collection(name).Find(t.Context(), bson.D{})
			if err == nil {
				err = cur.All(t.Context(), &docs)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range docs {
				keys = append(keys, d.K)
			}
		}
	}
	if len(keys) == 0 || len(keys) == 60 {
		t.Fatalf("%d of 60 documents are not on the catalog's backend", len(keys))
	}
	if err := f.Servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); { // several leases long
		for i, k := range keys {
			c := clients[i%2].Database("far").Collection("c")
			if _, err := c.UpdateOne(t.Context(), bson.D{{Key: "k", Value: k}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
				t.Fatalf("a write to another backend: %v", err)
			}
			if err := clients[(i+1)%2].Database("far").Collection("c").FindOne(t.Context(), bson.D{{Key: "k", Value: k}}).Err(); err != nil {
				t.Fatalf("a read of another backend: %v", err)
			}
			if _, err := clients[i%2].Database("far").Collection("plain").InsertOne(t.Context(), bson.D{{Key: "k", Value: k}}); err != nil {
				t.Fatalf("a write to an unsharded collection on another backend: %v", err)
			}
		}
	}
	if err := f.Servers[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "everything serves again", func(ctx context.Context) bool {
		n, err := clients[0].Database("far").Collection("c").CountDocuments(ctx, bson.D{})
		return err == nil && n == 60
	})
}
