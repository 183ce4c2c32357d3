package router

import (
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// TestReadsAreRepeated: a read that meets a primary which has just stepped down is run again, and so is a write's search for its document. A transaction's statement
// is not: the transaction has ended there.
func TestReadsAreRepeated(t *testing.T) {
	byName := bson.A{d("q", d("name", 1), "u", d("$inc", d("n", 1)))}
	for name, tt := range map[string]struct {
		cmd  bson.D
		code wire.Code
	}{
		"a find":                   {d("find", "c", "filter", d("name", 1)), 0},
		"a find by keys":           {d("find", "c", "filter", d("_id", d("$in", bson.A{1, 2, 3, 4, 5, 6, 7}))), 0},
		"a count":                  {d("count", "c"), 0},
		"a distinct":               {d("distinct", "c", "key", "a"), 0},
		"an aggregate":             {d("aggregate", "c", "pipeline", bson.A{}, "cursor", d()), 0},
		"an update's search":       {d("update", "c", "updates", byName), 0},
		"a findAndModify's search": {d("findAndModify", "c", "query", d("name", 1), "remove", true), 0},
		"a transaction's read":     {inTxn(1, true, d("find", "one")), wire.HostUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			e, servers := scriptEnv(t)
			e.shard("c", "_id", 2)
			e.shard("one", "_id", 1)
			var asked atomic.Int32
			stepsDown := func(c backendtest.Command) backendtest.Answer {
				if c.Name != "find" && c.Name != "count" && c.Name != "distinct" && c.Name != "aggregate" {
					return writesDone(c)
				}
				if home := c.Body.Lookup(c.Name).StringValue(); strings.HasSuffix(home, "@1.0.0") && asked.Add(1) == 1 {
					return backendtest.Err(13435, "NotPrimaryNoSecondaryOk", "not primary and secondaryOk=false")
				}
				return backendtest.OK(bson.E{Key: "n", Value: int32(0)}, bson.E{Key: "values", Value: bson.A{}},
					bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{})})
			}
			for _, s := range servers {
				s.SetScript(stepsDown)
			}
			_, err := e.raw(tt.cmd)
			if asked.Load() == 0 {
				t.Error("the primary that steps down was not asked")
			}
			switch e := wire.AsError(err); {
			case tt.code == 0 && err != nil:
				t.Errorf("%v after %d tries", err, asked.Load())
			case tt.code != 0 && (e == nil || e.Code != tt.code || asked.Load() != 1):
				t.Errorf("%v after %d tries, want %d after one", err, asked.Load(), tt.code)
			}
		})
	}
}
