package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// drainLimit is how long a backend may take to be emptied under faults before it is asked back all the same.
	drainLimit = 40 * time.Second
	drainPoll  = 100 * time.Millisecond
)

// drains has one backend after the other emptied, and asks it back, until ctx ends. The catalog's stays.
func (w *faulty) drains(ctx context.Context, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 98))
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Duration(r.IntN(4000)) * time.Millisecond):
		case <-ctx.Done():
			return
		}
		j := r.IntN(backends-1) + 1
		w.draining.Store(int64(j + 1))
		if w.empty(ctx, j, r) {
			w.drained.Add(1)
		}
		w.askBack(j)
		w.draining.Store(0)
	}
}

// empty has removeShard empty a backend, and reports whether it did. Whichever proxy is asked, the answer is the catalog's.
func (w *faulty) empty(ctx context.Context, j int, r *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	for ctx.Err() == nil {
		var reply struct {
			State     string
			Remaining struct{ Chunks int64 }
		}
		limited, done := context.WithTimeout(ctx, 3*time.Second)
		err := w.clients[r.IntN(faultyProxies)].Database("admin").RunCommand(limited, bson.D{{Key: "removeShard", Value: fmt.Sprintf("b%d", j+1)}}).Decode(&reply)
		done()
		if err == nil && reply.State == "ongoing" && reply.Remaining.Chunks == 0 {
			return true
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
		}
	}
	return false
}

// askBack has a backend stay that was being emptied, through whichever proxy is there.
func (w *faulty) askBack(j int) {
	ctx, cancel := context.WithTimeout(w.t.Context(), killSettle)
	defer cancel()
	for i := 0; ctx.Err() == nil; i++ {
		if w.addShard(ctx, w.clients[i%faultyProxies], fmt.Sprintf("b%d", j+1)) == nil {
			return
		}
		time.Sleep(drainPoll)
	}
	w.t.Errorf("b%d could not be asked back", j+1)
}

// addShard asks a proxy to add a backend that is there, under the host that it says itself.
func (w *faulty) addShard(ctx context.Context, proxy *mongo.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var list struct {
		Shards []struct {
			ID   string `bson:"_id"`
			Host string
		}
	}
	if err := proxy.Database("admin").RunCommand(ctx, bson.D{{Key: "listShards", Value: 1}}).Decode(&list); err != nil {
		return err
	}
	for _, s := range list.Shards {
		if s.ID == id {
			return proxy.Database("admin").RunCommand(ctx, bson.D{{Key: "addShard", Value: s.Host}, {Key: "name", Value: s.ID}}).Err()
		}
	}
	return fmt.Errorf("there is no %s", id)
}
