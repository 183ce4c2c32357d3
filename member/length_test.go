package member

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// TestLeaseOutlastsElection: what is set counts; otherwise the lease is as long as the backend's election timeout needs.
func TestLeaseOutlastsElection(t *testing.T) {
	settings := func(millis any) backendtest.Answer {
		return backendtest.OK(bson.E{Key: "config", Value: bson.D{{Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: millis}}}}})
	}
	for name, tt := range map[string]struct {
		set    time.Duration
		answer backendtest.Answer
		want   time.Duration
	}{
		"the servers' default":       {0, settings(int64(10_000)), 30 * time.Second},
		"a slow set":                 {0, settings(int32(60_000)), 30*time.Second + 57500*time.Millisecond},
		"a quick set":                {0, settings(int64(2_000)), 20800 * time.Millisecond},
		"the user may not read it":   {0, backendtest.Err(13, "Unauthorized", "not authorized on admin to execute command"), 30 * time.Second},
		"a standalone":               {0, backendtest.Err(76, "NoReplicationEnabled", "not running with --replSet"), 30 * time.Second},
		"an answer without settings": {0, backendtest.OK(), 30 * time.Second},
		"what is set is not changed": {2 * time.Second, settings(int64(60_000)), 2 * time.Second},
		"nonsense":                   {0, settings(int64(-5)), 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := backendtest.New(t)
			s.SetScript(func(backendtest.Command) backendtest.Answer { return tt.answer })
			b, err := backend.Open(t.Context(), backend.Config{ID: "b1", URI: s.URI(), Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close(context.Background())
			got, err := New(Config{Lease: tt.set}).leaseLength(t.Context(), b)
			if err != nil || got != tt.want {
				t.Errorf("%s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

// TestLeaseLengthNeedsAnAnswer: a backend that is in a failover says nothing of its settings, so nothing is assumed.
func TestLeaseLengthNeedsAnAnswer(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.Err(11602, "InterruptedDueToReplStateChange", "interrupted")
	})
	b, err := backend.Open(t.Context(), backend.Config{ID: "b1", URI: s.URI(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	if _, err := New(Config{}).leaseLength(t.Context(), b); err == nil {
		t.Error("a length without an answer")
	}
}
