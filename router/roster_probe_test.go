package router

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// TestABackendThatRefusesIsNamedAtTheStart: a backend is asked what sessions did as it joins, and
// the log says which right the user lacks; one that answers leaves no trace.
func TestABackendThatRefusesIsNamedAtTheStart(t *testing.T) {
	const sentence = "not authorized on config to execute command { find: \\\"transactions\\\" }"
	for _, tt := range []struct {
		what   string
		answer backendtest.Answer
		hello  backendtest.Hello
		said   bool
	}{
		{"refused", backendtest.Err(13, "Unauthorized", `not authorized on config to execute command { find: "transactions" }`), backendtest.ReplicaSet("rs"), true},
		{"answered", backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{})}), backendtest.ReplicaSet("rs"), false},
		{"a standalone", backendtest.Err(13, "Unauthorized", "not to be asked"), backendtest.Standalone(), false},
	} {
		s := backendtest.New(t)
		s.SetHello(tt.hello)
		s.SetScript(func(backendtest.Command) backendtest.Answer { return tt.answer })
		b, err := backend.Open(t.Context(), backend.Config{ID: "b0", URI: s.URI()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		var log bytes.Buffer
		o := &Roster{Log: zerolog.New(&log)}
		o.probe(t.Context(), b)
		if said := strings.Contains(log.String(), sentence) && strings.Contains(log.String(), "clusterMonitor"); said != tt.said || !tt.said && log.Len() > 0 {
			t.Errorf("%s: the log says %s", tt.what, log.String())
		}
	}
}
