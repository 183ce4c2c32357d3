package router

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// TestFsync checks that every backend is asked, and that nobody locks them from here.
func TestFsync(t *testing.T) {
	e := fleetEnv(t)
	admin := e.client.Database("admin")
	var reply struct {
		NumFiles int64 `bson:"numFiles"`
		All      map[string]bson.M
	}
	if err := admin.RunCommand(e.ctx, d("fsync", 1)).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.All) != 3 || reply.NumFiles < 3 {
		t.Errorf("fsync: %+v", reply)
	}
	for id, one := range reply.All {
		if one["ok"] != 1.0 {
			t.Errorf("%s: %v", id, one)
		}
	}
	if err := admin.RunCommand(e.ctx, d("fsync", 1, "lock", true)).Err(); codeOf(err) != wire.CommandNotSupported {
		t.Errorf("fsync with lock: %v", err)
	}
}
