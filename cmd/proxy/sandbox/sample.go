package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	sampleDB        = "sample"
	sampleOrders    = "orders"
	sampleSize      = 20_000
	sampleCustomers = 2_000
	sampleBatch     = 200
	// samplePause spreads the load over some seconds: the point is to watch the partitions split.
	samplePause = 100 * time.Millisecond
	// sampleTries bounds how often a batch is sent while a server or a proxy is being started again.
	sampleTries = 30
)

// loadSample shards sample.orders by customer and fills it, in front of one's eyes.
func (s *sandbox) loadSample(ctx context.Context) error {
	client, err := mongo.Connect(options.Client().ApplyURI(s.proxies[0].uri()).SetAppName("shardway sandbox"))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = client.Disconnect(closing)
	}()
	shard := bson.D{{Key: "shardCollection", Value: sampleDB + "." + sampleOrders}, {Key: "key", Value: bson.D{{Key: "customer", Value: "hashed"}}}}
	if err := client.Database("admin").RunCommand(ctx, shard).Err(); err != nil {
		return err
	}
	orders := client.Database(sampleDB).Collection(sampleOrders)
	there, err := orders.EstimatedDocumentCount(ctx)
	if err != nil || there >= sampleSize {
		return err
	}
	s.say("\nLoading %d orders into sample.orders, sharded by customer. A partition splits beyond %s.", sampleSize, s.options.MaxPartitionBytes)
	progress := newProgress(s, sampleSize)
	random := rand.New(rand.NewPCG(1, 2)) // the same orders each time, whatever is there already
	for from := 0; from < sampleSize; from += sampleBatch {
		batch := make([]any, sampleBatch)
		for i := range batch {
			batch[i] = order(random, from+i)
		}
		if err := insertAll(ctx, orders, batch); err != nil {
			return err
		}
		progress.show(from+len(batch), s.partitions(ctx, client))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(samplePause):
		}
	}
	progress.end()
	return nil
}

// insertAll inserts a batch under ids of our own, again after an error, until each document is there
// once; a duplicate then is a document that arrived before.
func insertAll(ctx context.Context, c *mongo.Collection, batch []any) error {
	var err error
	for range sampleTries {
		_, err = c.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false))
		var bulk mongo.BulkWriteException
		if err == nil || errors.As(err, &bulk) && bulk.WriteConcernError == nil && onlyDuplicates(bulk) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return err
}

func onlyDuplicates(bulk mongo.BulkWriteException) bool {
	for _, e := range bulk.WriteErrors {
		if e.Code != 11000 {
			return false
		}
	}
	return true
}

// partitions says how many partitions there are and where; "" when that cannot be read just now.
func (s *sandbox) partitions(ctx context.Context, client *mongo.Client) string {
	db := client.Database("config")
	var coll struct {
		UUID bson.Binary `bson:"uuid"`
	}
	if err := db.Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: sampleDB + "." + sampleOrders}}).Decode(&coll); err != nil {
		return ""
	}
	cursor, err := db.Collection("chunks").Find(ctx, bson.D{{Key: "uuid", Value: coll.UUID}})
	if err != nil {
		return ""
	}
	var chunks []struct {
		Shard string `bson:"shard"`
	}
	if err := cursor.All(ctx, &chunks); err != nil {
		return ""
	}
	count := map[string]int{}
	for _, c := range chunks {
		count[c.Shard]++
	}
	where := make([]string, s.options.Backends)
	for i := range where {
		where[i] = fmt.Sprint(count[backendID(i)])
	}
	return fmt.Sprintf("%d partitions (%s)", len(chunks), strings.Join(where, "+"))
}
