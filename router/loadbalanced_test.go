package router

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/internal/waits"
)

// TestLoadBalanced has a driver that knows only of a load balancer use cursors and transactions, which it pins to connections; cursors end with theirs.
func TestLoadBalanced(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "_id", 6)
	addr := e.addr
	c := connect(t, (&url.URL{Scheme: "mongodb", Host: addr, Path: "/", RawQuery: "loadBalanced=true"}).String())
	coll := c.Database(e.db).Collection("c")
	var docs []any
	for i := range 200 {
		docs = append(docs, d("_id", i))
	}
	if _, err := coll.InsertMany(e.ctx, docs); err != nil {
		t.Fatal(err)
	}
	cur, err := coll.Find(e.ctx, d(), options.Find().SetBatchSize(20).SetSort(d("_id", 1)))
	if err != nil {
		t.Fatal(err)
	}
	var all []bson.M
	if err := cur.All(e.ctx, &all); err != nil || len(all) != 200 {
		t.Errorf("%d documents, %v", len(all), err)
	}
	s, err := c.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(e.ctx)
	a := e.on("c", "b1", 0)
	_, err = s.WithTransaction(e.ctx, func(ctx context.Context) (any, error) {
		return coll.UpdateOne(ctx, d("_id", a), d("$set", d("x", 1)))
	})
	if err != nil {
		t.Error(err)
	}
	e.settled()
	if n, err := coll.CountDocuments(e.ctx, d("x", 1)); err != nil || n != 1 {
		t.Errorf("%d changed, %v", n, err)
	}
	if cur, err = coll.Find(e.ctx, d(), options.Find().SetBatchSize(20)); err != nil || e.router.cursors.count() != 1 {
		t.Fatalf("%v, %d cursors", err, e.router.cursors.count())
	}
	e.router.eachConn(func(c *Conn) { _ = c.nc.Close() })
	waits.Until(t, "the cursor ends with its connection", func() bool { return e.router.cursors.count() == 0 })
	_ = cur.Close(e.ctx)
}

// TestGetMoreElsewhere is 43 at once, whatever the id.
func TestGetMoreElsewhere(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	began := time.Now()
	_, err := e.raw(d("getMore", int64(1234567890123), "collection", "c"))
	wantCode(t, "getMore", err, 43)
	if took := time.Since(began); took > time.Second {
		t.Errorf("after %s", took)
	}
	for _, s := range servers {
		for _, c := range s.Received() {
			if strings.EqualFold(c.Name, "getMore") {
				t.Error("a backend was asked")
			}
		}
	}
}
