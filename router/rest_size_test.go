package router

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// largestCommand is the largest body of a command that a mongod takes; a larger one is 10334 BSONObjectTooLarge.
const largestCommand = 16<<20 + 16<<10

// sortedEnv is a scriptEnv whose collection has two partitions; each has count documents of so many bytes of text, sorted, and what runs over $documents says that it found one. It
// refuses what a mongod would. runs counts the commands with $documents.
func sortedEnv(t *testing.T, count, text int) (e *writeEnv, runs *atomic.Int32) {
	t.Helper()
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 2)
	runs = &atomic.Int32{}
	for i, s := range servers {
		at := atomic.Int32{}
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if c.Name != "aggregate" && c.Name != "getMore" {
				return writesDone(c)
			}
			if first, ok := c.Body.Lookup("pipeline", "0").DocumentOK(); ok && first.Index(0).Key() == "$documents" {
				runs.Add(1)
				if len(c.Body) > largestCommand {
					return backendtest.Err(10334, "BSONObjectTooLarge", "BSONObj size is invalid")
				}
				return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{d("n", 1)})})
			}
			batch := "firstBatch"
			if c.Name == "getMore" {
				batch = "nextBatch"
			} else {
				at.Store(0)
			}
			docs, size := bson.A{}, 0
			for size < 2<<20 && int(at.Load()) < count {
				n := int(at.Add(1)) - 1
				docs = append(docs, d("_id", int32(2*n+i), "t", strings.Repeat("x", text)))
				size += text + 24
			}
			id := int64(7)
			if int(at.Load()) == count {
				id = 0
			}
			return backendtest.OK(bson.E{Key: "cursor", Value: d("id", id, "ns", "x.y", batch, docs)})
		})
	}
	return e, runs
}

// TestWhatFollowsAMergeFits: the documents that stages are run over go to a backend in one command, which must be one that it takes, however small or large they are.
func TestWhatFollowsAMergeFits(t *testing.T) {
	all := bson.A{d("$sort", d("_id", 1)), d("$group", d("_id", nil, "n", d("$push", "$t")))}
	each := bson.A{d("$sort", d("_id", 1)), d("$project", d("n", d("$strLenCP", "$t")))}
	for _, c := range []struct {
		what        string
		count, text int
		pipeline    bson.A
		code        wire.Code
	}{
		{"tiny documents, all at once", 150_000, 0, all, 0},
		{"more tiny documents, all at once", 190_000, 0, all, wire.QueryExceededMemoryLimitNoDiskUseAllowed},
		{"tiny documents in parts", 60_000, 0, each, 0},
		{"large documents in parts", 2, 15 << 20, each, 0},
		{"large documents, all at once", 1, 7 << 20, all, wire.QueryExceededMemoryLimitNoDiskUseAllowed},
		{"documents of middle size in parts", 5, 7 << 20, each, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			e, runs := sortedEnv(t, c.count, c.text)
			_, err := e.raw(d("aggregate", "c", "pipeline", c.pipeline, "cursor", d()))
			if c.code == 0 && (err != nil || runs.Load() == 0) || c.code != 0 && (err == nil || wire.AsError(err).Code != c.code) {
				t.Errorf("%v after %d runs, want code %d", fmt.Sprint(err), runs.Load(), c.code)
			}
		})
	}
}
