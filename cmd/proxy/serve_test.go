package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
)

func backendArgs(servers ...*fleet.Server) []string {
	args := []string{"--listen", "127.0.0.1:0", "--catalog", "b1"}
	for i, s := range servers {
		args = append(args, "--backend", fmt.Sprintf("b%d=%s", i+1, s.URI()))
	}
	return args
}

// logged waits for a line of the log with the message and returns it.
func (p *program) logged(t *testing.T, message string) map[string]any {
	t.Helper()
	var found map[string]any
	eventually(t, "the log line "+message, func(context.Context) bool {
		for line := range strings.Lines(p.stderr.String()) {
			entry := map[string]any{}
			if json.Unmarshal([]byte(line), &entry) == nil && entry["message"] == message {
				found = entry
				return true
			}
		}
		return false
	})
	return found
}

func insertDirectly(t *testing.T, s *fleet.Server, db, coll string, id int) {
	t.Helper()
	if _, err := s.Command(t.Context(), bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}}}, {Key: "$db", Value: db}}); err != nil {
		t.Fatal(err)
	}
}

func TestServeAdoptsWhatIsThere(t *testing.T) {
	f := fleettest.Start(t, 2)
	insertDirectly(t, f.Servers[1], "shop", "orders", 7)
	p := start(t, append([]string{"serve"}, backendArgs(f.Servers...)...)...)
	addr := p.logged(t, "listening")["address"].(string)
	client := connect(t, "mongodb://"+addr+"/")
	var doc bson.D
	if err := client.Database("shop").Collection("orders").FindOne(t.Context(), bson.D{{Key: "_id", Value: 7}}).Decode(&doc); err != nil {
		t.Errorf("a document that was there before: %v", err)
	}
	p.terminate(t)
}

func TestServeRefusesOneDatabaseOnTwoBackends(t *testing.T) {
	f := fleettest.Start(t, 2)
	for _, s := range f.Servers {
		insertDirectly(t, s, "shop", "orders", 1)
	}
	_, errs, err := run(t, append([]string{"serve"}, backendArgs(f.Servers...)...)...)
	for _, want := range []string{"'shop'", "'b1'", "'b2'"} {
		if err == nil || !strings.Contains(errs, want) {
			t.Errorf("got %v, %s, want %s in it", err, errs, want)
		}
	}
}

func TestServeRefusesAStandaloneForTheCatalog(t *testing.T) {
	f := fleettest.Start(t, 1, fleettest.Standalone)
	_, errs, err := run(t, append([]string{"serve"}, backendArgs(f.Servers...)...)...)
	if err == nil || !strings.Contains(errs, "the catalog must be a replica set") {
		t.Errorf("got %v, %s", err, errs)
	}
}

// TestServeShardsDeclaredCollections starts twice from one file: the second start changes nothing.
func TestServeShardsDeclaredCollections(t *testing.T) {
	f := fleettest.Start(t, 2)
	insertDirectly(t, f.Servers[0], "old", "people", 1)
	if _, err := f.Servers[0].Command(t.Context(), bson.D{{Key: "createIndexes", Value: "people"}, {Key: "$db", Value: "old"},
		{Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k_1"}}}}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shardway.yaml")
	text := "collections:\n  Shop.Orders: {key: customer, partitions: 5, maxPartitionBytes: 2MB}\n  old.people: {key: k, partitions: 3}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := start(t, append([]string{"serve", "--config", path}, backendArgs(f.Servers...)...)...)
		p.logged(t, "listening")
		for ns, want := range map[string]int{"Shop.Orders": 5, "old.people": 1} {
			reply, err := f.Servers[0].Command(t.Context(), bson.D{{Key: "find", Value: "maps"}, {Key: "filter", Value: bson.D{{Key: "_id.ns", Value: ns}}},
				{Key: "sort", Value: bson.D{{Key: "_id.v", Value: -1}}}, {Key: "$db", Value: "shardway"}})
			if err != nil {
				t.Fatal(err)
			}
			maps, err := reply.Lookup("cursor", "firstBatch").Array().Values()
			if err != nil || len(maps) != 1 {
				t.Fatalf("%s has %d maps, %v, want one", ns, len(maps), err)
			}
			partitions, err := maps[0].Document().Lookup("partitions").Array().Values()
			if err != nil || len(partitions) != want {
				t.Errorf("%s has %d partitions, %v, want %d", ns, len(partitions), err, want)
			}
		}
		p.terminate(t)
	}
}

// TestServeDrains ends the proxy while a client is in the middle of a wait: the client gets its answer, and the
// process the exit code 0.
func TestServeDrains(t *testing.T) {
	f := fleettest.Start(t, 1)
	p := start(t, append([]string{"serve"}, backendArgs(f.Servers...)...)...)
	client := connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/")
	c := client.Database("shop").Collection("c")
	if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := f.Servers[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := c.InsertOne(context.Background(), bson.D{{Key: "_id", Value: 2}})
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a frozen server's client got %v", err)
	case <-time.After(300 * time.Millisecond): // the insert is on its way, or the test shows less
	}
	go func() {
		p.logged(t, "draining")
		if err := f.Servers[0].Thaw(); err != nil {
			t.Error(err)
		}
	}()
	p.terminate(t)
	if err := <-answered; err != nil {
		t.Errorf("the request in flight: %v", err)
	}
	p.logged(t, "ended")
}

func TestServeWaitsForTheCatalog(t *testing.T) {
	f := fleettest.Start(t, 1, fleettest.Durable)
	s := f.Servers[0]
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	p := start(t, append([]string{"serve", "--pool-selection-timeout", "200ms"}, backendArgs(s)...)...)
	p.logged(t, "waiting for the catalog's backend")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.logged(t, "listening")
	p.terminate(t)
}

// TestServeShutsDown: the command shutdown ends the process as SIGTERM does.
func TestServeShutsDown(t *testing.T) {
	f := fleettest.Start(t, 1)
	p := start(t, append([]string{"serve"}, backendArgs(f.Servers...)...)...)
	client := connect(t, "mongodb://"+p.logged(t, "listening")["address"].(string)+"/")
	if err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shutdown", Value: 1}}).Err(); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	select {
	case err := <-p.exited:
		if err != nil {
			t.Errorf("the process ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the process did not end")
	}
}
