package merge

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// parseSlice reads {path: {$slice: n}} and {path: {$slice: [skip, limit]}}; ok is false for anything else.
func parseSlice(e bsoncore.Element) (sl sliced, ok bool) {
	d, isDoc := e.Value().DocumentOK()
	if !isDoc {
		return sl, false
	}
	v, err := d.LookupErr("$slice")
	if err != nil {
		return sl, false
	}
	sl.path = strings.Split(e.Key(), ".")
	if arr, isArr := v.ArrayOK(); isArr {
		values, err := arr.Values()
		if err != nil || len(values) != 2 {
			return sl, false
		}
		skip, ok1 := whole(values[0])
		limit, ok2 := whole(values[1])
		sl.skip, sl.limit = skip, limit
		return sl, ok1 && ok2 && limit > 0
	}
	n, ok := whole(v)
	sl.limit, sl.tail = n, n < 0
	if n < 0 {
		sl.limit = -n
	}
	return sl, ok
}

// whole reads an integer of any number type.
func whole(v bsoncore.Value) (int64, bool) {
	if n, ok := v.AsInt64OK(); ok {
		return n, true
	}
	f, ok := v.AsFloat64OK()
	return int64(f), ok && f == float64(int64(f))
}

// apply slices the arrays at path, going through arrays on the way as a projection does.
func (sl sliced) apply(doc bson.Raw, path []string) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		if e.Key() != path[0] {
			out = append(out, e...)
			continue
		}
		out = bsoncore.AppendValueElement(out, e.Key(), sl.in(e.Value(), path[1:]))
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

func (sl sliced) in(v bsoncore.Value, path []string) bsoncore.Value {
	if d, ok := v.DocumentOK(); ok && len(path) > 0 {
		return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sl.apply(bson.Raw(d), path)}
	}
	arr, ok := v.ArrayOK()
	if !ok {
		return v
	}
	values, _ := arr.Values()
	b := bsoncore.NewArrayBuilder()
	if len(path) > 0 {
		for _, el := range values {
			b.AppendValue(sl.in(el, path))
		}
	} else {
		from, to := sl.bounds(int64(len(values)))
		for _, el := range values[from:to] {
			b.AppendValue(el)
		}
	}
	return bsoncore.Value{Type: bsoncore.TypeArray, Data: b.Build()}
}

// bounds returns which elements of n remain.
func (sl sliced) bounds(n int64) (from, to int64) {
	switch {
	case sl.tail:
		from = max(0, n-sl.limit)
		return from, n
	case sl.skip < 0:
		from = max(0, n+sl.skip)
	default:
		from = min(sl.skip, n)
	}
	return from, min(n, from+min(sl.limit, n))
}
