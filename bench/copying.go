package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// copiedDocuments is enough for the copy to take a second or two: what a server does before its first batch is not what is compared.
const copiedDocuments = 50_000

var copyMeasures = []string{"reshape copy: to bulk insert", "finds beside a reshape: p99 to without"}

// copying compares the copy phase of a move with inserting as many documents into the server that it goes to, and finds during moves with finds at rest.
func (b *bench) copying(ctx context.Context, own target, to string) error {
	if !b.wants(copyMeasures...) {
		return nil
	}
	p, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + own.addr + "/").SetTimeout(5 * time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = p.Disconnect(ctx) }()
	err = p.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "bench.moved"}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}, {Key: "numInitialChunks", Value: 1}}).Err()
	if err != nil {
		return err
	}
	if _, err := bulkInsert(own.addr, "moved"); err != nil {
		return err
	}
	m := &mover{p: p, at: "a"}
	round := 0
	copied, inserted, err := b.alternate(func() (float64, error) { return m.move(ctx) }, func() (float64, error) {
		round++
		coll := fmt.Sprintf("straight%d", round)
		if err := keyIndex(ctx, to, coll); err != nil {
			return 0, err
		}
		return bulkInsert(to, coll)
	})
	if err != nil {
		return err
	}
	b.value(copyMeasures[0], copied/inserted, 0.8, true, fmt.Sprintf("%.0f documents/s; phases in ms: %v", copied, m.phases))

	l := load{conns: 8, message: findMessage}
	moving, stop := context.WithCancel(ctx)
	defer stop()
	var during, rest []float64
	for range b.rounds {
		quiet, err := sample(own, l, b.length)
		if err != nil {
			return err
		}
		moved := make(chan error, 1)
		go func() {
			_, err := m.move(moving)
			moved <- err
		}()
		busy, err := sample(own, l, b.length)
		if err != nil {
			return err
		}
		if err := <-moved; err != nil {
			return err
		}
		during, rest = append(during, float64(busy.p99)), append(rest, float64(quiet.p99))
	}
	b.value(copyMeasures[1], median(during)/median(rest), 1.5, false, time.Duration(median(during)).Round(time.Microsecond).String())
	return nil
}

// mover moves the one partition of bench.moved to and fro.
type mover struct {
	p      *mongo.Client
	at     string
	phases bson.D // of the last move, in milliseconds
}

// move moves it once, to b unless it is there, and returns the documents a second of the copy phase.
func (m *mover) move(ctx context.Context) (float64, error) {
	to := "b"
	if m.at == "b" {
		to = "c"
	}
	err := m.p.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: "bench.moved"}, {Key: "find", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "to", Value: to}}).Err()
	if err != nil {
		return 0, err
	}
	m.at = to
	var change struct {
		Details struct{ PhaseMillis bson.D }
	}
	err = m.p.Database("config").Collection("changelog").FindOne(ctx, bson.D{{Key: "what", Value: "moveChunk.commit"}, {Key: "ns", Value: "bench.moved"}},
		options.FindOne().SetSort(bson.D{{Key: "time", Value: -1}})).Decode(&change)
	if err != nil {
		return 0, err
	}
	m.phases = change.Details.PhaseMillis
	for _, ph := range m.phases {
		if n, ok := ph.Value.(int64); ok && ph.Key == "copy" {
			return copiedDocuments / (time.Duration(n) * time.Millisecond).Seconds(), nil
		}
	}
	return 0, fmt.Errorf("no time of the copy in %v", m.phases)
}

// keyIndex makes a collection with the index on k that a partition has, so that a server does the same for each document.
func keyIndex(ctx context.Context, addr, coll string) error {
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/?directConnection=true").SetTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(ctx) }()
	_, err = c.Database("bench").Collection(coll).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}})
	return err
}

// bulkInsert inserts as many documents as are copied, and returns how many a second.
func bulkInsert(addr, coll string) (float64, error) {
	c, err := dial(addr)
	if err != nil {
		return 0, err
	}
	defer c.close()
	var took time.Duration
	for from := 0; from < copiedDocuments; from += documentsPerBatch {
		msg := batch(coll, false, documentsPerBatch, func(i int) any { return from + i }, func(i int) int32 { return int32(from + i) })
		began := time.Now()
		if err := c.send(msg); err != nil {
			return 0, err
		}
		if err := c.receive(nil); err != nil {
			return 0, err
		}
		took += time.Since(began)
	}
	return copiedDocuments / took.Seconds(), nil
}
