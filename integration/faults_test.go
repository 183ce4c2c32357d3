package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
)

// How long a run is: until so many reshapes have flipped, or so long. SHARDWAY_FAULT_RESHAPES and SHARDWAY_FAULT_SEED say otherwise; with SHARDWAY_FAULT_NONE=1 nothing is
// broken, so that the report shows what the faults cost.
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
	defer w.explain()
	// Retried increments count only where a server knows what it has executed: the stand-in by itself forgets that when it is killed.
	registersBy := options.Client().SetRetryWrites(w.fleet.Has(fleet.RetryRecordsSurviveRestart) && w.fleet.Has(fleet.ConcurrentRetries))
	var plain []*mongo.Client
	for i := range w.proxies {
		plain = append(plain, connect(t, w.uri(i), registersBy))
	}
	for i, ns := range faultNamespaces {
		command(t, w.clients[i], "admin", shardCmd("f."+ns, "k"))
	}
	set, regs := newSetLoad(), &registers{began: time.Now()}
	for k := range registerCount {
		if _, err := w.clients[2].Database("f").Collection("registers").InsertOne(t.Context(), bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}, {Key: "v", Value: int64(0)}}); err != nil {
			t.Fatal(err)
		}
	}
	money := newTransfers(t, w.clients[0].Database("f").Collection("accounts"), !w.fleet.Has(fleet.SnapshotsSurviveRestart))
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
	for i, client := range w.clients {
		r := rand.New(rand.NewPCG(seed, uint64(i)+50))
		load.Go(func() {
			for ctx.Err() == nil {
				errs.add(money.step(t.Context(), client.Database("f").Collection("accounts"), r))
			}
		})
	}
	var asked atomic.Int64
	for i, ns := range faultNamespaces {
		load.Go(func() { w.reshapes(ctx, "f."+ns, seed+uint64(i), &asked) })
	}
	load.Go(func() { w.drains(ctx, seed) })
	if fromEnvironment(t, "SHARDWAY_FAULT_NONE", 0) == 0 {
		load.Go(func() { w.faults(ctx) })
	}
	for ctx.Err() == nil && w.flips(ctx) < want {
		time.Sleep(100 * time.Millisecond) // a poll of what others do
	}
	cancel()
	load.Wait()
	flips := w.flips(t.Context())
	t.Logf("%d reshapes asked for, %d flipped; %d backends drained; faults %v; errors %v", asked.Load(), flips, w.drained.Load(), w.faultKinds(), errs.by)
	w.settle()
	for i, c := range w.clients {
		if err := set.check(t.Context(), c.Database("f").Collection("set")); err != nil {
			t.Errorf("through proxy %d: %v", i, err)
		}
		if err := money.check(t.Context(), c.Database("f").Collection("accounts")); err != nil {
			t.Errorf("through proxy %d: %v", i, err)
		}
	}
	if err := regs.check(2 * time.Minute); err != nil {
		t.Error(err)
	}
	t.Logf("%d documents acknowledged, %d deleted, %d unanswered; %d operations on registers; %d transfers acknowledged, of %d, and %d snapshots of their sums, beside %d that the server forgot",
		len(set.there), len(set.gone), len(set.unsure), len(regs.ops), len(money.acked), money.next-firstTransfer, money.looks, money.blind)
	noLeftovers(t, killSettle, w.fleet.Servers)
	report := w.report()
	t.Log(report)
	if report.blameless > faultGateLimit {
		t.Errorf("gates were closed for %s, beside faults: %s; the limit is %s", report.blameless, report.worst, faultGateLimit)
	}
	if n := len(report.takeovers); n > 0 && report.takeovers[n-1] > faultTakeover {
		t.Errorf("a dead proxy's change was taken over after %s", report.takeovers[n-1])
	}
	if flips < want/2 {
		t.Errorf("%d reshapes flipped, of %d: the run shows little", flips, want)
	}
	if len(money.acked) == 0 || money.looks == 0 {
		t.Error("no transfers, or nobody has looked at them: the run shows little")
	}
}

// faultNamespaces are the collections of a run, in the database f.
var faultNamespaces = []string{"set", "registers", "accounts"}

// settle waits until every proxy serves everything and no change of a map is left.
func (w *faulty) settle() {
	w.t.Helper()
	for i, c := range w.clients {
		eventually(w.t, killSettle, fmt.Sprintf("proxy %d serves all", i), func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			for _, name := range faultNamespaces {
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
