package model

import (
	"testing"
	"time"
)

func TestConfigs(t *testing.T) {
	if err := checkGateFields(); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range Configs() {
		t.Run(cfg.Name, func(t *testing.T) {
			began := time.Now()
			r := newModel(cfg, Whole).Search(400_000, false)
			t.Logf("%d states, %d steps, whole %v, %d thread states, %d gate states, %v", r.States, r.Steps, r.Whole, r.Locals, r.Tables, time.Since(began).Round(time.Millisecond))
			if r.Broken != "" {
				for _, s := range r.Trace {
					t.Log(s)
				}
				t.Fatalf("violated: %s\n%s", r.Broken, r.Bad)
			}
		})
	}
}
