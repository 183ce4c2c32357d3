package router

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// status is a number of serverStatus.
func (e *writeEnv) status(path ...string) int64 {
	e.t.Helper()
	raw, err := e.client.Database("admin").RunCommand(e.ctx, bson.D{{Key: "serverStatus", Value: 1}}).Raw()
	if err != nil {
		e.t.Fatal(err)
	}
	n, ok := raw.Lookup(path...).AsInt64OK()
	if !ok {
		e.t.Fatalf("serverStatus has no number %v", path)
	}
	return n
}

func TestServerStatusCountsTargets(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 6) // two partitions on each of three backends
	plain := e.client.Database(e.db).Collection("plain")
	ignore := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(op string, all, many, one, unsharded int64) {
		t.Helper()
		var got [4]int64
		for i, name := range []string{"allShards", "manyShards", "oneShard", "unsharded"} {
			got[i] = e.status("shardingStatistics", "numHostsTargeted", op, name)
		}
		if want := [4]int64{all, many, one, unsharded}; got != want {
			t.Errorf("%s: %v, want %v", op, got, want)
		}
	}
	docs := make([]any, 30)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: int32(i)}}
	}
	ignore(coll.InsertMany(e.ctx, docs))
	ignore(plain.InsertMany(e.ctx, docs[:3]))
	is("insert", 0, 0, 30, 3)
	ignore(coll.UpdateMany(e.ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}))
	ignore(coll.UpdateByID(e.ctx, int32(1), bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}))
	is("update", 1, 0, 1, 0)
	ignore(coll.BulkWrite(e.ctx, []mongo.WriteModel{mongo.NewDeleteManyModel().SetFilter(bson.D{{Key: "a", Value: 9}}),
		mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: int32(3)}}), mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: int32(4)}})},
		options.BulkWrite().SetOrdered(false)))
	is("delete", 1, 0, 2, 0)
	find := func(c *mongo.Collection, filter bson.D, opts ...options.Lister[options.FindOptions]) {
		t.Helper()
		cur, err := c.Find(e.ctx, filter, opts...)
		ignore(nil, err)
		ignore(nil, cur.Close(e.ctx))
	}
	find(coll, bson.D{})
	find(coll, bson.D{{Key: "_id", Value: int32(1)}}, options.Find().SetLimit(1)) // the hot path
	find(coll, bson.D{{Key: "_id", Value: int32(1)}})
	find(plain, bson.D{})
	is("find", 1, 0, 2, 1)
	ignore(coll.CountDocuments(e.ctx, bson.D{}))
	is("aggregate", 1, 0, 0, 0)
	if n := e.status("shardingStatistics", "catalogCache", "numCollectionEntries"); n != 1 {
		t.Errorf("%d collections with a map, want 1", n)
	}
}

func TestServerStatusCountsTransactions(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 3)
	sess, err := e.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.EndSession(e.ctx)
	ctx := contextWith(e, sess)
	for i, commit := range []bool{true, false, true} {
		if err := sess.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
		if open, idle := e.status("transactions", "currentOpen"), e.status("transactions", "currentInactive"); open != 1 || idle != 1 {
			t.Errorf("%d open, %d inactive", open, idle)
		}
		if commit {
			err = sess.CommitTransaction(ctx)
		} else {
			err = sess.AbortTransaction(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{"currentOpen": 0, "totalStarted": 3, "totalCommitted": 2, "totalAborted": 1} {
		if got := e.status("transactions", name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	if n := e.status("transactions", "commitTypes", "singleShard", "successful"); n != 2 {
		t.Errorf("%d commits, want 2", n)
	}
}

// TestShareDefaults: what somebody has set on the fleet is set on a backend that joins, what holds by itself is not.
func TestShareDefaults(t *testing.T) {
	open := func(id string, script backendtest.Script) (*backend.Backend, *backendtest.Server) {
		s := backendtest.New(t)
		s.SetHello(backendtest.Hello{SetName: id, Hosts: []string{s.Addr()}})
		s.SetScript(script)
		b, err := backend.Open(t.Context(), backend.Config{ID: id, URI: "mongodb://" + s.Addr() + "/?replicaSet=" + id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(t.Context()) })
		if err := b.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		return b, s
	}
	doc := func(k string, v any) bson.D { return bson.D{{Key: k, Value: v}} }
	for name, c := range map[string]struct {
		has  backendtest.Answer
		want string
	}{
		"set": {backendtest.OK(bson.E{Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: int32(2)}, {Key: "wtimeout", Value: int32(0)}, {Key: "provenance", Value: "customDefault"}}},
			bson.E{Key: "defaultWriteConcernSource", Value: "global"}, bson.E{Key: "defaultReadConcern", Value: doc("level", "local")}, bson.E{Key: "defaultReadConcernSource", Value: "implicit"}),
			`"setDefaultRWConcern": {"$numberInt":"1"},"defaultWriteConcern": {"w": {"$numberInt":"2"},"wtimeout": {"$numberInt":"0"}},"writeConcern": {"w": "majority"}`},
		"implicit": {backendtest.OK(bson.E{Key: "defaultWriteConcern", Value: doc("w", "majority")}, bson.E{Key: "defaultWriteConcernSource", Value: "implicit"}), ""},
		"unknown":  {backendtest.Err(int32(wire.CommandNotFound), "CommandNotFound", "no such command"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			from, _ := open("a", func(backendtest.Command) backendtest.Answer { return c.has })
			to, s := open("b", func(backendtest.Command) backendtest.Answer { return backendtest.OK() })
			if err := ShareDefaults(t.Context(), from, to); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, cmd := range s.Received() {
				if cmd.Name == "setDefaultRWConcern" {
					got = cmd.Body.String()
				}
			}
			if (got == "") != (c.want == "") || !strings.HasPrefix(got, "{"[:min(1, len(c.want))]+c.want) {
				t.Errorf("sent %s, want {%s…", got, c.want)
			}
		})
	}
}

func TestCurrentOpShowsIdleClients(t *testing.T) {
	e := fleetEnv(t)
	idle := connect(t, "mongodb://"+e.addr+"/?appName=sleeper&directConnection=true")
	if err := idle.Ping(e.ctx, nil); err != nil {
		t.Fatal(err)
	}
	raw, err := e.client.Database("admin").RunCommand(e.ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "$all", Value: true}, {Key: "appName", Value: "sleeper"}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	ops, _ := raw.Lookup("inprog").Array().Values()
	if len(ops) == 0 {
		t.Fatal("the idle connections are not listed")
	}
	for _, op := range ops {
		d := op.Document()
		if driver, _ := d.Lookup("clientMetadata", "driver", "name").StringValueOK(); driver != "mongo-go-driver" || d.Lookup("client").StringValue() == "" {
			t.Errorf("%v", d)
		}
		if _, err := d.LookupErr("opid"); err == nil && !d.Lookup("active").Boolean() {
			t.Errorf("an idle connection has an operation: %v", d)
		}
	}
}
