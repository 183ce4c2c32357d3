package router

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// on returns an _id whose document lies on a backend.
func (e *writeEnv) on(name, backendID string, after int) int {
	e.t.Helper()
	c := e.table.View().Collection(e.db + "." + name)
	for i := after + 1; i < after+10_000; i++ {
		pos, err := c.Key.Position(mustMarshal(d("_id", i)))
		if err != nil {
			e.t.Fatal(err)
		}
		if c.At(pos).Backend == backendID {
			return i
		}
	}
	e.t.Fatalf("no _id on %s", backendID)
	return 0
}

func (e *writeEnv) session() *mongo.Session {
	e.t.Helper()
	s, err := e.client.StartSession()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { s.EndSession(context.Background()) })
	return s
}

// settled waits until no transaction is open and every gate is left.
func (e *writeEnv) settled() {
	e.t.Helper()
	waits.Until(e.t, "no transaction is open", func() bool { return e.router.Transactions() == 0 })
	e.table.View().Mapped(func(c *partition.Collection) bool {
		for _, p := range c.Parts {
			if n := p.Gate().Transactions(); n != 0 {
				e.t.Errorf("%d transactions hold the gate of %v", n, p.Home)
			}
		}
		return true
	})
}

// TestTransactionOnServers commits and aborts over real servers: two partitions of one backend, a plain collection on it, reads of one's own writes, isolation from others.
func TestTransactionOnServers(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 6) // two partitions on each backend
	plain := e.client.Database(e.db).Collection("plain")
	if _, err := plain.InsertOne(e.ctx, d("_id", 0, "n", 0)); err != nil {
		t.Fatal(err)
	}
	a := e.on("c", "b0", 0)
	b := a
	for e.partOf("c", b) == e.partOf("c", a) {
		b = e.on("c", "b0", b)
	}
	s := e.session()
	for _, commit := range []bool{true, false} {
		_, err := s.WithTransaction(e.ctx, func(ctx context.Context) (any, error) {
			for _, id := range []int{a, b} {
				if _, err := coll.UpdateOne(ctx, d("_id", id), d("$inc", d("n", 1)), options.UpdateOne().SetUpsert(true)); err != nil {
					return nil, err
				}
			}
			if _, err := plain.UpdateOne(ctx, d("_id", 0), d("$inc", d("n", 1))); err != nil {
				return nil, err
			}
			cur, err := coll.Find(ctx, d("_id", d("$in", bson.A{a, b})), options.Find().SetSort(d("_id", 1)).SetBatchSize(1))
			if err != nil {
				return nil, err
			}
			var docs []struct{ N int }
			if err := cur.All(ctx, &docs); err != nil {
				return nil, err
			}
			want := 1
			if !commit {
				want = 2
			}
			if len(docs) != 2 || docs[0].N != want || docs[1].N != want {
				t.Errorf("inside: %+v, want %d", docs, want)
			}
			var out struct{ N int }
			err = coll.FindOneAndUpdate(ctx, d("_id", a), d("$inc", d("m", 1)), options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&out)
			if err != nil {
				return nil, err
			}
			if n := e.count(coll); commit && n != 0 {
				t.Errorf("%d documents are seen outside before the commit", n)
			}
			if !commit {
				return nil, errors.New("no")
			}
			return nil, nil
		})
		if (err == nil) != commit {
			t.Fatalf("commit %v: %v", commit, err)
		}
		var doc struct{ N int }
		if err := plain.FindOne(e.ctx, d("_id", 0)).Decode(&doc); err != nil || doc.N != 1 || e.count(coll) != 2 {
			t.Errorf("after commit %v: %+v %v, %d documents", commit, doc, err, e.count(coll))
		}
		e.settled()
	}
}

func (e *writeEnv) partOf(name string, id int) string {
	c := e.table.View().Collection(e.db + "." + name)
	pos, _ := c.Key.Position(mustMarshal(d("_id", id)))
	return c.At(pos).Physical
}

func (e *writeEnv) count(coll *mongo.Collection) int {
	e.t.Helper()
	n, err := coll.CountDocuments(e.ctx, d())
	if err != nil {
		e.t.Fatal(err)
	}
	return int(n)
}

// TestTransactionRefusesSecondBackend: nothing of it is applied, and the error says so without asking for a repetition.
func TestTransactionRefusesSecondBackend(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 3)
	a, b := e.on("c", "b0", 0), e.on("c", "b1", 0)
	for name, second := range map[string]func(context.Context) error{
		"insert": func(ctx context.Context) error { _, err := coll.InsertOne(ctx, d("_id", b)); return err },
		"find": func(ctx context.Context) error {
			return coll.FindOne(ctx, d("_id", b)).Err()
		},
		"scan": func(ctx context.Context) error { _, err := coll.Find(ctx, d()); return err },
		"batch": func(ctx context.Context) error {
			_, err := coll.InsertMany(ctx, []any{d("_id", a+1000000), d("_id", b)}, options.InsertMany().SetOrdered(false))
			return err
		},
		"keyless update": func(ctx context.Context) error {
			_, err := coll.UpdateOne(ctx, d("x", 1), d("$set", d("x", 2)))
			return err
		},
	} {
		s := e.session()
		runs := 0
		_, err := s.WithTransaction(e.ctx, func(ctx context.Context) (any, error) {
			runs++
			if _, err := coll.InsertOne(ctx, d("_id", a)); err != nil {
				return nil, err
			}
			return nil, second(ctx)
		})
		var se mongo.ServerError
		if !errors.As(err, &se) || !se.HasErrorCode(int(wire.OperationNotSupportedInTransaction)) || runs != 1 {
			t.Errorf("%s: after %d runs %v", name, runs, err)
		}
		if n := len(e.all("c")); n != 0 {
			t.Errorf("%s: %d documents are there", name, n)
		}
		e.settled()
	}
}

// TestTransactionConflict gives a write conflict its label, and withTransaction repeats it.
func TestTransactionConflict(t *testing.T) {
	e := fleetEnv(t)
	coll := e.shard("c", "_id", 3)
	a := e.on("c", "b0", 0)
	if _, err := coll.InsertOne(e.ctx, d("_id", a, "n", 0)); err != nil {
		t.Fatal(err)
	}
	first, second := e.session(), e.session()
	if err := first.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot())); err != nil {
		t.Fatal(err)
	}
	in := mongo.NewSessionContext(e.ctx, first)
	if _, err := coll.UpdateOne(in, d("_id", a), d("$inc", d("n", 1))); err != nil {
		t.Fatal(err)
	}
	runs := 0
	_, err := second.WithTransaction(e.ctx, func(ctx context.Context) (any, error) {
		runs++
		_, err := coll.UpdateOne(ctx, d("_id", a), d("$inc", d("n", 1)))
		if runs == 1 {
			var se mongo.ServerError
			if !errors.As(err, &se) || !se.HasErrorLabel(transientTransaction) {
				t.Errorf("the conflict: %v", err)
			}
			if err := first.CommitTransaction(e.ctx); err != nil {
				t.Error(err)
			}
		}
		return nil, err
	})
	var doc struct{ N int }
	if err != nil || runs != 2 || coll.FindOne(e.ctx, d("_id", a)).Decode(&doc) != nil || doc.N != 2 {
		t.Errorf("%v after %d runs, n is %d", err, runs, doc.N)
	}
	e.settled()
}
