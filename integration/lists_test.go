package integration

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

// TestListsInBatches: listCollections and listIndexes keep to a batchSize and go on by getMore; a cursor that is left can be killed.
func TestListsInBatches(t *testing.T) {
	c, db := caseColl(t, "tenant")
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	indexes := bson.A{}
	for i := range 6 {
		must(t, c, db, bson.D{e("create", fmt.Sprintf("u%d", i))})
		name := fmt.Sprintf("i%d", i)
		indexes = append(indexes, bson.D{e("key", bson.D{e(name, 1)}), e("name", name)})
	}
	must(t, c, db, bson.D{e("createIndexes", "c"), e("indexes", indexes)})
	for _, test := range []struct {
		cmd, over string
		value     any
		want      int
	}{{"listCollections", "$cmd.listCollections", 1, 7}, {"listIndexes", "c", "c", 8}} {
		for _, size := range []int32{0, 1, 3, 8} {
			cmd := bson.D{e(test.cmd, test.value), e("cursor", bson.D{e("batchSize", size)})}
			docs, id := batchOf(t, ask(t, c, db, cmd))
			if len(docs) != min(int(size), test.want) || (id == 0) != (test.want <= int(size)) {
				t.Errorf("%s, batchSize %d: %d documents, cursor %d", test.cmd, size, len(docs), id)
			}
			for id != 0 {
				var more []bson.Raw
				more, id = batchOf(t, ask(t, c, db, bson.D{e("getMore", id), e("collection", test.over), e("batchSize", int32(2))}))
				if len(more) > 2 {
					t.Errorf("getMore gave %d documents", len(more))
				}
				docs = append(docs, more...)
			}
			seen := map[string]bool{}
			for _, d := range docs {
				seen[d.Lookup("name").StringValue()] = true
			}
			if len(docs) != test.want || len(seen) != test.want {
				t.Errorf("%s, batchSize %d: %d documents, %d names", test.cmd, size, len(docs), len(seen))
			}
		}
		_, id := batchOf(t, ask(t, c, db, bson.D{e(test.cmd, test.value), e("cursor", bson.D{e("batchSize", int32(1))})}))
		killed := must(t, c, db, bson.D{e("killCursors", test.over), e("cursors", bson.A{id})})
		if all, err := killed.Lookup("cursorsKilled").Array().Values(); err != nil || len(all) != 1 {
			t.Errorf("killCursors on %s: %v", test.over, killed)
		}
	}
	if code := rawconn.Code(ask(t, c, db, bson.D{e("listIndexes", "c"), e("cursor", bson.D{e("batchSize", int32(-1))})})); code != 51024 {
		t.Errorf("a negative batchSize: %d", code)
	}
}

// TestConfigIsListed: shells show the databases that a mongos has.
func TestConfigIsListed(t *testing.T) {
	c := dial(t, sharedProxy(t).Addr())
	for _, name := range []string{"config"} {
		reply := must(t, c, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: name}}}})
		if all, err := reply.Lookup("databases").Array().Values(); err != nil || len(all) != 1 {
			t.Errorf("%s: %v", name, reply)
		}
	}
	for _, hidden := range []string{"shardway", "shardway_member", "local"} {
		reply := must(t, c, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: hidden}}}})
		if all, err := reply.Lookup("databases").Array().Values(); err != nil || len(all) != 0 {
			t.Errorf("%s: %v", hidden, reply)
		}
	}
}

// TestMoveRangeWithNull: shells send null for a bound that was not given.
func TestMoveRangeWithNull(t *testing.T) {
	c, db := caseColl(t, "tenant")
	for _, to := range []string{"b2", "b1"} {
		must(t, c, "admin", bson.D{{Key: "moveRange", Value: db + ".c"}, {Key: "toShard", Value: to}, {Key: "min", Value: bson.D{{Key: "tenant", Value: bson.MinKey{}}}}, {Key: "max", Value: nil}})
	}
}
