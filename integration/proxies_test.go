package integration

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

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
	}
	t.Logf("drops took %v", dropped)
}
