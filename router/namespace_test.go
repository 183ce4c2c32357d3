package router

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/wire"
)

// TestNamesThatAreTooLong: what no server makes is refused before anything is sent or written, with
// a mongod's code and sentence. One byte less is no reason to refuse.
func TestNamesThatAreTooLong(t *testing.T) {
	e, servers := scriptEnv(t)
	long := strings.Repeat("n", 255-len(e.db)) // with the dot one too many
	ns := e.db + "." + long
	for _, c := range []struct {
		db  string
		cmd bson.D
	}{
		{e.db, d("create", long)},
		{e.db, d("insert", long, "documents", bson.A{d("_id", 1)})},
		{e.db, d("update", long, "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("a", 1)), "upsert", true)})},
		{e.db, d("createIndexes", long, "indexes", bson.A{d("key", d("a", 1), "name", "a_1")})},
		{"admin", d("renameCollection", e.db+".short", "to", ns)},
		{"admin", d("shardCollection", ns, "key", d("k", "hashed"))},
	} {
		err := e.client.Database(c.db).RunCommand(t.Context(), c.cmd).Err()
		var ce mongo.CommandError
		if !errors.As(err, &ce) || ce.Code != int32(wire.InvalidNamespace) || ce.Message != "Fully qualified namespace is too long. Namespace: "+ns+" Max: 255" {
			t.Errorf("%s: %v", c.cmd[0].Key, err)
		}
	}
	for _, s := range servers {
		for _, cmd := range s.Received() {
			t.Errorf("%s is sent to a server", cmd.Name)
		}
	}
	if err := checkCollection(e.db, long[1:]); err != nil {
		t.Error(err)
	}
}
