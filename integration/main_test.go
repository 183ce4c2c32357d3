package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/rawconn"
	"github.com/shardway/shardway/integration/running"
)

// backends is how many backends the proxies of these tests have.
const backends = 3

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code := fleettest.Main(m)
	if shared.proxy != nil {
		if err := shared.proxy.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the shared proxy:", err)
			code = 1
		}
		if code != 0 {
			text := shared.proxy.Log()
			fmt.Fprintf(os.Stderr, "the end of the shared proxy's log:\n%s\n", text[max(0, len(text)-4000):])
		}
		_ = os.RemoveAll(shared.dir)
	}
	if err := running.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// shared is the one proxy over the test binary's shared servers.
var shared struct {
	sync.Mutex
	proxy *running.Proxy
	dir   string
}

// sharedProxy is a proxy for tests that kill nothing and keep to databases of their own.
func sharedProxy(t *testing.T) *running.Proxy {
	t.Helper()
	servers := fleettest.Shared(t, backends)
	shared.Lock()
	defer shared.Unlock()
	if shared.proxy == nil {
		dir, err := os.MkdirTemp("", "shardway-integration-")
		if err != nil {
			t.Fatal(err)
		}
		o := running.Options{LogFile: filepath.Join(dir, "proxy.log")}
		for _, s := range servers {
			o.Backends = append(o.Backends, s.URI())
		}
		if shared.proxy, err = running.Start(context.Background(), o); err != nil {
			_ = os.RemoveAll(dir)
			t.Fatal(err)
		}
		shared.dir = dir
	}
	if !shared.proxy.Running() {
		t.Fatal("the shared proxy has died")
	}
	return shared.proxy
}

// direct is a server that is no backend of the shared proxy.
func direct(t *testing.T) *fleet.Server {
	t.Helper()
	return fleettest.Shared(t, backends+1)[backends]
}

// connect is a driver's client with default options but a shorter wait for a server.
func connect(t *testing.T, uri string, more ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	o := append([]*options.ClientOptions{options.Client().ApplyURI(uri).SetServerSelectionTimeout(30 * time.Second)}, more...)
	client, err := mongo.Connect(o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Disconnect(ctx) // its server may be dead by now
	})
	return client
}

func dial(t *testing.T, addr string) *rawconn.Conn {
	t.Helper()
	c, err := rawconn.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// long skips a test that takes minutes unless SHARDWAY_LONG=1 asks for it, as .ci/run does.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("SHARDWAY_LONG") != "1" {
		t.Skip("it takes minutes; SHARDWAY_LONG=1 runs it, as continuous integration does")
	}
}

// command runs a command that must succeed.
func command(t *testing.T, client *mongo.Client, db string, cmd bson.D) bson.Raw {
	t.Helper()
	reply, err := client.Database(db).RunCommand(t.Context(), cmd).Raw()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return reply
}

// ask runs a command over a raw connection and returns the reply, ok or not.
func ask(t *testing.T, c *rawconn.Conn, db string, cmd bson.D) bson.Raw {
	t.Helper()
	reply, err := c.Run(append(cmd[:len(cmd):len(cmd)], bson.E{Key: "$db", Value: db}))
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return reply
}

// must is ask for a command that must succeed, writeErrors included.
func must(t *testing.T, c *rawconn.Conn, db string, cmd bson.D) bson.Raw {
	t.Helper()
	reply := ask(t, c, db, cmd)
	if _, err := reply.LookupErr("writeErrors"); err == nil || !rawconn.OK(reply) {
		t.Fatalf("%v: %v", cmd, reply)
	}
	return reply
}

func shardCmd(ns, key string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: key, Value: "hashed"}}}}, more...)
}

// eventually tries until f says true; limit at most.
func eventually(t *testing.T, limit time.Duration, what string, f func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !f(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("never came: %s", what)
		case <-tick.C:
		}
	}
}

// number is what an environment variable says, or otherwise.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s is not a number", name, text)
	}
	return n
}

// chunk is a partition with its bounds as a client gives them.
type chunk struct {
	Min, Max bson.D
	Shard    string
}

func (c chunk) bounds() bson.A { return bson.A{c.Min, c.Max} }

// chunks are a collection's partitions, in order, as the newest map in the catalog says; catalog is connected to its backend.
func chunks(ctx context.Context, catalog *mongo.Client, ns string) ([]chunk, error) {
	var m struct {
		Key        bson.D
		Partitions []struct {
			Lo, Hi  *int64
			Backend string
		}
	}
	err := catalog.Database("shardway").Collection("maps").FindOne(ctx, bson.D{{Key: "_id.ns", Value: ns}},
		options.FindOne().SetSort(bson.D{{Key: "_id.v", Value: -1}})).Decode(&m)
	if err != nil {
		return nil, err
	}
	if len(m.Key) != 1 {
		return nil, fmt.Errorf("%s is not sharded", ns)
	}
	bound := func(end any) bson.D { return bson.D{{Key: m.Key[0].Key, Value: end}} }
	var all []chunk
	for i, p := range m.Partitions {
		c := chunk{Min: bound(bson.MinKey{}), Max: bound(bson.MaxKey{}), Shard: p.Backend}
		if i > 0 {
			c.Min = bound(*p.Lo)
		}
		if p.Hi != nil {
			c.Max = bound(*p.Hi)
		}
		all = append(all, c)
	}
	return all, nil
}
