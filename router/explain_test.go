package router

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// TestExplainShape checks the shape that mongos gives: mongos-behaviour §3.13.
func TestExplainShape(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 3)
	for i := range 12 {
		if _, err := coll.InsertOne(e.ctx, d("_id", i, "k", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.client.Database(e.db).Collection("plain").InsertOne(e.ctx, d("_id", 1)); err != nil {
		t.Fatal(err)
	}
	one := func(q any) bson.A { return bson.A{d("q", q, "limit", 1)} }
	for _, c := range []struct {
		name   string
		cmd    bson.D
		stage  string
		shards int
	}{
		{"by the key", d("find", "c", "filter", d("k", 1)), "SINGLE_SHARD", 1},
		{"everywhere", d("find", "c"), "SHARD_MERGE", 3},
		{"sorted", d("find", "c", "sort", d("_id", 1)), "SHARD_MERGE_SORT", 3},
		{"unsharded", d("find", "plain", "sort", d("_id", 1)), "SINGLE_SHARD", 1},
		{"count", d("count", "c", "query", d("k", 1)), "SINGLE_SHARD", 1},
		{"distinct", d("distinct", "c", "key", "k"), "SHARD_MERGE", 3},
		{"delete by the key", d("delete", "c", "deletes", one(d("k", 1))), "SHARD_WRITE", 1},
		{"update everywhere", d("update", "c", "updates", bson.A{d("q", d(), "u", d("$set", d("v", 1)), "multi", true)}), "SHARD_WRITE", 3},
		{"findAndModify", d("findAndModify", "c", "query", d("k", 1), "remove", true), "SINGLE_SHARD", 1},
		{"findandmodify", d("findandmodify", "c", "query", d("k", 1), "remove", true), "SINGLE_SHARD", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := e.client.Database(e.db).RunCommand(e.ctx, d("explain", c.cmd)).Raw()
			if err != nil {
				t.Fatal(err)
			}
			plan := raw.Lookup("queryPlanner", "winningPlan")
			shards, _ := plan.Document().Lookup("shards").Array().Values()
			if got := plan.Document().Lookup("stage").StringValue(); got != c.stage || len(shards) != c.shards || raw.Lookup("queryPlanner", "mongosPlannerVersion").AsInt64() != 1 {
				t.Errorf("stage %s of %d shards: %v", got, len(shards), raw)
			}
			for _, s := range shards {
				for _, field := range []string{"shardName", "connectionString", "serverInfo", "winningPlan"} {
					if _, err := s.Document().LookupErr(field); err != nil {
						t.Errorf("no %s in %v", field, s)
					}
				}
			}
			stages := raw.Lookup("executionStats", "executionStages").Document()
			for _, field := range []string{"stage", "nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined", "totalChildMillis", "shards"} {
				if _, err := stages.LookupErr(field); err != nil {
					t.Errorf("no %s in executionStages: %v", field, stages)
				}
			}
			if v, err := stages.LookupErr("shards", "0", "executionStages", "stage"); err != nil {
				t.Errorf("a shard's executionStages are no stages: %v", v)
			}
			command := raw.Lookup("command").Document()
			if command.Lookup(c.cmd[0].Key).StringValue() != c.cmd[0].Value || command.Lookup("$db").StringValue() != e.db {
				t.Errorf("command %v", command)
			}
			for _, path := range [][]string{{"serverInfo", "host"}, {"serverInfo", "port"}, {"executionStats", "allPlansExecution", "0", "shardName"}} {
				if _, err := raw.LookupErr(path...); err != nil {
					t.Errorf("no %s in %v", strings.Join(path, "."), raw)
				}
			}
			if strings.Contains(raw.String(), "c@") {
				t.Errorf("a physical name in %v", raw)
			}
		})
	}
	if n, err := coll.CountDocuments(e.ctx, bson.D{}); n != 12 || err != nil {
		t.Errorf("explained writes left %d documents, %v", n, err)
	}
	for _, c := range []struct {
		cmd  bson.D
		code wire.Code
	}{
		{d("nope", 1), wire.CommandNotFound},
		{d("ping", 1), wire.IllegalOperation},
		{d("insert", "c", "documents", bson.A{d()}), wire.IllegalOperation},
		{d("find", "c", "$db", "another"), wire.InvalidNamespace},
		{d("find", 1), wire.InvalidNamespace},
		{d("delete", "c", "deletes", append(one(d()), one(d())...)), wire.InvalidLength},
		{d(), wire.FailedToParse},
	} {
		if _, err := e.run(d("explain", c.cmd)); codeOf(err) != c.code {
			t.Errorf("explain %v: %v, want %d", c.cmd, err, c.code)
		}
	}
}
