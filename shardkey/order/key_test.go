package order

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/internal/sample"
)

type (
	obj = bson.D
	arr = bson.A
)

// o is an object of name and value pairs.
func o(pairs ...any) obj {
	out := obj{}
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

// TestSortLadders has a mongod's order of documents for each rule of its sort keys: a document is less than all on higher rungs, and equal to those on its own.
func TestSortLadders(t *testing.T) {
	for _, c := range []struct {
		rule   string
		sort   obj
		ladder [][]obj
	}{
		{"the least element, ascending", o("v", 1), [][]obj{
			{o("v", arr{}), o("v", bson.Undefined{}), o("v", arr{1, bson.Undefined{}})},
			{o(), o("v", nil), o("v", arr{nil, 3}), o("v", arr{3, nil})},
			{o("v", 1), o("v", arr{7, 1}), o("v", arr{1.0, arr{}})},
			{o("v", arr{2, "a"})},
			{o("v", "a"), o("v", arr{arr{1}, "a"})},
			{o("v", o())},
			{o("v", o("a", 1)), o("v", arr{o("a", 1), arr{}})},
			{o("v", arr{arr{}})}, // an array in an array is a value like others, and an empty one too
			{o("v", arr{arr{1}})},
			{o("v", arr{arr{1, 0}, arr{2}})},
		}},
		{"the greatest element, descending", o("v", -1), [][]obj{
			{o("v", arr{arr{2}, arr{1}})},
			{o("v", arr{arr{}})},
			{o("v", arr{o("a", 1), "a"}), o("v", o("a", 1))},
			{o("v", arr{"a", 7})},
			{o("v", arr{7, 1}), o("v", 7)},
			{o("v", arr{1, nil})},
			{o(), o("v", nil), o("v", arr{nil})},
			{o("v", arr{}), o("v", bson.Undefined{})},
		}},
		{"a path through an array", o("v.a", 1), [][]obj{
			{o("v", o("a", arr{})), o("v", arr{o("a", arr{})}), o("v", arr{7, o("a", arr{})})},
			{o(), o("v", 5), o("v", arr{}), o("v", arr{5}), o("v", o()), o("v", arr{o("a", 3), 7}), o("v", arr{arr{o("a", 1)}}), o("v", arr{o("a", 3), arr{}}),
				o("v", arr{o("b", 1), o("a", 3)})},
			{o("v", o("a", 1)), o("v", arr{o("a", 2), o("a", 1)}), o("v", arr{o("a", arr{4, 1}), o("a", 2)})},
			{o("v", arr{o("a", 2)})},
			{o("v", arr{o("a", arr{arr{1}})})},
		}},
		{"a path through an array, descending", o("v.a", -1), [][]obj{
			{o("v", arr{o("a", arr{arr{1}})})},
			{o("v", arr{o("a", arr{1, 4}), o("a", 2)}), o("v", arr{7, o("a", 4)})},
			{o("v", arr{o("a", 2), o("a", 1)})},
			{o(), o("v", arr{}), o("v", arr{5}), o("v", arr{arr{o("a", 1)}})},
			{o("v", arr{o("a", arr{})})},
		}},
		{"a position at the end of the path", o("v.0", 1), [][]obj{
			{o("v", arr{arr{}}), o("v", arr{arr{}, 5}), o("v", arr{bson.Undefined{}})},
			{o(), o("v", nil), o("v", arr{}), o("v", 5), o("v", o("1", 5)), o("v", arr{nil, 1})},
			{o("v", arr{1, 0}), o("v", o("0", 1)), o("v", o("0", arr{2, 1}))},
			{o("v", arr{2})},
			{o("v", arr{arr{1, 9}})},
			{o("v", arr{arr{2, 0}, 1})}, // not entered: an array in the array counts as a whole
			{o("v", arr{arr{arr{}}})},
		}},
		{"a position that is not there is a field's name", o("v.3", 1), [][]obj{
			{o("v", arr{o("3", arr{})})},
			{o("v", arr{o("3", 1), 7}), o("v", arr{1, 2, 3})},
			{o("v", arr{o("3", 1), o("3", 2)}), o("v", arr{0, 0, 0, 1})},
		}},
		{"a position on the way", o("v.0.a", 1), [][]obj{
			{o("v", arr{o("a", arr{})}), o("v", arr{arr{o("a", arr{})}})},
			{o("v", arr{arr{}}), o("v", arr{5}), o("v", arr{arr{o("a", 1), 7}}), o("v", arr{o("b", 1), o("a", 1)})},
			{o("v", arr{o("a", 1)}), o("v", arr{arr{o("a", 2), o("a", 1)}}), o("v", arr{o("a", arr{3, 1}), 7})}, // entered: the path goes on
			{o("v", arr{o("a", 2), o("a", 1)})},
		}},
		{"a position in an array inside", o("v.a.0", 1), [][]obj{
			{o("v", arr{o("a", arr{arr{}})})},
			{o("v", arr{o("a", 1)}), o("v", arr{o("a", arr{5}), o("a", arr{})})},
			{o("v", arr{o("a", arr{5, 6}), o("a", arr{1})})},
			{o("v", arr{o("a", arr{5, 0})})},
		}},
		{"two positions", o("v.0.0", 1), [][]obj{
			{o("v", arr{arr{arr{}}})},
			{o("v", arr{arr{}}), o("v", arr{5})},
			{o("v", arr{arr{1}}), o("v", arr{arr{1, 0}, 0})},
			{o("v", arr{arr{arr{0}}})},
		}},
		{"two fields of one element", o("v.a", 1, "v.b", -1), [][]obj{
			{o("v", arr{})},
			{o("v", arr{o("a", 1, "b", 5), o("a", 1, "b", 9), o("a", 2, "b", 20)})},
			{o("v", arr{o("a", 1, "b", 5), o("a", 2, "b", 20)})}, // not 1 and 20: those are two elements'
			{o("v", arr{o("a", 2, "b", 1), o("a", 2)})},
			{o("v", arr{o("a", 2, "b", arr{})})},
		}},
		{"an array and what is in it", o("v", 1, "v.a", 1), [][]obj{
			{o("v", arr{})},
			{o("v", arr{1, o("a", 0)})},
			{o("v", arr{o("a", 1), o("a", 2)})},
			{o("v", arr{o("a", 2)})},
		}},
		{"one field by position, one by element", o("v.0.a", 1, "v.b", 1), [][]obj{
			{o("v", arr{o("a", arr{2, 1}, "b", 3), o("a", 9, "b", 0)})}, // 1 and 0
			{o("v", arr{o("a", 1, "b", 3), o("a", 0, "b", 2)})},         // 1 and 2
			{o("v", arr{o("a", 1, "b", 3)})},
		}},
		{"an array by its position, and what is in that", o("v.0", 1, "v.0.1", -1), [][]obj{
			{o("v", arr{arr{}})},
			{o("v", arr{arr{3, 7}})},
			{o("v", arr{arr{3, 8}})},
		}},
		{"two fields without an array between them", o("v", 1, "w.a", -1), [][]obj{
			{o("v", arr{3, 1}, "w", o("a", 2))},
			{o("v", arr{3, 1}, "w", o("a", 1))},
			{o("v", 2, "w", o("a", 9))},
		}},
	} {
		raw, err := bson.Marshal(c.sort)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ParseSort(raw)
		if err != nil {
			t.Fatal(err)
		}
		for i, rung := range c.ladder {
			for _, a := range rung {
				for j, other := range c.ladder {
					for _, b := range other {
						if got, want := sign(s.CompareKeys(s.AppendKey(nil, document(t, a)), s.AppendKey(nil, document(t, b)))), sign(i-j); got != want {
							t.Errorf("%s: %v against %v is %d, want %d", c.rule, a, b, got, want)
						}
					}
				}
			}
		}
	}
}

func document(t *testing.T, d obj) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestSortKeyOfOddDocuments: parallel arrays and malformed ones come from no server that sorted them. They have some key, the same each time.
func TestSortKeyOfOddDocuments(t *testing.T) {
	s := parse(t, o("v.a", 1, "w", 1, "v.0", -1))
	bad := sample.Document("v", arr{1, o("a", arr{2})}, "w", 1)
	for _, doc := range []bson.Raw{
		sample.Document("v", arr{o("a", 1)}, "w", arr{1, 2}), sample.Document("v", arr{o("0", 1, "a", arr{})}, "w", arr{}), bad[:len(bad)-3], nil, {5, 0, 0, 0, 0},
	} {
		a, b := s.AppendKey(nil, doc), s.AppendKey([]bsoncore.Value{Null}, doc)[1:]
		if len(a) != 3 || s.CompareKeys(a, b) != 0 {
			t.Errorf("%v: %s", doc, fmt.Sprint(a, b))
		}
	}
}
