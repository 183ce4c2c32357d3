package router

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
)

// A secondary that lags has half of what was copied into a partition before its birth. A read that goes there waits until it has all; one of an older
// partition does not wait.
func TestSecondaryReadsWaitForTheBirth(t *testing.T) {
	primary, secondary := backendtest.New(t), backendtest.New(t)
	hosts := []string{primary.Addr(), secondary.Addr()}
	primary.SetHello(backendtest.Hello{SetName: "rs", Hosts: hosts})
	secondary.SetHello(backendtest.Hello{SetName: "rs", Hosts: hosts, Secondary: true, Primary: primary.Addr()})
	birth := bson.Timestamp{T: 100, I: 7}
	concern := func(c backendtest.Command) (bson.Raw, bson.Timestamp) {
		rc, _ := c.Body.Lookup("readConcern").DocumentOK()
		at, i, _ := rc.Lookup("afterClusterTime").TimestampOK()
		return rc, bson.Timestamp{T: at, I: i}
	}
	secondary.SetClock(bson.Timestamp{T: 99}) // it has not heard of the birth
	secondary.SetScript(func(c backendtest.Command) backendtest.Answer {
		docs := bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 1}}}
		if _, at := concern(c); !at.Before(birth) {
			docs = append(docs, bson.D{{Key: "_id", Value: 2}, {Key: "n", Value: 2}}) // it has waited for the rest
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.c@1.0.0"}, {Key: "firstBatch", Value: docs}}})
	})
	primary.SetScript(func(c backendtest.Command) backendtest.Answer { // it is asked for views
		return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.$cmd.listCollections"}, {Key: "firstBatch", Value: bson.A{}}}})
	})
	e := newWriteEnv(t, map[string]string{"b0": "mongodb://" + hosts[0] + "," + hosts[1] + "/?replicaSet=rs"})
	m := func(coll, physical string, birth bson.Timestamp) {
		ns := e.db + "." + coll
		e.snap.Maps[ns] = &catalog.Map{NS: ns, V: 1, Partitions: []catalog.Partition{{Backend: "b0", Physical: physical, Birth: birth}}}
	}
	m("young", "young@1.0.0", birth)
	m("old", "old@1.0.0", bson.Timestamp{})
	e.table.Apply(e.snap)
	read := func(coll string, more ...options.Lister[options.CollectionOptions]) int {
		t.Helper()
		more = append(more, options.Collection().SetReadPreference(readpref.Secondary()))
		secondary.Forget()
		cur, err := e.client.Database(e.db).Collection(coll, more...).Find(e.ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.D
		if err := cur.All(e.ctx, &docs); err != nil {
			t.Fatal(err)
		}
		return len(docs)
	}
	sent := func() (rc bson.Raw, at bson.Timestamp) {
		for _, c := range secondary.Received() {
			if c.Name == "find" || c.Name == "aggregate" {
				rc, at = concern(c)
			}
		}
		return rc, at
	}
	if n := read("young"); n != 2 {
		t.Errorf("%d documents of a partition half of which the secondary had", n)
	}
	if n := read("young", options.Collection().SetReadConcern(readconcern.Available())); n != 2 {
		t.Errorf("available: %d documents", n)
	}
	if rc, at := sent(); rc.Lookup("level").StringValue() != "local" || at != birth {
		t.Errorf("available was sent as %v", rc)
	}
	if n := read("young", options.Collection().SetReadConcern(readconcern.Majority())); n != 2 {
		t.Errorf("majority: %d documents", n)
	}
	if rc, _ := sent(); rc.Lookup("level").StringValue() != "majority" {
		t.Errorf("majority was sent as %v", rc)
	}
	read("young", options.Collection().SetReadConcern(readconcern.Linearizable())) // 72 with a time
	read("old")
	if rc, at := sent(); rc != nil || !at.IsZero() {
		t.Errorf("a read of a partition that was never copied was sent with %v", rc)
	}
	// A collection that is named beside the one that is read counts as well.
	secondary.Forget()
	old := e.client.Database(e.db).Collection("old", options.Collection().SetReadPreference(readpref.Secondary()))
	if _, err := old.Aggregate(e.ctx, mongo.Pipeline{{{Key: "$lookup", Value: bson.D{{Key: "from", Value: "young"}, {Key: "localField", Value: "n"}, {Key: "foreignField", Value: "n"}, {Key: "as", Value: "y"}}}}}); err != nil {
		t.Fatal(err)
	}
	if _, at := sent(); at != birth {
		t.Errorf("a $lookup was sent after %v, want %v", at, birth)
	}
}

// TestCommandsThatTakeNoTime: validate takes no afterClusterTime, and runs on the primary whatever
// the client prefers.
func TestCommandsThatTakeNoTime(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "validate" {
			if _, err := c.Body.LookupErr("readConcern"); err == nil {
				return backendtest.Err(72, "InvalidOptions", "Command validate does not support { afterClusterTime: <timestamp> }")
			}
			return backendtest.OK(bson.E{Key: "valid", Value: true})
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{})})
	})
	e := newWriteEnv(t, map[string]string{"b0": s.URI()})
	ns := e.db + ".young"
	e.snap.Maps[ns] = &catalog.Map{NS: ns, V: 1, Partitions: []catalog.Partition{{Backend: "b0", Physical: "young@1.0.0", Birth: bson.Timestamp{T: 100}}}}
	e.table.Apply(e.snap)
	if _, err := e.raw(d("validate", "young", "$readPreference", d("mode", "secondaryPreferred"))); err != nil {
		t.Error(err)
	}
}
