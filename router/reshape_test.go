package router_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
)

// writer keeps inserting, changing and deleting documents of its own and remembers what was acknowledged.
type writer struct {
	coll  *mongo.Collection
	id    int
	state map[int32]int32 // _id → v of documents that must be there
	ops   int
	slow  time.Duration
}

func (w *writer) run(ctx context.Context, stop <-chan struct{}) error {
	rnd := rand.New(rand.NewPCG(uint64(w.id), 1))
	for n := int32(0); ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		began := time.Now()
		id := int32(w.id)*1000000 + n
		if _, err := w.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}, {Key: "v", Value: int32(0)}}); err != nil {
			return fmt.Errorf("insert %d: %w", id, err)
		}
		w.state[id] = 0
		old := int32(w.id)*1000000 + rnd.Int32N(n+1)
		if v, ok := w.state[old]; ok {
			if rnd.IntN(3) == 0 {
				res, err := w.coll.DeleteOne(ctx, bson.D{{Key: "_id", Value: old}, {Key: "k", Value: old}})
				if err != nil || res.DeletedCount != 1 {
					return fmt.Errorf("delete %d: %v, %w", old, res, err)
				}
				delete(w.state, old)
			} else {
				// By _id alone, without the key: the document is found first.
				res, err := w.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: old}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1}}}})
				if err != nil || res.ModifiedCount != 1 {
					return fmt.Errorf("update %d: %v, %w", old, res, err)
				}
				w.state[old] = v + 1
			}
		}
		w.slow = max(w.slow, time.Since(began))
		w.ops++
	}
}

// scan reads everything and returns _id → v; a document seen twice is an error.
func scan(ctx context.Context, c *mongo.Collection, opts ...options.Lister[options.FindOptions]) (map[int32]int32, error) {
	cur, err := c.Find(ctx, bson.D{}, opts...)
	if err != nil {
		return nil, err
	}
	got := map[int32]int32{}
	for cur.Next(ctx) {
		id := cur.Current.Lookup("_id").Int32()
		if _, twice := got[id]; twice {
			return nil, fmt.Errorf("%d twice", id)
		}
		got[id] = cur.Current.Lookup("v").Int32()
	}
	return got, cur.Err()
}

func TestReshapeUnderLoad(t *testing.T) {
	p := startProxy(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p.shard(t, "db.c", "k", 1)
	coll := p.client.Database("db").Collection("c")
	// A fixed part that nobody changes: every scan must see all of it.
	var fixed []any
	for i := range int32(3000) {
		fixed = append(fixed, bson.D{{Key: "_id", Value: -1 - i}, {Key: "k", Value: -1 - i}, {Key: "v", Value: int32(7)}})
	}
	if _, err := coll.InsertMany(ctx, fixed); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	errs := make(chan error, 10)
	var wg sync.WaitGroup
	var writers []*writer
	for i := range 3 {
		w := &writer{coll: coll, id: i + 1, state: map[int32]int32{}}
		writers = append(writers, w)
		wg.Go(func() { errs <- w.run(ctx, stop) })
	}
	scans := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				errs <- nil
				return
			default:
			}
			got, err := scan(ctx, coll, options.Find().SetBatchSize(500))
			for i := range int32(3000) {
				if err == nil && got[-1-i] != 7 {
					err = fmt.Errorf("scan %d misses %d", scans, -1-i)
				}
			}
			if err != nil {
				errs <- err
				return
			}
			scans++
			select { // leave the servers to the others for a while
			case <-time.After(100 * time.Millisecond):
			case <-stop:
			}
		}
	})
	m := func() *catalog.Map { return p.catalog.Snapshot().Map("db.c") }
	step := func(what string, err error) {
		if err != nil {
			close(stop)
			wg.Wait()
			t.Fatalf("%s: %v", what, err)
		}
	}
	for round := range 3 {
		for i := range 3 {
			at := m().Partitions[rand.IntN(len(m().Partitions))].Range.Lo
			step("split", p.split.SplitMedian(ctx, "db.c", at))
			pick := m().Partitions[(round+i)%len(m().Partitions)]
			step("move", p.split.Move(ctx, "db.c", pick.Range, fmt.Sprint("b", 1+(round+i)%3)))
		}
		parts := m().Partitions
		rg := parts[0].Range
		rg.Hi = parts[1].Range.Hi
		step("merge", p.split.Merge(ctx, "db.c", rg))
	}
	close(stop)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	got, err := scan(ctx, coll)
	if err != nil {
		t.Fatal(err)
	}
	ops, slow := 0, time.Duration(0)
	want := map[int32]int32{}
	for i := range int32(3000) {
		want[-1-i] = 7
	}
	for _, w := range writers {
		ops += w.ops
		slow = max(slow, w.slow)
		for id, v := range w.state {
			want[id] = v
		}
	}
	for id, v := range want {
		if g, ok := got[id]; !ok || g != v {
			t.Errorf("document %d: got %d (there: %v), want %d", id, g, ok, v)
		}
	}
	for id := range got {
		if _, ok := want[id]; !ok {
			t.Errorf("document %d is back", id)
		}
	}
	t.Logf("%d writer rounds, slowest %s, %d scans, %d partitions, map version %d", ops, slow, scans, len(m().Partitions), m().V)
	p.noLeftovers(t)
}

// noLeftovers checks that exactly the physical collections that the newest map names exist, once the retired ones are drained. What is left empty is what the stand-in made anew
// (docs/test-server.md), which the proxy looks for later.
func (p *proxy) noLeftovers(t *testing.T) {
	t.Helper()
	p.settled(t)
	want := map[string]bool{}
	for _, part := range p.catalog.Snapshot().Map("db.c").Partitions {
		want[part.Backend+" "+part.Physical] = true
	}
	var got map[string]bool
	defer func() {
		if t.Failed() {
			t.Logf("on the backends are %v, the map names %v", got, want)
		}
	}()
	waits.Until(t, "on the backends are the partitions that the map names and no others", func() bool {
		got = map[string]bool{}
		for i, s := range p.fleet.Servers {
			c := connect(t, s.URI())
			names, err := c.Database("db").ListCollectionNames(context.Background(), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			anew := false
			for _, n := range names {
				name := fmt.Sprint("b", i+1, " ", n)
				if n, err := c.Database("db").Collection(n).EstimatedDocumentCount(context.Background()); err == nil && n == 0 && !want[name] {
					anew = true
				}
				got[name] = true
			}
			if anew {
				p.split.Sweep(context.Background())
			}
			_ = c.Disconnect(context.Background())
		}
		return maps.Equal(got, want)
	})
}
