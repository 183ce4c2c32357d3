package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/differential"
)

const (
	diffOps     = 20_000           // by default; half of them with reshapes going on
	diffProgram = 500              // operations of one program
	shrinkLimit = 90 * time.Second // for dropping steps from a program that failed
)

// TestDifferential runs random operations against the proxy over three servers and against one server: every reply must be the same.
func TestDifferential(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SHARDWAY_DIFF_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	ops := number(t, "SHARDWAY_DIFF_OPS", diffOps)
	if testing.Short() {
		ops = min(ops, 2*diffProgram)
	}
	t.Logf("SHARDWAY_DIFF_SEED=%d SHARDWAY_DIFF_OPS=%d", seed, ops)
	programs := max(2, ops/diffProgram)
	t.Run("still", func(t *testing.T) {
		for i := range programs / 2 {
			compare(t, seed+uint64(i), false)
		}
	})
	t.Run("reshaping", func(t *testing.T) {
		for i := programs / 2; i < programs; i++ {
			compare(t, seed+uint64(i), true)
		}
	})
}

// compare runs one program and, when it fails, tells the shortest one that still does.
func compare(t *testing.T, seed uint64, reshaping bool) {
	t.Helper()
	if t.Failed() {
		return // one difference at a time
	}
	proxy := sharedProxy(t)
	client := connect(t, proxy.URI())
	catalog := connect(t, fleettest.Shared(t, backends)[0].URI())
	a := differential.Side{Addr: proxy.Addr(), Sharded: true, Partitions: 3}
	b := differential.Side{Addr: direct(t).Addr()}
	tries := 0
	did := map[string]int{}
	try := func(ctx context.Context, p differential.Program) (*differential.Difference, error) {
		tries++
		db := fmt.Sprintf("diff_%d_%d", seed, tries)
		if !reshaping {
			return differential.Run(ctx, p, a, b, db, nil)
		}
		var r *reshaper
		d, err := differential.Run(ctx, p, a, b, db, func() {
			r = startReshaper(t, client, catalog, seed, db+".byk", db+".byid", db+".bypath")
		})
		if r != nil {
			did = r.stop()
			t.Logf("seed %d: %v, failed %v", seed, did, r.failures())
		}
		return d, err
	}
	p := differential.New(seed, diffProgram, differential.Config{Repeats: !reshaping})
	d, err := try(t.Context(), p)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if d == nil {
		if reshaping && did["split"]+did["moveChunk"]+did["mergeChunks"] == 0 {
			t.Errorf("seed %d: nothing was reshaped", seed)
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), shrinkLimit)
	defer cancel()
	small := differential.Shrink(ctx, p, d.Step, func(p differential.Program) bool {
		again, err := try(t.Context(), p)
		return err == nil && again != nil && again.Step == len(p.Steps)-1
	})
	if again, err := try(t.Context(), small); err == nil && again != nil {
		d, p = again, small
	} else {
		small.Steps = nil
		t.Logf("the shrunk program does not fail every time (%v); this is the first failure", err)
	}
	t.Errorf("seed %d, proxy (A) and server (B) differ at %s\nwhat is left of the program:\n%s", seed, d.String(p), small.Transcript())
}
