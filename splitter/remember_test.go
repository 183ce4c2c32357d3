package splitter_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/shardkey"
)

// written inserts a document, deletes it again, and returns the time of that.
func (w *world) written(t *testing.T, physical string) bson.Timestamp {
	t.Helper()
	s, err := w.b.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), s)
	coll := w.b.Client().Database("db").Collection(physical)
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := coll.DeleteOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	return *s.OperationTime()
}

// remembers checks which homes the newest map of a namespace has replaced, each with a marker that is not before the last write there, and with all positions.
func (w *world) remembers(t *testing.T, what, ns string, want map[string]bson.Timestamp) *catalog.Map {
	t.Helper()
	m := w.store.Snapshot().Maps[ns]
	if m == nil {
		t.Fatalf("%s: no map", what)
	}
	if len(m.Retired) != len(want) {
		t.Errorf("%s: %+v, want %v", what, m.Retired, want)
	}
	for _, o := range m.Retired {
		last, ok := want[o.Physical]
		if !ok || o.Backend != "b1" || o.Marker.Before(last) || o.Marker.IsZero() || o.Range != (shardkey.Range{}) {
			t.Errorf("%s: remembers %+v, want %v", what, o, want)
		}
	}
	return m
}

// TestReplacedHomesAreRemembered: what was executed before a collection was sharded while empty, dropped or renamed is on record at homes that the maps from then on name, so that
// a repetition of it can be told (router: TestRetryOverTwoFlips).
func TestReplacedHomesAreRemembered(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	if err := w.store.CreateDatabase(ctx, "db", "b1"); err != nil {
		t.Fatal(err)
	}
	key, err := shardkey.ParsePattern(bson.Raw(mustMarshal(t, bson.D{{Key: "k", Value: "hashed"}})))
	if err != nil {
		t.Fatal(err)
	}
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(w.split.ShardCollection(ctx, "db.never", key, 2))
	w.remembers(t, "a collection that was never there, sharded", "db.never", nil)

	old := map[string]bson.Timestamp{"c": w.written(t, "c")}
	step(w.split.ShardCollection(ctx, "db.c", key, 2))
	m := w.remembers(t, "sharded while empty", "db.c", old)

	for _, p := range m.Partitions {
		old[p.Physical] = w.written(t, p.Physical)
	}
	step(w.split.Drop(ctx, "db.c"))
	w.remembers(t, "dropped", "db.c", old)
	step(w.split.Create(ctx, "db.c", nil))
	m = w.remembers(t, "made anew", "db.c", old)

	// db.d takes the place of it, with what it had itself.
	under := map[string]bson.Timestamp{"d": w.written(t, "d")}
	step(w.split.Rename(ctx, "db.d", "db.c", true))
	now := map[string]bson.Timestamp{m.Partitions[0].Physical: {}}
	for name, at := range old {
		now[name] = at
	}
	w.remembers(t, "replaced", "db.c", now)
	w.remembers(t, "renamed", "db.d", under)
}
