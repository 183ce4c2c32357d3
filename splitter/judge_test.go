package splitter

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
)

// TestJudge: what differs twice and was the same both times ends the attempt; what has changed between the two readings says nothing yet and is left for closed gates, in bounds.
func TestJudge(t *testing.T) {
	doc := func(id, v int32) difference {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}})
		if err != nil {
			t.Fatal(err)
		}
		return difference{id: bson.Raw(raw).Lookup("_id"), input: raw}
	}
	gone := func(id int32) difference { return difference{id: doc(id, 0).id} }
	var many []difference
	for i := range int32(maxRestless + 1) {
		many = append(many, doc(i, 1))
	}
	for what, c := range map[string]struct {
		before, now []difference
		restless    int
		fails       bool
	}{
		"nothing differs any more":   {[]difference{doc(1, 1)}, nil, 0, false},
		"it stands":                  {[]difference{doc(1, 1)}, []difference{doc(1, 1)}, 0, true},
		"it stands as deleted":       {[]difference{gone(1)}, []difference{gone(1)}, 0, true},
		"it has changed":             {[]difference{doc(1, 1)}, []difference{doc(1, 2)}, 1, false},
		"it was deleted":             {[]difference{doc(1, 1)}, []difference{gone(1)}, 1, false},
		"one has changed, one not":   {[]difference{doc(1, 1), doc(2, 1)}, []difference{doc(1, 2), doc(2, 1)}, 0, true},
		"too many change":            {nil, many, 0, true},
		"two have changed, one rest": {[]difference{doc(1, 1), doc(2, 1), doc(3, 1)}, []difference{doc(1, 2), doc(2, 2)}, 2, false},
	} {
		r := &reshape{s: &Splitter{log: zerolog.Nop()}, coll: &partition.Collection{NS: "d.c"}, rec: &catalog.Reshape{ID: bson.NewObjectID()}}
		err := r.judge(c.before, c.now)
		var again retryable
		if (err != nil) != c.fails || err != nil && !errors.As(err, &again) {
			t.Errorf("%s: %v", what, err)
		}
		if !c.fails && len(r.restless) != c.restless {
			t.Errorf("%s: %d left for closed gates, want %d", what, len(r.restless), c.restless)
		}
	}
}
