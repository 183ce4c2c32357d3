package order

import (
	"strconv"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// undefined stands for an empty array in a key: it comes before null.
var undefined = bsoncore.Value{Type: bsoncore.TypeUndefined}

// AppendKey appends doc's sort key, one value for each field, as a server computes it: like the keys of an index over the same fields, of which the first one in the
// direction of the sort counts.
//
//   - What is missing is null. That holds too where a path goes on behind something that is neither an object nor an array.
//   - Of an array at the end of a path each element makes a key; an empty one makes the key undefined, which comes before null.
//   - An array on the way is entered once: its elements that are objects are followed, all others, arrays included, have nothing there. An empty one has nothing there.
//   - A number in a path is first a field's name, in an object, and a position in an array. An array that was found by its position is entered as well if the path goes on. At the end of the
//     path it counts as a whole, unless it is empty.
//   - Fields that lead through one array make their keys together, element by element.
//
// A sort that leads through two arrays which are not one in the other is refused by servers (2), as is a path with a number that is a position in an array and a field's name in one of its
// elements (16746). So no merge meets them; here such arrays count as a whole, and the field's name comes first.
//
// The values are parts of doc. Without an array on a path it allocates nothing beyond dst.
func (s Sort) AppendKey(dst []bsoncore.Value, doc bson.Raw) []bsoncore.Value {
	start := len(dst)
	arrays := false
	for i := range s.fields {
		v, _, found := descend(doc, s.fields[i].parts)
		if !found {
			v = Null
		}
		arrays = arrays || v.Type == bsoncore.TypeArray
		dst = append(dst, v)
	}
	if !arrays {
		return dst
	}
	k := keys{sort: s}
	traces := make([]trace, len(s.fields))
	for i := range s.fields {
		traces[i] = trace{rest: s.fields[i].parts}
	}
	k.expand(traces, doc)
	copy(dst[start:], k.best)
	return dst
}

// descend follows a path through objects, to its end or to the first array; rest is what is left of the path then.
func descend(doc []byte, parts []string) (v bsoncore.Value, rest []string, found bool) {
	for i, part := range parts {
		if v, found = element.Lookup(doc, part); !found {
			return v, nil, false
		}
		rest = parts[i+1:]
		if v.Type == bsoncore.TypeArray || len(rest) == 0 {
			return v, rest, true
		}
		if v.Type != bsoncore.TypeEmbeddedDocument {
			return v, nil, false
		}
		doc = v.Data
	}
	return v, nil, false
}

// pick returns the element of an array that a part of a path names by its number.
func pick(array []byte, part string) (bsoncore.Value, bool) {
	if part[0] < '0' || part[0] > '9' || len(part) > 9 {
		return bsoncore.Value{}, false
	}
	if n, err := strconv.Atoi(part); err != nil || strconv.Itoa(n) != part {
		return bsoncore.Value{}, false
	}
	return element.Lookup(array, part)
}

// trace is how far one field's path was followed.
type trace struct {
	// value is the field's part of the key, once the path was followed to its end (done).
	value bsoncore.Value
	done  bool
	// rest is the path from here on.
	rest []string
	// Where rest begins with a position in the array whose elements are gone through, at is what was found by it, at its own end or at the next array, with what was left of the path then.
	at     bsoncore.Value
	atRest []string
	// positional says that there is an element of that position, found that at is anything, nested that the element is an array itself.
	positional, found, nested bool
}

// finish ends a trace with its part of the key.
func (t *trace) finish(v bsoncore.Value) { *t = trace{value: v, done: true} }

// next follows the path from an object, or from the position in the array that the object is an element of.
func (t *trace) next(doc []byte) (v bsoncore.Value, rest []string, found, nested bool) {
	if _, named := element.Lookup(doc, t.rest[0]); named || !t.positional {
		v, rest, found = descend(doc, t.rest)
		return v, rest, found, false
	}
	return t.at, t.atRest, t.found, t.nested
}

// keys looks for the least of the keys that a document with arrays has.
type keys struct {
	sort Sort
	best []bsoncore.Value
}

// expand follows traces from one object, nil for none, to the first array, and then from each of its elements. Each array is behind at least one part of a path, so it comes to an end.
func (k *keys) expand(traces []trace, doc []byte) {
	var array bsoncore.Value
	whole := false // the array counts as a whole
	for i := range traces {
		t := &traces[i]
		if t.done {
			continue
		}
		v, rest, found, nested := t.next(doc)
		switch {
		case !found:
			t.finish(Null)
		case v.Type != bsoncore.TypeArray || array.Type != 0 && &v.Data[0] != &array.Data[0]: // found, or a parallel array
			t.finish(v)
		default:
			array, whole = v, whole || nested
			*t = trace{rest: rest}
		}
	}
	if array.Type == 0 {
		k.offer(traces)
		return
	}
	it := element.In(array.Data)
	if !it.More() {
		k.offer(inEmpty(traces))
		return
	}
	findPositions(traces, array.Data)
	next := make([]trace, len(traces))
	var e element.Element
	for it.Next(&e) {
		copy(next, traces)
		for i := range next {
			switch t := &next[i]; {
			case t.done || len(t.rest) > 0:
			case whole:
				t.finish(array)
			default:
				t.finish(e.Value())
			}
		}
		var inner []byte
		if e.Type == bsoncore.TypeEmbeddedDocument {
			inner = e.Data
		}
		k.expand(next, inner)
	}
}

// inEmpty ends the traces that have met an empty array.
func inEmpty(traces []trace) []trace {
	for i := range traces {
		switch t := &traces[i]; {
		case t.done:
		case len(t.rest) == 0:
			t.finish(undefined)
		default:
			t.finish(Null)
		}
	}
	return traces
}

// findPositions looks up what the traces that go on with a number find in an array by it.
func findPositions(traces []trace, array []byte) {
	for i := range traces {
		t := &traces[i]
		if t.done || len(t.rest) == 0 {
			continue
		}
		element, ok := pick(array, t.rest[0])
		if !ok {
			continue
		}
		t.positional, t.nested = true, element.Type == bsoncore.TypeArray
		t.at, t.atRest, t.found = descend(array, t.rest)
	}
}

// offer takes the key that traces make, if it is the least so far.
func (k *keys) offer(traces []trace) {
	key := make([]bsoncore.Value, len(traces))
	for i, t := range traces {
		key[i] = t.value
	}
	if k.best == nil || k.sort.CompareKeys(key, k.best) < 0 {
		k.best = key
	}
}
