package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

const (
	killRounds  = 2    // of each kind, by default; SHARDWAY_KILL_ROUNDS says otherwise
	killDocs    = 1200 // that are there before the first reshape
	killWriters = 3
	killSettle  = 90 * time.Second // for leases to run out, reshapes to be taken up and leftovers to be dropped
)

// shortLeases make a crash cost seconds instead of minutes.
var shortLeases = []string{"--reshape-lease", "1s", "--reshape-lease-renew", "200ms", "--reshape-lease-margin", "200ms",
	"--reshape-backoff-min", "100ms"}

// history is what writers did: what must be there, and what may be.
type history struct {
	mu sync.Mutex
	// wrote is each document's last acknowledged value; -1 is deleted.
	wrote map[int32]int32
	// open is each document's value whose write got no answer: the old one and this one are both right.
	open map[int32]int32
	next int32
	errs map[string]int
}

// step does one write of writer w: an insert, an update or a delete of a document that no other writer touches.
func (h *history) step(ctx context.Context, c *mongo.Collection, w int32, r *rand.Rand) {
	h.mu.Lock()
	var id, value int32
	insert := r.IntN(3) == 0 || len(h.wrote) == 0
	if insert {
		h.next++
		id, value = h.next*killWriters+w, 1
	} else {
		id = r.Int32N(h.next+1)*killWriters + w
		old, known := h.wrote[id]
		if _, unsure := h.open[id]; !known || unsure || old < 0 {
			h.mu.Unlock()
			return
		}
		if value = old + 1; r.IntN(6) == 0 {
			value = -1
		}
	}
	h.open[id] = value
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	filter := bson.D{{Key: "_id", Value: id}, {Key: "k", Value: keyOf(id)}}
	var err error
	switch {
	case insert:
		_, err = c.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: keyOf(id)}, {Key: "v", Value: value}})
	case value < 0:
		_, err = c.DeleteOne(ctx, filter)
	default:
		_, err = c.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: value}}}})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.wrote[id] = value
		delete(h.open, id)
		return
	}
	h.errs[kindOf(err)]++
}

func keyOf(id int32) string { return fmt.Sprintf("k%d", id%97) }

func kindOf(err error) string {
	var command mongo.CommandError
	switch {
	case mongo.IsNetworkError(err):
		return "network"
	case errors.As(err, &command):
		return fmt.Sprintf("%d %s", command.Code, command.Name)
	case mongo.IsTimeout(err):
		return "timeout"
	}
	return err.Error()
}

// check compares every document with the history.
func (h *history) check(ctx context.Context, c *mongo.Collection) error {
	cursor, err := c.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var docs []struct {
		ID int32 `bson:"_id"`
		V  int32
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	got := map[int32]int32{}
	for _, d := range docs {
		if _, twice := got[d.ID]; twice {
			return fmt.Errorf("_id %d is there twice", d.ID)
		}
		got[d.ID] = d.V
	}
	valueOf := func(id int32) int32 {
		if v, ok := got[id]; ok {
			return v
		}
		return -1
	}
	for id, want := range h.wrote {
		v := valueOf(id)
		if maybe, unsure := h.open[id]; v != want && !(unsure && v == maybe) {
			return fmt.Errorf("_id %d is %d, acknowledged was %d (unanswered: %d, %v)", id, v, want, maybe, unsure)
		}
	}
	for id, v := range got {
		_, acknowledged := h.wrote[id]
		if maybe, unsure := h.open[id]; !acknowledged && !(unsure && v == maybe) {
			return fmt.Errorf("_id %d is %d, and nobody wrote it", id, v)
		}
	}
	return nil
}

// arena is a proxy over servers of its own, with writers.
type arena struct {
	t       *testing.T
	fleet   *fleet.Fleet
	proxy   *running.Proxy
	client  *mongo.Client // of the writers and the reshapes: retryWrites=false, since the test server forgets them when it dies
	catalog *mongo.Client
	coll    *mongo.Collection
	history *history
	random  *rand.Rand
	stop    context.CancelFunc
	writers sync.WaitGroup
}

func newArena(t *testing.T) *arena {
	f := fleettest.Start(t, backends, fleettest.Durable)
	fleettest.Need(t, f, fleet.ReplicaSet, fleet.DurableCommits)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	a := &arena{t: t, fleet: f, proxy: running.Test(t, f.Servers, shortLeases...), random: rand.New(rand.NewPCG(seed, 1)),
		history: &history{wrote: map[int32]int32{}, open: map[int32]int32{}, errs: map[string]int{}}}
	a.client = connect(t, a.proxy.URI()+"?retryWrites=false")
	a.catalog = connect(t, f.Servers[0].URI())
	a.coll = a.client.Database("arena").Collection("c")
	command(t, a.client, "admin", shardCmd("arena.c", "k"))
	docs := make([]any, 0, killDocs)
	for i := range int32(killDocs) {
		a.history.wrote[i] = 1
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: keyOf(i)}, {Key: "v", Value: int32(1)}})
	}
	a.history.next = killDocs / killWriters
	if _, err := a.coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	a.stop = stop
	for w := range int32(killWriters) {
		a.writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)+2))
			for ctx.Err() == nil {
				a.history.step(context.WithoutCancel(ctx), a.coll, w, r)
			}
		})
	}
	t.Cleanup(func() { stop(); a.writers.Wait() })
	return a
}

// reshape issues a reshape of this kind, whose fate does not matter; the channel is closed when its command has returned.
func (a *arena) reshape(kind string) <-chan struct{} {
	a.t.Helper()
	all, err := chunks(a.t.Context(), a.catalog, "arena.c")
	if err != nil {
		a.t.Fatal(err)
	}
	i := a.random.IntN(len(all))
	var cmds []bson.D
	move := func(c chunk, to string) bson.D {
		return bson.D{{Key: "moveChunk", Value: "arena.c"}, {Key: "bounds", Value: c.bounds()}, {Key: "to", Value: to}}
	}
	switch kind {
	case "split":
		cmds = append(cmds, bson.D{{Key: "split", Value: "arena.c"}, {Key: "bounds", Value: all[i].bounds()}})
	case "move":
		to := fmt.Sprintf("b%d", a.random.IntN(backends)+1)
		if to == all[i].Shard {
			to = fmt.Sprintf("b%d", (int(to[1]-'0')%backends)+1)
		}
		cmds = append(cmds, move(all[i], to))
	default: // merge, which needs two neighbours on one backend
		i = a.random.IntN(len(all) - 1)
		if all[i].Shard != all[i+1].Shard {
			cmds = append(cmds, move(all[i], all[i+1].Shard))
		}
		cmds = append(cmds, bson.D{{Key: "mergeChunks", Value: "arena.c"}, {Key: "bounds", Value: bson.A{all[i].Min, all[i+1].Max}}})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, cmd := range cmds {
			ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
			err := a.client.Database("admin").RunCommand(ctx, cmd).Err()
			cancel()
			if err != nil {
				return
			}
		}
	}()
	return done
}

// settle looks at everything after a kill: the proxy serves, all is as the history says, nothing is left over.
func (a *arena) settle(what string) {
	a.t.Helper()
	eventually(a.t, killSettle, what+": all partitions serve", func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := a.coll.CountDocuments(ctx, bson.D{})
		return err == nil
	})
	eventually(a.t, killSettle, what+": the reshape is over", func(ctx context.Context) bool {
		n, err := a.catalog.Database("shardway").Collection("reshapes").CountDocuments(ctx, bson.D{})
		return err == nil && n == 0
	})
}

// end stops the writers and checks.
func (a *arena) end() {
	a.t.Helper()
	a.stop()
	a.writers.Wait()
	a.settle("at the end")
	reader := connect(a.t, a.proxy.URI(), options.Client().SetRetryReads(true))
	if err := a.history.check(a.t.Context(), reader.Database("arena").Collection("c")); err != nil {
		a.t.Error(err)
	}
	noLeftovers(a.t, killSettle, a.fleet.Servers)
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	a.t.Logf("%d documents written, %d writes unanswered, errors %v", len(a.history.wrote), len(a.history.open), a.history.errs)
}

// awaitLog waits until the proxy's log has text after offset; it gives up after the limit, for a reshape may fail.
func (a *arena) awaitLog(offset int, text string, limit time.Duration) bool {
	end := time.Now().Add(limit)
	for time.Now().Before(end) {
		if log := a.proxy.Log(); len(log) > offset && strings.Contains(log[offset:], text) {
			return true
		}
		time.Sleep(time.Millisecond) // a poll, as fine as a file allows
	}
	return false
}

// TestKillProxyAtEachPhase kills the proxy with SIGKILL when a reshape enters each of its phases.
func TestKillProxyAtEachPhase(t *testing.T) {
	if testing.Short() {
		t.Skip("kills take a minute")
	}
	a := newArena(t)
	for range max(1, number(t, "SHARDWAY_KILL_ROUNDS", killRounds)/2) {
		for _, kind := range []string{"split", "move", "merge"} {
			for _, phase := range []string{"copy", "follow", "verify", "close", "retire"} {
				offset := len(a.proxy.Log())
				done := a.reshape(kind)
				if !a.awaitLog(offset, `"phase":"`+phase+`"`, 15*time.Second) {
					t.Logf("%s never came to %s", kind, phase)
				}
				a.restartProxy(done)
				a.settle(kind + " killed at " + phase)
			}
		}
	}
	a.end()
}

func (a *arena) restartProxy(done <-chan struct{}) {
	a.t.Helper()
	if err := a.proxy.Kill(); err != nil {
		a.t.Fatal(err)
	}
	if err := a.proxy.Restart(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	<-done
}

// TestKillProxyAtRandom kills the proxy at any moment of any reshape.
func TestKillProxyAtRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("kills take a minute")
	}
	a := newArena(t)
	for round := range number(t, "SHARDWAY_KILL_ROUNDS", killRounds) {
		done := a.reshape([]string{"split", "move", "merge"}[a.random.IntN(3)])
		time.Sleep(time.Duration(a.random.IntN(700)) * time.Millisecond) // the random moment
		a.restartProxy(done)
		a.settle(fmt.Sprintf("round %d", round))
	}
	a.end()
}

// TestKillBackend kills a backend at the phases in which it is needed, and starts it again.
func TestKillBackend(t *testing.T) {
	if testing.Short() {
		t.Skip("kills take a minute")
	}
	a := newArena(t)
	for round := range number(t, "SHARDWAY_KILL_ROUNDS", killRounds) {
		for _, phase := range []string{"copy", "follow", "close"} {
			offset := len(a.proxy.Log())
			done := a.reshape([]string{"split", "move"}[round%2])
			if !a.awaitLog(offset, `"phase":"`+phase+`"`, 15*time.Second) {
				t.Logf("round %d never came to %s", round, phase)
			}
			victim := a.fleet.Servers[a.random.IntN(backends)]
			if err := victim.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := victim.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-done
			a.settle(fmt.Sprintf("round %d, backend killed at %s", round, phase))
		}
	}
	a.end()
}
