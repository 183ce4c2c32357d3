package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

// TestProxyKilledInsideDDL kills a proxy at any moment of createIndexes, drop and renameCollection over several partitions. What it leaves is finished or undone by the other: an index is on
// all partitions or on none, a collection is there whole or not at all, under one name.
func TestProxyKilledInsideDDL(t *testing.T) {
	f := fleettest.Start(t, backends)
	fleettest.Need(t, f, fleet.ReplicaSet)
	victim, other := running.Test(t, f.Servers, faultSettings...), running.Test(t, f.Servers, faultSettings...)
	c := connect(t, other.URI())
	db := c.Database("ddlkill")
	var direct []*mongo.Client
	for _, s := range f.Servers {
		direct = append(direct, connect(t, s.URI()))
	}
	r := rand.New(rand.NewPCG(fromEnvironment(t, "SHARDWAY_FAULT_SEED", rand.Uint64()), 5))
	for round := range 3 {
		name, renamed := fmt.Sprintf("c%d", round), fmt.Sprintf("r%d", round)
		command(t, c, "admin", shardCmd("ddlkill."+name, "k", bson.E{Key: "numInitialChunks", Value: 6}))
		for i := range 20 {
			if _, err := db.Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
				t.Fatal(err)
			}
		}
		cmd, on := bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "z", Value: 1}}}, {Key: "name", Value: "z_1"}}}}}, "ddlkill"
		switch round % 3 {
		case 1:
			cmd = bson.D{{Key: "drop", Value: name}}
		case 2:
			cmd, on = bson.D{{Key: "renameCollection", Value: "ddlkill." + name}, {Key: "to", Value: "ddlkill." + renamed}}, "admin"
		}
		through := connect(t, victim.URI())
		if err := through.Ping(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			done <- through.Database(on).RunCommand(ctx, cmd).Err() // its fate does not matter
		}()
		time.Sleep(time.Duration(r.IntN(15)) * time.Millisecond) // any moment of it
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, killSettle, "no change of a map is left", func(ctx context.Context) bool {
			n, err := direct[0].Database("shardway").Collection("reshapes").CountDocuments(ctx, bson.D{})
			return err == nil && n == 0
		})
		checkDDL(t, db, direct, cmd[0].Key, name, renamed)
		if err := victim.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	noLeftovers(t, killSettle, f.Servers)
}

// checkDDL looks at what a command that was cut off has left.
func checkDDL(t *testing.T, db *mongo.Database, servers []*mongo.Client, cmd, name, renamed string) {
	t.Helper()
	count := func(name string) int64 {
		n, err := db.Collection(name).CountDocuments(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	names, err := db.ListCollectionNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	before, after := slices.Contains(names, name), slices.Contains(names, renamed)
	n, m := count(name), count(renamed)
	switch {
	case cmd == "createIndexes" && (!before || n != 20):
		t.Errorf("createIndexes left %d documents", n)
	case cmd == "drop" && !(before && n == 20 || !before && n == 0):
		t.Errorf("drop left %d documents; listed: %t", n, before)
	case cmd == "renameCollection" && !(before && !after && n == 20 && m == 0 || !before && after && n == 0 && m == 20):
		t.Errorf("rename left %d and %d documents; listed: %t, %t", n, m, before, after)
	}
	if cmd != "createIndexes" {
		return
	}
	with, all := 0, 0
	for _, s := range servers {
		homes, err := s.Database(db.Name()).ListCollectionNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for _, home := range homes {
			if home != name && !strings.HasPrefix(home, name+"@") {
				continue
			}
			specs, err := s.Database(db.Name()).Collection(home).Indexes().ListSpecifications(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all++
			if slices.ContainsFunc(specs, func(s mongo.IndexSpecification) bool { return s.Name == "z_1" }) {
				with++
			}
		}
	}
	if all < 6 || with != 0 && with != all {
		t.Errorf("the index is on %d of %d partitions", with, all)
	}
}
