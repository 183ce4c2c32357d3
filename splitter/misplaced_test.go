package splitter_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
)

// logText is what was logged.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logText) lines(with ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
line:
	for line := range strings.Lines(l.buf.String()) {
		for _, w := range with {
			if !strings.Contains(line, w) {
				continue line
			}
		}
		n++
	}
	return n
}

// TestPartitionWithMisplacedDocumentsIsSplitAndMerged: documents that somebody wrote into the wrong partition, or with an array as the key, are kept and logged.
func TestPartitionWithMisplacedDocumentsIsSplitAndMerged(t *testing.T) {
	var log logText
	w := newWorld(t, func(c *splitter.Config) { c.Log = zerolog.New(&log) })
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "k", 2)
	db := w.b.Client().Database("db")
	m := w.store.Snapshot().Maps["db.c"]
	lower := m.Partitions[0]
	n, lost := 0, 0
	for i := 0; n < 50 || lost < 3; i++ {
		doc := bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		pos, err := m.Key.Position(raw)
		if err != nil {
			t.Fatal(err)
		}
		if !lower.Range.Contains(pos) {
			if lost == 3 {
				continue
			}
			lost++
		}
		n++
		if _, err := db.Collection(lower.Physical).InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Collection(lower.Physical).InsertOne(t.Context(), bson.D{{Key: "_id", Value: -1}, {Key: "k", Value: bson.A{1, 2}}}); err != nil {
		t.Fatal(err)
	}
	n++
	count := func() (total int64) {
		for _, p := range w.store.Snapshot().Maps["db.c"].Partitions {
			c, err := db.Collection(p.Physical).CountDocuments(t.Context(), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			total += c
		}
		return total
	}
	if err := w.split.SplitMedian(t.Context(), "db.c", lower.Range.Lo); err != nil {
		t.Fatal(err)
	}
	parts := w.store.Snapshot().Maps["db.c"].Partitions
	if len(parts) != 3 || count() != int64(n) {
		t.Fatalf("after the split there are %d documents in %d partitions, want %d in 3", count(), len(parts), n)
	}
	if at := parts[0].Range.Hi; !lower.Range.Contains(at) {
		t.Errorf("split at %d, outside of the partition", at)
	}
	if got := log.lines(`"level":"warn"`, `"ns":"db.c"`, "a document lies in a partition", lower.Physical); got != lost+1 {
		t.Errorf("%d misplaced documents were logged, want %d", got, lost+1)
	}
	if err := w.split.Merge(t.Context(), "db.c", shardkey.Range{Lo: parts[0].Range.Lo, Hi: parts[1].Range.Hi}); err != nil {
		t.Fatal(err)
	}
	if parts = w.store.Snapshot().Maps["db.c"].Partitions; len(parts) != 2 || count() != int64(n) {
		t.Errorf("after the merge there are %d documents in %d partitions, want %d in 2", count(), len(parts), n)
	}
}
