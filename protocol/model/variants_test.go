package model

import (
	"testing"
	"time"
)

// caughtBy names, for each broken rule, a configuration that shows what it is for.
var caughtBy = map[Variant]string{
	NoLookAfter:          "a lease lapses under a write",
	LookAcceptsNew:       "a lease lapses under a write",
	MembersBeforeRecord:  "a proxy joins",
	ClosingBeforeRecord:  "the owner crashes, another cleans up",
	FloorsBeforeClosings: "a proxy joins",
	UncloseBeforeFloor:   "a proxy joins",
	OpenWithoutVersion:   "a proxy burns",
	OneMarker:            "two writes of one document, one cut",
	CountPastMarker:      "move, two proxies, cut requests retried",
	OneSession:           "split, output on the input's backend",
	NoBurn:               "the owner stalls, another takes over",
	OutputsAgain:         "the owner stalls, another takes over",
	DropUnread:           "a sweep",
	MapBeforeRecords:     "a sweep",
	NoLifetime:           "a transaction, its proxy crashes",
	MarkAfter:            "a transaction, its proxy crashes",
	AdmitsAll:            "a write is sent again under a new lease",
	OlderVersionOpens:    "two reshapes, a proxy that lags",
}

func configNamed(t *testing.T, name string) *Config {
	t.Helper()
	for _, cfg := range Configs() {
		if cfg.Name == name {
			return cfg
		}
	}
	t.Fatal("no configuration ", name)
	return nil
}

// TestBrokenRules breaks one rule of the protocol after the other: each must be found.
func TestBrokenRules(t *testing.T) {
	for v := Whole + 1; v < variants; v++ {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			cfg := configNamed(t, caughtBy[v])
			began := time.Now()
			r := newModel(cfg, v).Search(1_000_000, false)
			t.Logf("%s: %d states, %d steps, whole %v, violated: %s, %v", cfg.Name, r.States, r.Steps, r.Whole, r.Broken, time.Since(began).Round(time.Millisecond))
			if r.Broken == "" {
				t.Fatal("not found")
			}
			for _, s := range r.Trace {
				t.Log(s)
			}
		})
	}
}
