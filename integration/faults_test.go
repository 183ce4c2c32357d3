package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// How long a run is: until so many reshapes have flipped, or so long. SHARDWAY_FAULT_RESHAPES and SHARDWAY_FAULT_SEED say otherwise.
const (
	faultReshapes = 12
	faultLimit    = 90 * time.Second // for each faultReshapes
)

func fromEnvironment(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestFaults runs reshapes under load on three proxies while processes are killed and stopped and links cut, held and delayed, and then looks whether every
// history holds and nothing is left over.
func TestFaults(t *testing.T) {
	seed := fromEnvironment(t, "SHARDWAY_FAULT_SEED", rand.Uint64())
	want := int64(fromEnvironment(t, "SHARDWAY_FAULT_RESHAPES", faultReshapes))
	t.Logf("SHARDWAY_FAULT_SEED=%d SHARDWAY_FAULT_RESHAPES=%d", seed, want)
	w := newFaulty(t, seed)
	quiet := options.Client().SetRetryWrites(false) // the test server forgets records when it is killed
	var plain []*mongo.Client
	for _, p := range w.proxies {
		plain = append(plain, connect(t, p.URI(), quiet))
	}
	command(t, w.clients[0], "admin", shardCmd("f.set", "k"))
	command(t, w.clients[1], "admin", shardCmd("f.registers", "k"))
	set, regs := newSetLoad(), &registers{began: time.Now()}
	for k := range registerCount {
		if _, err := w.clients[2].Database("f").Collection("registers").InsertOne(t.Context(), bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}, {Key: "v", Value: int64(0)}}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(want)*faultLimit/faultReshapes)
	defer cancel()
	errs := errorCounts{by: map[string]int{}}
	var load sync.WaitGroup
	for i := range 6 {
		r := rand.New(rand.NewPCG(seed, uint64(i)+10))
		c, p := w.clients[i%faultyProxies].Database("f").Collection("set"), plain[i%faultyProxies].Database("f").Collection("registers")
		load.Go(func() {
			for ctx.Err() == nil {
				errs.add(set.step(t.Context(), c, r))
				errs.add(regs.step(t.Context(), p, i, r))
			}
		})
	}
	var asked atomic.Int64
	for i, ns := range []string{"f.set", "f.registers"} {
		load.Go(func() { w.reshapes(ctx, ns, seed+uint64(i), &asked) })
	}
	load.Go(func() { w.faults(ctx) })
	for ctx.Err() == nil && w.flips(ctx) < want {
		time.Sleep(100 * time.Millisecond) // a poll of what others do
	}
	cancel()
	load.Wait()
	t.Logf("%d reshapes asked for, %d flipped; faults %v; errors %v", asked.Load(), w.flips(t.Context()), w.made, errs.by)
	w.settle()
	for i, c := range w.clients {
		if err := set.check(t.Context(), c.Database("f").Collection("set")); err != nil {
			t.Errorf("through proxy %d: %v", i, err)
		}
	}
	if err := regs.check(2 * time.Minute); err != nil {
		t.Error(err)
	}
	t.Logf("%d documents acknowledged, %d deleted, %d unanswered; %d operations on registers", len(set.there), len(set.gone), len(set.unsure), len(regs.ops))
	noLeftovers(t, killSettle, w.fleet.Servers)
	if all := w.pauses(); len(all) > 0 {
		slices.Sort(all)
		t.Logf("pauses at %d flips: p50 %.0f ms, p99 %.0f ms, longest %.0f ms", len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	}
	if n := w.flips(t.Context()); n < want/2 {
		t.Errorf("%d reshapes flipped, of %d: the run shows little", n, want)
	}
}

// settle waits until every proxy serves everything and no change of a map is left.
func (w *faulty) settle() {
	w.t.Helper()
	for i, c := range w.clients {
		eventually(w.t, killSettle, fmt.Sprintf("proxy %d serves all", i), func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			for _, name := range []string{"set", "registers"} {
				if _, err := c.Database("f").Collection(name).CountDocuments(ctx, bson.D{}); err != nil {
					return false
				}
			}
			return true
		})
	}
	eventually(w.t, killSettle, "no change of a map is left", func(ctx context.Context) bool {
		n, err := w.catalog.Database("shardway").Collection("reshapes").CountDocuments(ctx, bson.D{})
		return err == nil && n == 0
	})
}

// errorCounts counts errors by kind.
type errorCounts struct {
	mu sync.Mutex
	by map[string]int
}

func (e *errorCounts) add(err error) {
	if err == nil {
		return
	}
	e.mu.Lock()
	e.by[kindOf(err)]++
	e.mu.Unlock()
}
