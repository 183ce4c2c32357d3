package replicaset_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/replicaset"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

func start(t *testing.T, o replicaset.Options) *replicaset.Set {
	t.Helper()
	o.Target = fleettest.Shared(t, 1)[0].Addr
	s, err := replicaset.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

func codeOf(err error) int {
	var e mongo.ServerError
	if errors.As(err, &e) {
		return e.ErrorCodes()[0]
	}
	return 0
}

// TestADriverSeesAReplicaSet: through an election and a step-down a driver with default settings sees latency and no error, and a cursor on a secondary that
// lives goes on.
func TestADriverSeesAReplicaSet(t *testing.T) {
	s := start(t, replicaset.Options{Name: "three", Election: time.Second, Handover: 100 * time.Millisecond})
	c := connect(t, s.URI())
	coll := c.Database(fleettest.DB(t)).Collection("c")
	write := func() {
		t.Helper()
		if _, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
			t.Fatal(err)
		}
	}
	write()
	for i := range 100 {
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i + 10}}); err != nil {
			t.Fatal(err)
		}
	}
	secondary := coll.Database().Collection("c", options.Collection().SetReadPreference(readpref.Secondary()))
	cursor, err := secondary.Find(t.Context(), bson.D{}, options.Find().SetBatchSize(2))
	if err != nil {
		t.Fatal(err)
	}
	first := s.Primary()
	first.Kill()
	write()
	second := s.Primary()
	if second == nil || second == first {
		t.Error("nobody else is the primary")
	}
	var docs []bson.Raw
	if err := cursor.All(t.Context(), &docs); err != nil || len(docs) != 101 {
		t.Errorf("the cursor on a secondary: %d documents, %v", len(docs), err)
	}
	first.Start()
	second.StepDown()
	write()
	if third := s.Primary(); third == nil || third == second {
		t.Error("the member that stepped down is the primary")
	}
	var doc struct{ N int }
	if err := coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: 1}}).Decode(&doc); err != nil || doc.N != 3 {
		t.Errorf("%d writes, %v", doc.N, err)
	}
}

// TestMembersRefuse: a secondary takes no writes, and reads from those only who say that a secondary will do; a cursor is a member's own.
func TestMembersRefuse(t *testing.T) {
	s := start(t, replicaset.Options{})
	member := func(i int) *mongo.Database {
		return connect(t, "mongodb://"+s.Members()[i].Addr()+"/?directConnection=true").Database(fleettest.DB(t))
	}
	primary, secondary := member(0), member(1)
	if _, err := primary.Collection("c").InsertMany(t.Context(), []any{bson.D{}, bson.D{}, bson.D{}}); err != nil {
		t.Fatal(err)
	}
	if err := secondary.RunCommand(t.Context(), bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}}).Err(); codeOf(err) != 10107 {
		t.Errorf("a write on a secondary: %v", err)
	}
	ask := connectRaw(t, s.Members()[1].Addr())
	if code := ask(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}}); code != 13435 {
		t.Errorf("a read on a secondary that is for the primary: %d", code)
	}
	if code := ask(bson.D{{Key: "getMore", Value: int64(12345)}, {Key: "collection", Value: "c"}, {Key: "$db", Value: "d"}}); code != 43 {
		t.Errorf("another member's cursor: %d", code)
	}
	if code := ask(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}, {Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondaryPreferred"}}}}); code != 0 {
		t.Errorf("a read on a secondary: %d", code)
	}
}

// TestNoMajorityNoPrimary: one of three elects nobody.
func TestNoMajorityNoPrimary(t *testing.T) {
	s := start(t, replicaset.Options{Election: 50 * time.Millisecond})
	s.Members()[1].Kill()
	s.Members()[0].Kill()
	time.Sleep(200 * time.Millisecond)
	if s.Primary() != nil {
		t.Error("one of three is the primary")
	}
	s.Members()[1].Start()
	for end := time.Now().Add(30 * time.Second); s.Primary() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("two of three elect nobody")
		}
	}
}
