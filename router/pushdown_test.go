package router

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/internal/waits"
)

// TestWhatIsPushedDown checks what the partitions are asked for (mongos-behaviour §3.4): limit and skip together at most, no single batch, and all as it is
// where one partition is concerned. A read that is done leaves no cursor anywhere.
func TestWhatIsPushedDown(t *testing.T) {
	for _, c := range []struct {
		name string
		cmd  bson.D
		// sent are fields of every partition's find; nil for a field that must not be there.
		sent   map[string]any
		asked  int
		killed bool // the partitions' cursors are open when the reply is complete
	}{
		{"skip and limit", d("find", "c", "sort", d("_id", 1), "skip", 5, "limit", 3), map[string]any{"limit": int64(8), "skip": nil, "singleBatch": nil}, 3, true},
		{"a single batch", d("find", "c", "sort", d("_id", 1), "limit", 3, "singleBatch", true, "batchSize", 2), map[string]any{"limit": int64(3), "singleBatch": nil, "batchSize": int64(2)}, 3, true},
		{"limit 1", d("find", "c", "limit", 1), map[string]any{"limit": int64(1)}, 3, true},
		{"one partition", d("find", "c", "filter", d("k", 1), "skip", 500, "limit", 3, "singleBatch", true), map[string]any{"limit": int64(3), "skip": int64(500), "singleBatch": true}, 1, false},
		{"count", d("count", "c", "query", d("v", 1), "skip", 5, "limit", -3), map[string]any{"limit": int64(8), "skip": nil}, 3, false},
		{"count of one partition", d("count", "c", "query", d("k", 1), "skip", 5, "limit", 3), map[string]any{"limit": int64(8), "skip": nil}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, servers := scriptEnv(t)
			e.shard("c", "k", 3)
			for i, s := range servers {
				s.SetScript(func(cmd backendtest.Command) backendtest.Answer {
					switch cmd.Name {
					case "find":
						docs := bson.A{d("_id", i), d("_id", i+10), d("_id", i+20)}
						id := int64(77)
						if c.asked == 1 {
							id = 0
						}
						return backendtest.OK(bson.E{Key: "cursor", Value: d("firstBatch", docs, "id", id, "ns", "x.y")})
					case "getMore":
						return backendtest.OK(bson.E{Key: "cursor", Value: d("nextBatch", bson.A{}, "id", int64(0), "ns", "x.y")})
					case "count":
						return backendtest.OK(bson.E{Key: "n", Value: int32(9)})
					}
					return backendtest.OK()
				})
			}
			if _, err := e.runPlain(c.cmd); err != nil {
				t.Fatal(err)
			}
			asked := 0
			for _, s := range servers {
				for _, cmd := range s.Received() {
					if cmd.Name != c.cmd[0].Key {
						continue
					}
					asked++
					for field, want := range c.sent {
						if got, err := bsoncore.Document(cmd.Body).LookupErr(field); err != nil && want != nil || err == nil && !sameValue(got, want) {
							t.Errorf("%s: %v, want %v in %v", field, got, want, bson.Raw(cmd.Body))
						}
					}
				}
			}
			if asked != c.asked {
				t.Errorf("%d partitions were asked, want %d", asked, c.asked)
			}
			if c.killed {
				for i, s := range servers {
					// They are ended behind the reply.
					waits.Until(t, "backend "+itoa(i)+"'s cursor is killed", func() bool { return closedCursor(s) })
				}
			}
		})
	}
}

// closedCursor reports whether the server was told to end its cursor, or gave the last batch.
func closedCursor(s *backendtest.Server) bool {
	for _, cmd := range s.Received() {
		if cmd.Name == "killCursors" || cmd.Name == "getMore" {
			return true
		}
	}
	return false
}

func sameValue(got bsoncore.Value, want any) bool {
	switch w := want.(type) {
	case int64:
		n, ok := got.AsInt64OK()
		return ok && n == w
	case bool:
		b, ok := got.BooleanOK()
		return ok && b == w
	}
	return false
}
