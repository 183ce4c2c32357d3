package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestTransactions runs withTransaction of the Go driver through a whole proxy: transfers between two collections commit whole or not at all, and a drop waits for an
// open transaction.
func TestTransactions(t *testing.T) {
	client := connect(t, sharedProxy(t).URI())
	ctx, db := t.Context(), client.Database("go_transactions")
	t.Cleanup(func() { _ = db.Drop(context.Background()) })
	from, to := db.Collection("from"), db.Collection("to")
	for _, c := range []*mongo.Collection{from, to} {
		if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 100}}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(context.Background())
	stop := errors.New("the transfer is called off")
	transfer := func(n int, fail error) error {
		_, err := s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			for c, d := range map[*mongo.Collection]int{from: -n, to: n} {
				if _, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: d}}}}); err != nil {
					return nil, err
				}
			}
			return nil, fail
		})
		return err
	}
	holds := func(c *mongo.Collection, want int) {
		t.Helper()
		var doc struct{ N int }
		if err := c.FindOne(ctx, bson.D{{Key: "_id", Value: 1}}).Decode(&doc); err != nil || doc.N != want {
			t.Errorf("%s has %d, %v; want %d", c.Name(), doc.N, err, want)
		}
	}
	if err := transfer(30, nil); err != nil {
		t.Fatal(err)
	}
	if err := transfer(5, stop); !errors.Is(err, stop) {
		t.Errorf("an aborted one: %v", err)
	}
	holds(from, 70)
	holds(to, 130)

	// A change of a map waits for an open transaction.
	if err := s.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	in := mongo.NewSessionContext(ctx, s)
	if _, err := from.UpdateOne(in, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne()); err != nil {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	go func() { dropped <- from.Drop(ctx) }()
	select {
	case err := <-dropped:
		t.Fatalf("the drop did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if _, err := to.UpdateOne(in, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
		t.Errorf("beside the drop: %v", err)
	}
	if err := s.CommitTransaction(ctx); err != nil {
		t.Errorf("commit: %v", err)
	}
	if err := <-dropped; err != nil {
		t.Errorf("drop: %v", err)
	}
	holds(to, 131)
	if n, err := from.CountDocuments(ctx, bson.D{}); err != nil || n != 0 {
		t.Errorf("dropped, and %d documents are there, %v", n, err)
	}
}
