package integration

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

// TestAdminCommands looks at commands that tools send to a mongos and that concern the fleet as a whole.
func TestAdminCommands(t *testing.T) {
	c, db := caseColl(t, "tenant")
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	must(t, c, "admin", bson.D{e("logRotate", 1)})
	must(t, c, "admin", bson.D{e("getClusterParameter", "*")})
	was := must(t, c, "admin", bson.D{e("getDefaultRWConcern", 1)}).Lookup("defaultWriteConcern", "w")
	must(t, c, "admin", bson.D{e("setDefaultRWConcern", 1), e("defaultWriteConcern", bson.D{e("w", 1)})})
	if w := must(t, c, "admin", bson.D{e("getDefaultRWConcern", 1)}).Lookup("defaultWriteConcern", "w"); w.AsInt64() != 1 {
		t.Errorf("the default w is %v", w)
	}
	if was.Type != 0 {
		must(t, c, "admin", bson.D{e("setDefaultRWConcern", 1), e("defaultWriteConcern", bson.D{e("w", was)})})
	}
	version := must(t, c, "admin", bson.D{e("getShardVersion", db+".c")})
	if got, _, ok := version.Lookup("version").TimestampOK(); !ok || got == 0 {
		t.Errorf("getShardVersion: %v", version)
	}
	must(t, c, db, insertCmd(bson.D{e("_id", int32(1)), e("tenant", int32(1))}))
	must(t, c, db, bson.D{e("insert", "plain"), e("documents", bson.A{bson.D{e("_id", int32(1))}})})
	for _, test := range []struct {
		db   string
		cmd  bson.D
		code int
	}{
		{"admin", bson.D{e("getShardVersion", db+".plain")}, 118},
		{"admin", bson.D{e("top", 1)}, 59},
		{"admin", bson.D{e("listDatabases", 1), e("readConcern", bson.D{e("level", "snapshot")})}, 72},
		{db, bson.D{e("distinct", "c"), e("key", "tenant"), e("apiVersion", "1"), e("apiStrict", true)}, 323},
		{db, bson.D{e("aggregate", 1), e("pipeline", bson.A{bson.D{e("$listLocalSessions", bson.D{})}}), e("cursor", bson.D{}), e("apiVersion", "1"), e("apiStrict", true)}, 323},
		{db, bson.D{e("aggregate", "c"), e("pipeline", bson.A{bson.D{e("$listLocalSessions", bson.D{})}}), e("cursor", bson.D{})}, 73},
	} {
		if reply := ask(t, c, test.db, test.cmd); rawconn.Code(reply) != test.code {
			t.Errorf("%v: %v, not code %d", test.cmd, reply, test.code)
		}
	}
	id := bson.Binary{Subtype: 4, Data: []byte("a session's id, ")}
	for _, mine := range []struct {
		stage string
		db    string
		over  any
	}{{"$listLocalSessions", db, 1}, {"$listSessions", "config", "system.sessions"}} {
		docs, _ := batchOf(t, ask(t, c, mine.db, bson.D{e("aggregate", mine.over), e("pipeline", bson.A{bson.D{e(mine.stage, bson.D{})}, bson.D{e("$match", bson.D{e("_id.id", id)})}}),
			e("cursor", bson.D{}), e("lsid", bson.D{e("id", id)})}))
		if len(docs) != 1 {
			t.Errorf("%s: %v", mine.stage, docs)
		}
	}
}

// TestErrorsKeepWhatTheyTell: what a backend's error says besides its code reaches the client, beside the answers by shard.
func TestErrorsKeepWhatTheyTell(t *testing.T) {
	c, db := caseColl(t, "_id")
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	must(t, c, db, bson.D{e("createIndexes", "p"), e("indexes", bson.A{bson.D{e("key", bson.D{e("x", 1)}), e("name", "x_1")}})})
	must(t, c, db, bson.D{e("insert", "p"), e("documents", bson.A{bson.D{e("_id", 1), e("x", 1)}, bson.D{e("_id", 2), e("x", 1)}})})
	index := func(what string) bson.D {
		return bson.D{e("collMod", "p"), e("index", bson.D{e("keyPattern", bson.D{e("x", 1)}), e(what, true)})}
	}
	must(t, c, db, index("prepareUnique"))
	reply := ask(t, c, db, index("unique"))
	if rawconn.Code(reply) != 359 {
		t.Fatalf("%v", reply)
	}
	if _, err := reply.LookupErr("violations"); err != nil {
		t.Errorf("no violations in %v", reply)
	}
}
