package router_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// admin runs an admin command and returns its error's code, 0 for none.
func (p *proxy) admin(t *testing.T, cmd bson.D) int32 {
	t.Helper()
	err := p.client.Database("admin").RunCommand(t.Context(), cmd).Err()
	var ce mongo.CommandError
	if errors.As(err, &ce) {
		return ce.Code
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// chunks reads config.chunks as a shell does.
func (p *proxy) chunks(t *testing.T) []bson.M {
	t.Helper()
	var coll struct {
		UUID bson.Binary `bson:"uuid"`
	}
	config := p.client.Database("config")
	if err := config.Collection("collections").FindOne(t.Context(), bson.D{{Key: "_id", Value: "db.c"}}).Decode(&coll); err != nil {
		t.Fatal(err)
	}
	cur, err := config.Collection("chunks").Find(t.Context(), bson.D{{Key: "uuid", Value: coll.UUID}})
	if err != nil {
		t.Fatal(err)
	}
	var rows []bson.M
	if err := cur.All(t.Context(), &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestChunkCommands(t *testing.T) {
	p := startProxy(t, 3)
	p.shard(t, "db.c", "k", 4)
	for i := range int32(100) {
		if _, err := p.client.Database("db").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	rows := p.chunks(t)
	if len(rows) != 4 {
		t.Fatalf("%d chunks", len(rows))
	}
	for _, jumbo := range []struct {
		ns   string
		args bson.D
		code int32
	}{
		{"db.c", bson.D{{Key: "find", Value: bson.D{{Key: "k", Value: 1}}}}, 0},
		{"db.c", bson.D{{Key: "bounds", Value: bson.A{rows[0]["min"], rows[0]["max"]}}}, 0},
		{"db.c", bson.D{{Key: "find", Value: bson.D{{Key: "x", Value: 1}}}}, 51260},
		{"db.c", bson.D{{Key: "bounds", Value: bson.A{rows[0]["min"], rows[1]["max"]}}}, 51261},
		{"db.c", nil, 72},
		{"db.other", bson.D{{Key: "find", Value: bson.D{{Key: "k", Value: 1}}}}, 118},
	} {
		if code := p.admin(t, append(bson.D{{Key: "clearJumboFlag", Value: jumbo.ns}}, jumbo.args...)); code != jumbo.code {
			t.Errorf("clearJumboFlag %s %v: code %d, want %d", jumbo.ns, jumbo.args, code, jumbo.code)
		}
	}
	if _, first := rows[0]["min"].(bson.D)[0].Value.(bson.MinKey); !first {
		t.Errorf("first bound %v", rows[0]["min"])
	}
	if rows[1]["max"].(bson.D)[0].Value != int64(0) {
		t.Errorf("middle bound %v, want NumberLong(0)", rows[1]["max"])
	}
	bounds := func(i int) bson.A { return bson.A{rows[i]["min"], rows[i]["max"]} }
	key := func(v any) bson.D { return bson.D{{Key: "k", Value: v}} }
	ns := "db.c"
	for _, c := range []struct {
		name string
		cmd  bson.D
		code int32
	}{
		{"split at a bound", bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: key(int64(0))}}, 87},
		{"split middle", bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: key(int64(1000))}}, 0},
		{"move early", bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{key(int64(0)), key(int64(1000))}}, {Key: "to", Value: "b2"}}, 0},
		{"split find", bson.D{{Key: "split", Value: ns}, {Key: "find", Value: key(5)}}, 0},
		{"split bounds", bson.D{{Key: "split", Value: ns}, {Key: "bounds", Value: bounds(3)}}, 0},
		{"split nothing", bson.D{{Key: "split", Value: ns}}, 72},
		{"split unsharded", bson.D{{Key: "split", Value: "db.none"}, {Key: "find", Value: key(5)}}, 118},
		{"move find", bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: key(5)}, {Key: "to", Value: "b3"}}, 0},
		{"move nowhere", bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: key(5)}, {Key: "to", Value: "b9"}}, 70},
		{"move other bounds", bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{key(int64(5)), key(int64(6))}}, {Key: "to", Value: "b3"}}, 656452},
		{"move wrong shape", bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{key("x"), key(int64(6))}}, {Key: "to", Value: "b3"}}, 656451},
		{"move both", bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: key(5)}, {Key: "bounds", Value: bounds(0)}, {Key: "to", Value: "b3"}}, 72},
		{"move range", bson.D{{Key: "moveRange", Value: ns}, {Key: "min", Value: key(int64(2000))}, {Key: "toShard", Value: "b1"}}, 0},
		{"merge", bson.D{{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{rows[2]["min"], key(int64(2000))}}}, 0},
	} {
		if code := p.admin(t, c.cmd); code != c.code {
			t.Errorf("%s: code %d, want %d", c.name, code, c.code)
		}
	}
	n, err := p.client.Database("db").Collection("c").CountDocuments(t.Context(), bson.D{})
	if n != 100 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	grouped, err := p.client.Database("config").Collection("chunks").CountDocuments(t.Context(), bson.D{{Key: "shard", Value: "b3"}})
	if grouped == 0 || err != nil {
		t.Errorf("countDocuments on config.chunks: %d, %v", grouped, err)
	}
	var ver bson.M
	if err := p.client.Database("config").Collection("version").FindOne(t.Context(), bson.D{}).Decode(&ver); err != nil || ver["clusterId"] == nil {
		t.Errorf("config.version: %v, %v", ver, err)
	}
	p.noLeftovers(t)
}

// TestDocumentsThatNestTooDeeplyAreRefused before a backend, which might end a shared connection, sees them.
func TestDocumentsThatNestTooDeeplyAreRefused(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "k", 4)
	deep := func(levels int) any {
		var v any = 1
		for range levels {
			v = bson.D{{Key: "a", Value: v}}
		}
		return v
	}
	c := p.client.Database("db").Collection("c")
	for what, run := range map[string]func() error{
		"insert": func() error {
			_, err := c.InsertOne(t.Context(), bson.D{{Key: "k", Value: 1}, {Key: "a", Value: deep(250)}})
			return err
		},
		"find": func() error {
			return c.FindOne(t.Context(), bson.D{{Key: "k", Value: 1}, {Key: "a", Value: deep(250)}}).Err()
		},
	} {
		var ce mongo.CommandError
		if err := run(); !errors.As(err, &ce) || ce.Code != 15 {
			t.Errorf("%s: %v, want code 15", what, err)
		}
	}
	if _, err := c.InsertOne(t.Context(), bson.D{{Key: "k", Value: 1}, {Key: "a", Value: deep(100)}}); err != nil {
		t.Error(err)
	}
}
