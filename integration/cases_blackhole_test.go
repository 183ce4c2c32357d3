package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/link"
	"github.com/shardway/shardway/integration/rawconn"
	"github.com/shardway/shardway/integration/running"
)

const (
	holeDocs    = 90
	holeClients = 40
	holeRounds  = 25 // requests of each client

	// holeWait is how long whoever needs the silent backend waits for it, and holeLimit what a
	// request takes at most that does not wait for it, on a machine however busy.
	holeWait  = 2 * time.Minute
	holeLimit = time.Minute
)

// Case 40: a backend that accepts connections and says nothing, or resets them, costs only the requests that need it.
func TestCase40BlackHole(t *testing.T) {
	servers := fleettest.Start(t, backends).Servers
	hole, err := link.New(servers[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hole.Close() })
	o := running.Options{LogFile: filepath.Join(t.TempDir(), "proxy.log"), Backends: []string{servers[0].URI(), "mongodb://" + hole.Addr() + "/?directConnection=true", servers[2].URI()},
		Args: []string{"--pool-selection-timeout", holeWait.String()}}
	proxy, err := running.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Resume(); _ = proxy.Close() })
	c := dial(t, proxy.Addr())
	must(t, c, "admin", shardCmd("hole.c", "k"))
	docs := make([]any, holeDocs)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: int32(i)}, {Key: "k", Value: int32(i)}}
	}
	must(t, c, "hole", insertCmd(docs...))
	onHole := map[int32]bool{}
	s2 := dial(t, servers[1].Addr())
	colls, _ := batchOf(t, must(t, s2, "hole", bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}}))
	for _, coll := range colls {
		reply := must(t, s2, "hole", bson.D{{Key: "find", Value: coll.Lookup("name").StringValue()}, {Key: "batchSize", Value: int32(holeDocs + 1)}})
		there, _ := batchOf(t, reply)
		for _, d := range there {
			onHole[d.Lookup("_id").Int32()] = true
		}
	}
	if len(onHole) == 0 || len(onHole) == holeDocs {
		t.Fatalf("%d of %d documents are on the backend that will be silent", len(onHole), holeDocs)
	}
	before := keyed(t, proxy.Addr(), onHole)
	for name, fault := range map[string]func(){"silent": hole.BlackHole, "resetting": hole.Cut} {
		t.Run(name, func(t *testing.T) {
			fault()
			ctx, cancel := context.WithCancel(t.Context())
			var others sync.WaitGroup
			for range holeClients / 10 { // those that need all backends, meanwhile
				conn := dial(t, proxy.Addr())
				context.AfterFunc(ctx, func() { _ = conn.Close() })
				others.Go(func() {
					for ctx.Err() == nil {
						_, _ = conn.Run(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "hole"}})
					}
				})
			}
			during := keyed(t, proxy.Addr(), onHole)
			t.Logf("keyed finds: median %v before, %v during", before, during)
			if during > holeLimit {
				t.Errorf("finds on the other backends take %v: they wait for the silent one", during)
			}
			cancel()
			others.Wait()
			holeAnswers(t, proxy.Addr(), len(onHole))
			hole.Resume()
			eventually(t, time.Minute, "recovery without a restart", func(ctx context.Context) bool {
				reply := ask(t, c, "hole", bson.D{{Key: "count", Value: "c"}, {Key: "maxTimeMS", Value: int32(2000)}})
				n, _ := reply.Lookup("n").AsInt64OK()
				return rawconn.OK(reply) && n == holeDocs
			})
		})
	}
}

// keyed is the median of finds by key on the backends that answer; each of them must.
func keyed(t *testing.T, addr string, onHole map[int32]bool) time.Duration {
	t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for w := range holeClients {
		conn := dial(t, addr)
		wg.Go(func() {
			for i := range int32(holeRounds) {
				id := (int32(w)*holeRounds + i) % holeDocs
				if onHole[id] {
					continue
				}
				began := time.Now()
				reply, err := conn.Run(bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "k", Value: id}}}, {Key: "$db", Value: "hole"}})
				if err != nil || !rawconn.OK(reply) {
					t.Errorf("find of %d: %v, %v", id, reply, err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(took) == 0 {
		t.Fatal("nothing was found")
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// holeAnswers looks at what the proxy says of the backend that is gone.
func holeAnswers(t *testing.T, addr string, missing int) {
	t.Helper()
	c := dial(t, addr)
	began := time.Now()
	for _, cmd := range []string{"hello", "ping"} {
		must(t, c, "admin", bson.D{{Key: cmd, Value: 1}})
	}
	if took := time.Since(began); took > holeLimit {
		t.Errorf("hello and ping took %v", took)
	}
	began = time.Now()
	all := ask(t, c, "hole", bson.D{{Key: "find", Value: "c"}, {Key: "maxTimeMS", Value: int32(500)}})
	if code := rawconn.Code(all); code != 50 && code != 6 && code != 133 {
		t.Errorf("a find over all backends: %v", all)
	}
	if took := time.Since(began); took > holeLimit {
		t.Errorf("a find with maxTimeMS 500 took %v", took)
	}
	partial := ask(t, c, "hole", bson.D{{Key: "find", Value: "c"}, {Key: "allowPartialResults", Value: true}, {Key: "maxTimeMS", Value: int32(3000)}})
	var r struct {
		Cursor struct {
			FirstBatch []bson.Raw `bson:"firstBatch"`
			Partial    bool       `bson:"partialResultsReturned"`
		}
	}
	if err := bson.Unmarshal(partial, &r); err != nil || !rawconn.OK(partial) || len(r.Cursor.FirstBatch) != holeDocs-missing || !r.Cursor.Partial {
		t.Errorf("partial results: %s", fmt.Sprintf("%.300v", partial))
	}
	began = time.Now()
	if reply, err := c.Run(bson.D{{Key: "listDatabases", Value: 1}, {Key: "maxTimeMS", Value: int32(1000)}, {Key: "$db", Value: "admin"}}); err != nil {
		t.Errorf("listDatabases: %v, %v", reply, err)
	}
	if took := time.Since(began); took > holeLimit {
		t.Errorf("listDatabases took %v", took)
	}
}
