package splitter

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestLoose adds documents as two readings in the same order give them and looks at what is left without a counterpart.
func TestLoose(t *testing.T) {
	type doc struct{ id, v int32 }
	type add struct {
		home, side int
		doc        doc
	}
	tests := map[string]struct {
		adds []add
		left []int32
	}{
		"nothing":                        {},
		"the same, one later":            {[]add{{0, 0, doc{1, 1}}, {0, 1, doc{2, 1}}, {0, 1, doc{1, 1}}, {0, 0, doc{2, 1}}}, nil},
		"one more in the output":         {[]add{{0, 0, doc{2, 1}}, {0, 1, doc{1, 1}}, {0, 0, doc{3, 1}}, {0, 1, doc{2, 1}}, {0, 1, doc{3, 1}}}, []int32{1}},
		"another value":                  {[]add{{0, 0, doc{1, 1}}, {0, 1, doc{1, 2}}}, []int32{1}},
		"in another home than it should": {[]add{{0, 0, doc{1, 1}}, {1, 1, doc{1, 1}}}, []int32{1}},
		"only in the input":              {[]add{{1, 0, doc{7, 1}}}, []int32{7}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLoose(2)
			for _, a := range tt.adds {
				raw, err := bson.Marshal(bson.D{{Key: "_id", Value: a.doc.id}, {Key: "v", Value: a.doc.v}})
				if err != nil {
					t.Fatal(err)
				}
				l.add(a.home, a.side, raw)
			}
			var left []int32
			for _, id := range l.ids() {
				left = append(left, id.Int32())
			}
			slices.Sort(left)
			if !slices.Equal(left, tt.left) {
				t.Errorf("left are %v, not %v", left, tt.left)
			}
			if len(left) == 0 && (l.n != 0 || l.bytes != 0) {
				t.Errorf("nothing is left, but %d documents of %d bytes are counted", l.n, l.bytes)
			}
		})
	}
}
