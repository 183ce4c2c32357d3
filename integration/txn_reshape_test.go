package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

// A reshape waits for an open transaction that has touched its input, attempt after attempt, and aborts it in the end: the transaction's client is told to begin anew, and
// nothing of it is there.
func TestReshapeAndOpenTransaction(t *testing.T) {
	f := fleettest.Start(t, 1)
	fleettest.Need(t, f, fleet.ReplicaSet)
	client := connect(t, running.Test(t, f.Servers, faultSettings...).URI())
	command(t, client, "admin", shardCmd("open.c", "k"))
	c := client.Database("open").Collection("c")
	for i := range 20 {
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	session, err := client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(context.Background())
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	in := mongo.NewSessionContext(t.Context(), session)
	if _, err := c.InsertOne(in, bson.D{{Key: "_id", Value: 100}, {Key: "k", Value: 100}}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	command(t, client, "admin", bson.D{{Key: "split", Value: "open.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: 100}}}})
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("the split took %s: it waited for the transaction to die", took)
	}
	err = session.CommitTransaction(in)
	var labelled mongo.LabeledError
	if !errors.As(err, &labelled) || !labelled.HasErrorLabel("TransientTransactionError") {
		t.Errorf("commit after the split: %v, want a TransientTransactionError", err)
	}
	if n, err := c.CountDocuments(t.Context(), bson.D{}); err != nil || n != 20 {
		t.Errorf("%d documents, %v; want 20", n, err)
	}
}
