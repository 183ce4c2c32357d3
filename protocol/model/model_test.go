package model

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// states is how many states of a configuration are explored: all of those that have no more, and the nearest to the start of those that have. Set
// SHARDWAY_MODEL_STATES to some 20000000 for the long run; a state takes about 150 bytes.
func states(t *testing.T) int {
	if s := os.Getenv("SHARDWAY_MODEL_STATES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() {
		return 10_000
	}
	return 300_000
}

func holds(t *testing.T, r Result) {
	t.Helper()
	if r.Broken != "" {
		t.Fatalf("violated: %s\n%s\n%s", r.Broken, strings.Join(r.Trace, "\n"), r.Bad)
	}
}

// TestProtocol explores every configuration breadth first. In each state all invariants are looked at; the last one, that some continuation ends everything,
// when all states are known.
func TestProtocol(t *testing.T) {
	if err := checkGateFields(); err != nil {
		t.Fatal(err)
	}
	limit := states(t)
	for _, cfg := range Configs() {
		t.Run(cfg.Name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			r := newModel(cfg, Whole).Search(limit, false)
			holds(t, r)
			last := "all of them; each comes to an end"
			if !r.Whole {
				last = "the nearest to the start"
			}
			t.Logf("%d states, %s; %d steps; %d states of threads, %d of gates; %v", r.States, last, r.Steps, r.Locals, r.Tables, time.Since(began).Round(time.Millisecond))
		})
	}
}

// TestWalks goes random ways through configurations that are too large to be explored, each way to its end.
func TestWalks(t *testing.T) {
	walks := max(states(t)/150, 100)
	for _, cfg := range Large() {
		t.Run(cfg.Name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			r := newModel(cfg, Whole).Walk(1, walks, 3000)
			holds(t, r)
			t.Logf("%d ways, %d steps; %d states of threads, %d of gates; %v", walks, r.Steps, r.Locals, r.Tables, time.Since(began).Round(time.Millisecond))
		})
	}
}
