package router

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// TestRefusedStatements checks that what is wrong with one statement is that statement's error, with the router's codes, and that an unordered
// batch goes on: mongos-behaviour §3.6, §3.11.
func TestRefusedStatements(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 3)
	if _, err := coll.InsertMany(e.ctx, []any{d("_id", 1, "k", 1), d("_id", 2, "k", 2)}); err != nil {
		t.Fatal(err)
	}
	set := d("$set", d("v", 1))
	for _, c := range []struct {
		name, cmd, list string
		stmt            bson.D
		code            int32
	}{
		{"operators and fields", "update", "updates", d("q", d("k", 1), "u", d("$set", d("v", 1), "w", 2)), 12},
		{"fields and operators", "update", "updates", d("q", d("_id", 1), "u", d("w", 2, "$set", d("v", 1))), 52},
		{"operators and fields, many", "update", "updates", d("q", d(), "u", d("$set", d("v", 1), "w", 2), "multi", true), 12},
		{"a replacement of many", "update", "updates", d("q", d("k", 1), "u", d("k", 1), "multi", true), 72},
		{"a replacement of many without the key", "update", "updates", d("q", d(), "u", d("v", 1), "multi", true), 72},
		{"an unknown operator, searched", "update", "updates", d("q", d("$nope", 1), "u", set), 2},
		{"an unknown operator, searched and replaced", "update", "updates", d("q", d("$nope", 1), "u", d("v", 1)), 2},
		{"a hint at no index, searched", "update", "updates", d("q", d("_id", 1), "u", set, "hint", "nope"), 2},
		{"an unknown operator, searched for a delete", "delete", "deletes", d("q", d("$nope", 1), "limit", 1), 2},
		{"a hint at no index, deleted", "delete", "deletes", d("q", d("_id", 1), "limit", 1, "hint", "nope"), 2},
		{"an unknown operator, deleted everywhere", "delete", "deletes", d("q", d("$nope", 1), "limit", 0), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := d("q", d("_id", 2), "u", d("$inc", d("n", 1)))
			if c.cmd == "delete" {
				good = d("q", d("_id", 99), "limit", 1)
			}
			reply, err := e.run(d(c.cmd, "c", c.list, bson.A{c.stmt, good}, "ordered", false))
			if err != nil {
				t.Fatal(err)
			}
			if codes := e.writeCodes(reply); len(codes) != 1 || codes[0] != c.code || c.cmd == "update" && reply["n"] != int32(1) {
				t.Errorf("%v", reply)
			}
		})
	}
}

// TestUnknownStatementField checks that a statement which cannot be read fails the command, as at one server, also where its document is found first.
func TestUnknownStatementField(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "k", 3)
	if _, err := coll.InsertOne(e.ctx, d("_id", 1, "k", 1)); err != nil {
		t.Fatal(err)
	}
	for _, q := range []bson.D{d("_id", 1), d("k", 1), d("_id", 2)} {
		_, err := e.run(d("update", "c", "updates", bson.A{d("q", q, "u", d("$set", d("v", 1)), "nope", 1)}))
		if codeOf(err) != 40415 {
			t.Errorf("%v: %v", q, err)
		}
		_, err = e.run(d("delete", "c", "deletes", bson.A{d("q", append(d("n", 1), q...), "limit", 1, "nope", 1)}))
		if codeOf(err) != 40415 {
			t.Errorf("delete %v: %v", q, err)
		}
		for _, kind := range []bson.D{d("remove", true), d("update", d("$set", d("v", 1)))} {
			_, err = e.run(append(d("findAndModify", "c", "query", q, "nope", 1), kind...))
			if codeOf(err) != 40415 {
				t.Errorf("findAndModify %v %v: %v", kind, q, err)
			}
		}
	}
}

// TestContradictoryModifications checks that a findAndModify that contradicts itself is refused whether or not a document is there.
func TestContradictoryModifications(t *testing.T) {
	e := fleetEnv(t)
	e.shard("c", "k", 3)
	set := d("$set", d("v", 1))
	for _, c := range []struct {
		cmd  bson.D
		code int32
	}{
		{d("findAndModify", "c", "query", d("_id", 1)), 9},
		{d("findAndModify", "c", "query", d("_id", 1), "remove", true, "update", set), 9},
		{d("findAndModify", "c", "query", d("_id", 1), "remove", true, "new", true), 9},
		{d("findAndModify", "c", "query", d("_id", 1), "remove", true, "upsert", true), 9},
		{d("findAndModify", "c", "query", d("k", 1), "remove", true, "upsert", true), 9},
		{d("findAndModify", "c", "query", d("k", 1), "update", set, "runtimeConstants", d()), 51196},
		{d("findAndModify", "unsharded", "query", d("k", 1), "update", set, "legacyRuntimeConstants", d()), 51196},
	} {
		_, err := e.run(c.cmd)
		var got mongo.CommandError
		if !errors.As(err, &got) || got.Code != c.code {
			t.Errorf("%v: %v, want %d", c.cmd, err, c.code)
		}
	}
}
