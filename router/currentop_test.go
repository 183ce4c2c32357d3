package router

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/wire"
)

// TestCurrentOpOverBackends: the stages after $currentOp, and the filter of the old command, are run by a server.
func TestCurrentOpOverBackends(t *testing.T) {
	e := fleetEnv(t)
	admin := e.client.Database("admin")
	pipeline := func(stages ...bson.D) bson.D {
		return bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: append(bson.A{}, toArray(stages)...)}, {Key: "cursor", Value: bson.D{}}}
	}
	run := func(cmd bson.D) bson.Raw {
		t.Helper()
		raw, err := admin.RunCommand(e.ctx, cmd).Raw()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return raw
	}
	for _, spec := range []bson.D{{{Key: "localOps", Value: true}}, {{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}, {Key: "truncateOps", Value: false}}, {}} {
		reply := run(pipeline(bson.D{{Key: "$currentOp", Value: spec}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "command.aggregate", Value: 1}, {Key: "shard", Value: bson.D{{Key: "$exists", Value: false}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "op", Value: 1}}}}))
		docs, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
		if len(docs) != 1 || docs[0].Document().Lookup("op").StringValue() != "command" {
			t.Errorf("%v: %v", spec, reply)
		}
	}
	reply := run(bson.D{{Key: "currentOp", Value: 1}, {Key: "op", Value: "command"}, {Key: "command.currentOp", Value: 1}, {Key: "shard", Value: nil}})
	if ops, _ := reply.Lookup("inprog").Array().Values(); len(ops) != 1 {
		t.Errorf("currentOp with a filter: %v", reply)
	}
	if ops, _ := run(bson.D{{Key: "currentOp", Value: 1}}).Lookup("inprog").Array().Values(); len(ops) == 0 {
		t.Error("currentOp does not list itself")
	}
	for _, bad := range []bson.D{
		pipeline(bson.D{{Key: "$currentOp", Value: 1}}),
		pipeline(bson.D{{Key: "$currentOp", Value: bson.D{{Key: "nonsense", Value: true}}}}),
		pipeline(bson.D{{Key: "$currentOp", Value: bson.D{{Key: "localOps", Value: 1}}}}),
	} {
		if err := admin.RunCommand(e.ctx, bad).Err(); codeOf(err) != wire.FailedToParse {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := e.client.Database("test").RunCommand(e.ctx, pipeline(bson.D{{Key: "$currentOp", Value: bson.D{}}})).Err(); codeOf(err) != wire.InvalidNamespace {
		t.Errorf("on another database: %v", err)
	}
}

func toArray(stages []bson.D) (a bson.A) {
	for _, s := range stages {
		a = append(a, s)
	}
	return a
}

// TestSessionsOverBackends: what the driver does with sessions, and their end, go through.
func TestSessionsOverBackends(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 3)
	sess, err := e.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	ctx := contextWith(e, sess)
	for i := range 20 {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	id := bson.Raw(sess.ID())
	var key sessionKey
	_, data := id.Lookup("id").Binary()
	copy(key[:], data)
	if len(e.router.derived.get(key)) == 0 {
		t.Fatal("no session was derived from the client's")
	}
	admin := e.client.Database("admin")
	if err := admin.RunCommand(e.ctx, bson.D{{Key: "refreshSessions", Value: bson.A{id}}}).Err(); err != nil {
		t.Error(err)
	}
	cur, err := coll.Find(ctx, bson.D{}, findBatches(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.RunCommand(e.ctx, bson.D{{Key: "killSessions", Value: bson.A{id}}}).Err(); err != nil {
		t.Error(err)
	}
	for cur.Next(ctx) {
	}
	if codeOf(cur.Err()) != wire.CursorNotFound {
		t.Errorf("the killed session's cursor ended with %v, want 43", cur.Err())
	}
	if len(e.router.derived.get(key)) != 0 {
		t.Error("the derived sessions are remembered after the kill")
	}
}

func contextWith(e *writeEnv, s *mongo.Session) context.Context {
	return mongo.NewSessionContext(e.ctx, s)
}

func findBatches(n int32) *options.FindOptionsBuilder { return options.Find().SetBatchSize(n) }
