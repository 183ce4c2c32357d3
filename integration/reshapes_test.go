package integration

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// reshaper splits, moves and merges the partitions of some collections at random, as fast as it can, until it is stopped.
type reshaper struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	did    map[string]int // how often each command succeeded
	failed map[string]int // and each error came
}

const maxChunks = 9 // of one collection; from here on partitions are merged

func startReshaper(t *testing.T, client, catalog *mongo.Client, seed uint64, namespaces ...string) *reshaper {
	ctx, cancel := context.WithCancel(t.Context())
	r := &reshaper{cancel: cancel, done: make(chan struct{}), did: map[string]int{}, failed: map[string]int{}}
	go func() {
		defer close(r.done)
		random := rand.New(rand.NewPCG(seed, 7))
		for ctx.Err() == nil {
			r.step(ctx, client, catalog, random, namespaces[random.IntN(len(namespaces))])
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // so that a failing proxy is not asked in a tight loop
			}
		}
	}()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the reshaper, waits for it, and tells how often each command succeeded.
func (r *reshaper) stop() map[string]int {
	r.cancel()
	<-r.done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.did
}

func (r *reshaper) step(ctx context.Context, client, catalog *mongo.Client, random *rand.Rand, ns string) {
	all, err := chunks(ctx, catalog, ns)
	if err != nil || len(all) == 0 {
		return // the collection is not there yet, or no longer
	}
	i := random.IntN(len(all))
	c := all[i]
	var cmd bson.D
	switch kind := random.IntN(3); {
	case kind == 0 && len(all) < maxChunks:
		cmd = bson.D{{Key: "split", Value: ns}, {Key: "bounds", Value: c.bounds()}}
	case i+1 < len(all) && all[i+1].Shard == c.Shard && (kind == 1 || len(all) >= maxChunks):
		cmd = bson.D{{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{c.Min, all[i+1].Max}}}
	default:
		to := "b" + string(rune('1'+random.IntN(backends)))
		if i+1 < len(all) && random.IntN(2) == 0 {
			to = all[i+1].Shard // so that there is something to merge
		}
		if to == c.Shard {
			return
		}
		cmd = bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: c.bounds()}, {Key: "to", Value: to}}
	}
	err = client.Database("admin").RunCommand(ctx, cmd).Err()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[cmd[0].Key+": "+err.Error()]++
		return
	}
	r.did[cmd[0].Key]++
}

// failures are the errors that came, each with its number.
func (r *reshaper) failures() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}
