package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
)

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	return client
}

// eventually tries until f says true; a minute at most.
func eventually(t *testing.T, what string, f func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !f(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("never came: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func pidOf(ctx context.Context, client *mongo.Client) int {
	var status struct {
		PID int `bson:"pid"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status); err != nil {
		return 0
	}
	return status.PID
}

var uriLine = regexp.MustCompile(`^uri: (mongodb://127\.0\.0\.1:\d+/)$`)

func uriOf(t *testing.T, p *program) string {
	t.Helper()
	line := p.line(t)
	m := uriLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("the line %q is not uri: mongodb://HOST:PORT/", line)
	}
	return m[1]
}

// hosts reads each backend's address from the proxy.
func hosts(t *testing.T, client *mongo.Client) map[string]string {
	t.Helper()
	var reply struct {
		Shards []struct {
			ID   string `bson:"_id"`
			Host string `bson:"host"`
		} `bson:"shards"`
	}
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "listShards", Value: 1}}).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, s := range reply.Shards {
		_, addr, _ := strings.Cut(s.Host, "/")
		all[s.ID] = addr
	}
	return all
}

func TestSandboxSurvivesTheDeathOfAnyChild(t *testing.T) {
	p := start(t, "sandbox", "--backends", "2", "--listen", "127.0.0.1:0", "--sample=false")
	client := connect(t, uriOf(t, p))
	c := client.Database("shop").Collection("c")
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardCollection", Value: "shop.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	docs := make([]any, 50)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	if _, err := c.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	all := func(ctx context.Context) bool {
		n, err := c.CountDocuments(ctx, bson.D{})
		return err == nil && n == int64(len(docs))
	}

	proxy := pidOf(t.Context(), client)
	if proxy == 0 || proxy == p.cmd.Process.Pid {
		t.Fatalf("the proxy's pid is %d, the sandbox's %d", proxy, p.cmd.Process.Pid)
	}
	kill(t, proxy)
	again := 0
	eventually(t, "another proxy on the same address", func(ctx context.Context) bool {
		again = pidOf(ctx, client)
		return again != 0 && again != proxy
	})
	eventually(t, "all documents through the new proxy", all)

	addrs := hosts(t, client)
	if len(addrs) != 2 {
		t.Fatalf("listShards shows %v", addrs)
	}
	children := []int{again}
	for id, addr := range addrs {
		pid := serverPID(t.Context(), addr)
		if pid == 0 {
			t.Fatalf("%s has no pid", id)
		}
		kill(t, pid)
		eventually(t, id+" back", func(ctx context.Context) bool {
			now := serverPID(ctx, addr)
			if now != 0 && now != pid {
				children = append(children, now)
				return true
			}
			return false
		})
	}
	eventually(t, "all documents after every backend died", all)
	for _, want := range []string{"proxy1 died", "backend1 died", "backend2 died", "proxy1 is back", "backend1 is back", "backend2 is back"} {
		eventually(t, "the line "+want, func(context.Context) bool { return strings.Contains(p.stderr.String(), want) })
	}

	p.terminate(t)
	for _, pid := range children {
		if alive(pid) {
			t.Errorf("process %d outlives the sandbox", pid)
		}
	}
	for line := range p.lines {
		t.Errorf("one more line on standard output: %q", line)
	}
}

func TestSandboxChildrenDieWithIt(t *testing.T) {
	p := start(t, "sandbox", "--backends", "1", "--listen", "127.0.0.1:0", "--sample=false")
	client := connect(t, uriOf(t, p))
	pids := []int{pidOf(t.Context(), client)}
	for _, addr := range hosts(t, client) {
		pids = append(pids, serverPID(t.Context(), addr))
	}
	kill(t, p.cmd.Process.Pid)
	for _, pid := range pids {
		if pid == 0 {
			t.Fatalf("pids %v", pids)
		}
		eventually(t, "the end of "+strconv.Itoa(pid), func(context.Context) bool { return !alive(pid) })
	}
}

// TestSandboxSample waits for the sample: every order there, and partitions that have split.
func TestSandboxSample(t *testing.T) {
	p := start(t, "sandbox", "--backends", "2", "--listen", "127.0.0.1:0")
	client := connect(t, uriOf(t, p))
	eventually(t, "what to type next", func(context.Context) bool { return strings.Contains(p.stderr.String(), "sh.status()") })
	text := p.stderr.String()
	for _, want := range []string{"all 20000 orders are in", "2 partitions (1+1)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q was not said in:\n%s", want, text)
		}
	}
	if n, err := client.Database("sample").Collection("orders").CountDocuments(t.Context(), bson.D{}); err != nil || n != 20_000 {
		t.Errorf("%d orders, %v", n, err)
	}
	eventually(t, "a split", func(ctx context.Context) bool {
		n, err := client.Database("config").Collection("chunks").CountDocuments(ctx, bson.D{})
		return err == nil && n > 2
	})
	p.terminate(t)
}

func TestSandboxRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"--backends", "0"}, {"--proxies", "-1"}, {"--listen", "here"}, {"--max-partition-bytes", "0"}, {"--server", "/nonexistent/mongod"}, {"extra"}} {
		if _, errs, err := run(t, append([]string{"sandbox"}, args...)...); err == nil || errs == "" {
			t.Errorf("%v: %v, %q", args, err, errs)
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// serverPID asks a database server for its pid; 0 when it does not answer.
func serverPID(ctx context.Context, addr string) int {
	reply, err := fleet.Command(ctx, addr, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
	if err != nil {
		return 0
	}
	pid, _ := reply.Lookup("pid").AsInt64OK()
	return int(pid)
}

// TestSandboxProxies: three proxies are three lines, and one with a connection string of all; what is written through one is read through each, and through all.
func TestSandboxProxies(t *testing.T) {
	p := start(t, "sandbox", "--backends", "2", "--proxies", "3", "--sample=false", "--listen", "127.0.0.1:0")
	var uris, addrs []string
	for range 3 {
		uri := uriOf(t, p)
		uris = append(uris, uri)
		addrs = append(addrs, strings.TrimSuffix(strings.TrimPrefix(uri, "mongodb://"), "/"))
	}
	all, want := p.line(t), "all: mongodb://"+strings.Join(addrs, ",")+"/"
	if all != want {
		t.Fatalf("the fourth line is %q, want %q", all, want)
	}
	if _, err := connect(t, uris[0]).Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	for _, uri := range append(uris, strings.TrimPrefix(all, "all: ")) {
		if n, err := connect(t, uri).Database("d").Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
			t.Errorf("%s: %d documents, %v", uri, n, err)
		}
	}
	p.terminate(t)
}
