package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/link"
	"github.com/shardway/shardway/integration/running"
)

// faultyProxies is how many proxies a fault run has.
const faultyProxies = 3

// faultSettings make every duration of the protocol short, so that a run sees many of them end.
var faultSettings = []string{"--reshape-lease", "1500ms", "--reshape-lease-renew", "300ms", "--reshape-lease-margin", "200ms", "--reshape-backoff-min", "100ms",
	"--reshape-gate-wait", "2s", "--reshape-drain-limit", "10s"}

// What faultSettings and the backends of a fault run are set to.
const (
	faultLease    = 1700 * time.Millisecond // and the margin
	faultGateWait = 2 * time.Second
	faultLifetime = 2 * time.Second // of transactions
	faultLongest  = 3 * time.Second // how long a fault lasts at most, without what mending takes
	// faultGateLimit is how long gates may be closed when nothing is broken: the owner gives up after a second, and other proxies burn after faultGateWait.
	faultGateLimit = time.Second + faultGateWait + time.Second // and a second in which the burning is done and seen, on a busy machine
	// faultTakeover is how long after a proxy's death its change is taken over: a lease later when nothing else is broken. Two faults may follow.
	faultTakeover = faultLease + 2*(faultLongest+faultMend) + 10*time.Second
)

// faulty is three proxies over three backends, with a link of its own between each proxy and each backend, and before each proxy. One goroutine makes the faults.
type faulty struct {
	t       *testing.T
	fleet   *fleet.Fleet
	proxies []*running.Proxy
	links   [][]*link.Link // by proxy, by backend
	fronts  []*link.Link   // between the clients and each proxy
	logs    []string
	// clients are each proxy's, with the driver's defaults.
	clients []*mongo.Client
	catalog *mongo.Client
	random  *rand.Rand
	// mu orders faults and what needs all proxies up.
	mu sync.Mutex
	// made are the faults.
	made []madeFault
	// draining is the number of the backend that is being emptied, 0 for none; drained counts those that were.
	draining atomic.Int64
	drained  atomic.Int64
}

// madeFault is a fault and when it was.
type madeFault struct {
	kind     string
	proxy    int
	from, to time.Time
}

func newFaulty(t *testing.T, seed uint64) *faulty {
	t.Helper()
	w := &faulty{t: t, fleet: fleettest.Start(t, backends, fleettest.Durable), random: rand.New(rand.NewPCG(seed, 1))}
	fleettest.Need(t, w.fleet, fleet.ReplicaSet, fleet.DurableCommits)
	for j := range w.fleet.Servers {
		w.limitTransactions(j)
	}
	for i := range faultyProxies {
		var uris []string
		var links []*link.Link
		for _, s := range w.fleet.Servers {
			l, err := link.New(s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			links = append(links, l)
			uris = append(uris, "mongodb://"+l.Addr()+"/?directConnection=true")
		}
		log := filepath.Join(t.TempDir(), "proxy"+strconv.Itoa(i)+".log")
		p, err := running.Start(t.Context(), running.Options{Backends: uris, LogFile: log,
			Args: append([]string{"--log-level", "debug", "--reshape-check-interval", "500ms", "--transactions-lifetime", faultLifetime.String()}, faultSettings...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		front, err := link.New(p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = front.Close() })
		w.proxies, w.links, w.logs, w.fronts = append(w.proxies, p), append(w.links, links), append(w.logs, log), append(w.fronts, front)
		w.clients = append(w.clients, connect(t, w.uri(i)))
	}
	w.catalog = connect(t, w.fleet.Servers[0].URI())
	return w
}

// uri is how clients reach a proxy.
func (w *faulty) uri(i int) string { return "mongodb://" + w.fronts[i].Addr() + "/" }

// limitTransactions has a server abort transactions that are open for longer than limit, in seconds.
func limitTransactions(t *testing.T, s *fleet.Server, limit time.Duration) {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
	if err == nil {
		err = c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "transactionLifetimeLimitSeconds", Value: int(limit.Seconds())}}).Err()
		_ = c.Disconnect(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Errorf("%s: %v", s.Addr(), err)
	}
}

func (w *faulty) limitTransactions(j int) {
	if w.fleet.Has(fleet.TransactionLifetimeLimit) {
		limitTransactions(w.t, w.fleet.Servers[j], faultLifetime)
	}
}

// restartBackend starts a killed backend. Nobody sees it before it is set up again.
func (w *faulty) restartBackend(ctx context.Context, j int) error {
	for i := range w.links {
		w.links[i][j].Cut()
		defer w.links[i][j].Resume()
	}
	err := w.fleet.Servers[j].Restart(context.WithoutCancel(ctx))
	if err == nil {
		w.limitTransactions(j)
	}
	return err
}

// fault makes one fault, lets it last, and mends it.
func (w *faulty) fault(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, j := w.random.IntN(faultyProxies), w.random.IntN(backends)
	p, l, s := w.proxies[i], w.links[i][j], w.fleet.Servers[j]
	if w.random.IntN(backends+1) == backends {
		l = w.fronts[i]
	}
	lasts := time.Duration(w.random.Int64N(faultLongest.Milliseconds())) * time.Millisecond
	kinds := []string{"kill proxy", "stop proxy", "cut link", "hold link", "delay link", "stop backend", "kill backend"}
	kind := kinds[w.random.IntN(len(kinds))]
	made := madeFault{kind: kind, proxy: i, from: time.Now()}
	defer func() {
		made.to = time.Now()
		w.made = append(w.made, made)
	}()
	wait := func() {
		select {
		case <-time.After(lasts):
		case <-ctx.Done():
		}
	}
	check := func(err error) {
		if err != nil {
			w.t.Errorf("%s: %v", kind, err)
		}
	}
	switch kind {
	case "kill proxy":
		check(p.Kill())
		wait()
		check(p.Restart(context.WithoutCancel(ctx)))
	case "stop proxy":
		check(syscall.Kill(p.PID(), syscall.SIGSTOP))
		wait()
		check(syscall.Kill(p.PID(), syscall.SIGCONT))
	case "cut link":
		l.Cut()
		wait()
		l.Resume()
	case "hold link":
		l.BlackHole()
		wait()
		l.Resume()
	case "delay link":
		l.Delay(time.Duration(w.random.IntN(200)) * time.Millisecond)
		wait()
		l.Delay(0)
	case "stop backend":
		check(s.Freeze())
		wait()
		check(s.Thaw())
	case "kill backend":
		check(s.Kill())
		wait()
		check(w.restartBackend(ctx, j))
	}
}

// faults makes faults until ctx ends.
func (w *faulty) faults(ctx context.Context) {
	for ctx.Err() == nil {
		w.fault(ctx)
		select {
		case <-time.After(time.Duration(w.random.IntN(1500)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// faultKinds counts the faults by kind.
func (w *faulty) faultKinds() map[string]int {
	by := map[string]int{}
	for _, f := range w.made {
		by[f.kind]++
	}
	return by
}

// flips counts the reshapes that have flipped.
func (w *faulty) flips(ctx context.Context) int64 {
	n, err := w.catalog.Database("shardway").Collection("maps").CountDocuments(ctx, bson.D{
		{Key: "burnt", Value: bson.D{{Key: "$ne", Value: true}}}, {Key: "retired.0", Value: bson.D{{Key: "$exists", Value: true}}}})
	if err != nil {
		return 0
	}
	return n
}

// reshapes asks proxies for splits, moves and merges of a collection until ctx ends, several at a time.
func (w *faulty) reshapes(ctx context.Context, ns string, seed uint64, asked *atomic.Int64) {
	r := rand.New(rand.NewPCG(seed, 99))
	for ctx.Err() == nil {
		all, err := chunks(ctx, w.catalog, ns)
		if err != nil || len(all) == 0 {
			time.Sleep(20 * time.Millisecond) // a backend is down; nothing is raced for
			continue
		}
		i, to := r.IntN(len(all)), r.Int64N(backends)+1
		if to == w.draining.Load() {
			continue
		}
		var cmd bson.D
		switch k := r.IntN(3); {
		case len(all) < 4 || k == 0 && len(all) < 12:
			cmd = bson.D{{Key: "split", Value: ns}, {Key: "bounds", Value: all[i].bounds()}}
		case k == 1 && i+1 < len(all) && all[i].Shard == all[i+1].Shard:
			cmd = bson.D{{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{all[i].Min, all[i+1].Max}}}
		default:
			cmd = bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: all[i].bounds()}, {Key: "to", Value: fmt.Sprintf("b%d", to)}}
		}
		asked.Add(1)
		limited, cancel := context.WithTimeout(ctx, 15*time.Second)
		_ = w.clients[r.IntN(faultyProxies)].Database("admin").RunCommand(limited, cmd).Err() // its fate does not matter
		cancel()
	}
}
