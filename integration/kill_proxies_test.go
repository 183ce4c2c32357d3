package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestKillOneOfThree kills one of three proxies again and again, while splits and moves go on, under clients that know all three and have the driver's defaults: what
// retryable reads and writes take is all that happens to them.
func TestKillOneOfThree(t *testing.T) {
	clients, proxies := threeProxies(t, faultSettings...)
	var hosts []string
	for _, p := range proxies {
		hosts = append(hosts, p.Addr())
	}
	client := connect(t, "mongodb://"+strings.Join(hosts, ",")+"/")
	command(t, clients[0], "admin", shardCmd("one.c", "k"))
	c := client.Database("one").Collection("c")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var inserted atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := int64(i*4 + w)
				limited, done := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
				if _, err := c.InsertOne(limited, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}); err != nil {
					t.Errorf("insert: %v", err)
				} else {
					inserted.Add(1)
				}
				if n, err := c.CountDocuments(limited, bson.D{{Key: "k", Value: id}}); err != nil || n != 1 {
					t.Errorf("count of _id %d: %d, %v", id, n, err)
				}
				if _, err := c.UpdateOne(limited, bson.D{{Key: "k", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
					t.Errorf("update: %v", err)
				}
				done()
			}
		})
	}
	wg.Go(func() {
		for at := 0; ctx.Err() == nil; at++ {
			limited, done := context.WithTimeout(ctx, 5*time.Second)
			_ = client.Database("admin").RunCommand(limited, bson.D{{Key: "split", Value: "one.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: int64(at)}}}}).Err()
			done()
		}
	})
	r := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		time.Sleep(time.Duration(500+r.IntN(1500)) * time.Millisecond) // when the kill comes does not matter
		p := proxies[r.IntN(len(proxies))]
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	n, err := c.CountDocuments(t.Context(), bson.D{{Key: "n", Value: 1}})
	if err != nil || n != inserted.Load() {
		t.Errorf("%d documents have been counted up once (%v), of %d", n, err, inserted.Load())
	}
	t.Logf("%d documents", inserted.Load())
}
