package integration

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/running"
)

// A proxy that is given a wrong list of backends does not start, leaves nothing in the catalog, and
// makes nobody drop anything; the proxies that run go on, and one with the right list starts.
func TestWrongBackendListLosesNothing(t *testing.T) {
	for _, unsharded := range []bool{false, true} {
		for what, numbers := range map[string]struct {
			ids     []string
			servers []int
			says    []string
		}{
			"two addresses swapped": {ids: []string{"b1", "b2", "b3"}, servers: []int{1, 3, 2}, says: []string{
				"is the backend 'b3' of this fleet, and it was given as 'b2'", "is the backend 'b2' of this fleet, and it was given as 'b3'"}},
			"a second id for one address": {ids: []string{"b1", "b2", "b3", "backend9"}, servers: []int{1, 2, 3, 2}, says: []string{
				"is the backend 'b2' of this fleet, and it was given as 'backend9'"}},
			"other ids for all": {ids: []string{"x1", "x2", "x3"}, servers: []int{1, 2, 3}, says: []string{
				"is the backend 'b1' of this fleet, and it was given as 'x1'", "is the backend 'b3' of this fleet, and it was given as 'x3'"}},
		} {
			t.Run(what+map[bool]string{true: " beside an unsharded database"}[unsharded], func(t *testing.T) {
				w := newMistakeWorld(t, backends)
				client := connect(t, running.Test(t, w.servers, mistakeSettings...).URI())
				w.fill(client, unsharded)
				w.refused(running.Options{Backends: w.uris(numbers.servers...), IDs: numbers.ids}, append(numbers.says, w.servers[1].Addr())...)
				sweeps(t)
				w.whole("after the wrong start")
				w.served(client)
				if ids := w.backendsIn(); ids != "[b1 b2 b3]" {
					t.Errorf("the catalog has %s", ids)
				}
				w.served(connect(t, running.Test(t, w.servers, mistakeSettings...).URI()))
				w.whole("with the right list again")
			})
		}
	}
}

// A second id for a server, which an older version has registered, is used by no proxy that runs, and leaves the catalog when one starts.
func TestSecondIDOfAnOlderVersionLeavesTheCatalog(t *testing.T) {
	w := newMistakeWorld(t, backends)
	client := connect(t, running.Test(t, w.servers, mistakeSettings...).URI())
	w.fill(client, true)
	if _, err := w.direct[0].Database("shardway").Collection("backends").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: "x2"}, {Key: "uri", Value: w.servers[1].URI()}, {Key: "host", Value: w.servers[1].Addr()}}); err != nil {
		t.Fatal(err)
	}
	sweeps(t)
	w.whole("with a second id in the catalog")
	w.served(client)
	command(t, client, "admin", shardCmd("shop.more", "k")) // which places nothing on it
	command(t, client, "admin", bson.D{{Key: "listDatabases", Value: 1}})
	all, err := chunks(t.Context(), w.direct[0], "shop.more")
	if err != nil || len(all) != backends {
		t.Errorf("partitions %v, %v", all, err)
	}
	w.served(connect(t, running.Test(t, w.servers, mistakeSettings...).URI()))
	if ids := w.backendsIn(); ids != "[b1 b2 b3]" {
		t.Errorf("the catalog has %s", ids)
	}
	w.whole("without it")
}
