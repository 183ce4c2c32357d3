package order

import (
	"strconv"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// undefined stands for an empty array in a key: it comes before null.
var undefined = bsoncore.Value{Type: bsoncore.TypeUndefined}

// AppendKey appends doc's sort key, one value for each field, as MongoDB computes it: a missing field is null, an empty array comes before null, and of an array
// the element counts that comes first in the direction of the sort; fields inside the elements of one array are taken from one element together. The
// values are parts of doc. Parallel arrays, which MongoDB refuses to sort by, are compared as whole arrays.
//
// Without an array on a path it allocates nothing beyond dst.
func (s Sort) AppendKey(dst []bsoncore.Value, doc bson.Raw) []bsoncore.Value {
	start := len(dst)
	arrays := false
	for i := range s.fields {
		t := descend(doc, s.fields[i].parts)
		arrays = arrays || t.array
		dst = append(dst, t.value)
	}
	if !arrays {
		return dst
	}
	k := keys{sort: s}
	traces := make([]trace, len(s.fields))
	for i := range s.fields {
		traces[i] = descend(doc, s.fields[i].parts)
	}
	k.expand(traces, 0)
	copy(dst[start:], k.best)
	return dst
}

// trace is how far one field's path was followed.
type trace struct {
	value bsoncore.Value // what was found; an array to be expanded where array is set
	array bool
	rest  []string // the path inside the elements of the array
}

// descend follows parts into a document, up to its end or the first array. A number in the path picks an element of an array.
func descend(doc []byte, parts []string) trace {
	for i := 0; i < len(parts); i++ {
		v, found := element.Lookup(doc, parts[i])
		if !found {
			return trace{value: Null}
		}
		picked := false
		for v.Type == bsoncore.TypeArray && i+1 < len(parts) {
			element, ok := pick(v.Data, parts[i+1])
			if !ok {
				break
			}
			v, picked = element, true
			i++
		}
		switch {
		case picked && i == len(parts)-1:
			return trace{value: v} // an array picked out of an array counts as a whole
		case v.Type == bsoncore.TypeArray:
			return trace{value: v, array: true, rest: parts[i+1:]}
		case i == len(parts)-1:
			return trace{value: v}
		case v.Type != bsoncore.TypeEmbeddedDocument:
			return trace{value: Null}
		}
		doc = v.Data
	}
	return trace{value: Null}
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

// keys looks for the least of the keys that a document with arrays has.
type keys struct {
	sort Sort
	best []bsoncore.Value
}

// expand goes through the elements of the first array among traces, and of the same array in other fields, and on into what is found there.
func (k *keys) expand(traces []trace, depth int) {
	first := -1
	for i := range traces {
		if traces[i].array {
			first = i
			break
		}
	}
	if first < 0 || depth > maxDepth {
		k.offer(traces)
		return
	}
	array := traces[first].value.Data
	next := make([]trace, len(traces))
	it := element.In(array)
	var e element.Element
	n := 0
	for ; it.Next(&e); n++ {
		k.expand(inElement(next, traces, array, &e), depth+1)
	}
	if n == 0 {
		k.expand(inElement(next, traces, array, nil), depth+1)
	}
}

// inElement gives in dst what traces find when array is replaced by its element e; nil stands for an empty array.
func inElement(dst, traces []trace, array []byte, e *element.Element) []trace {
	for i, t := range traces {
		switch {
		case !t.array:
		case &t.value.Data[0] != &array[0]:
			t.array = false // a parallel array
		case e == nil && len(t.rest) == 0:
			t = trace{value: undefined}
		case len(t.rest) == 0:
			t = trace{value: e.Value()}
		case e != nil && e.Type == bsoncore.TypeEmbeddedDocument:
			t = descend(e.Data, t.rest)
		default:
			t = trace{value: Null}
		}
		dst[i] = t
	}
	return dst
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
