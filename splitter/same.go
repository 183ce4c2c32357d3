package splitter

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// The options and indexes of a copy are compared with those of what it was made like. Servers of
// different versions list the same thing with small differences: a default that is written out, a
// number of another type, the version of a format. Those do not count.

// lacks says what a home lacks, or has too much, to be a copy of want; "" for nothing. An index on
// the shard key, if there is a key, may come on top.
func (i *collectionInfo) lacks(want collectionInfo, key *shardkey.Pattern) string {
	switch {
	case !i.exists:
		return "it does not exist"
	case i.view != want.view:
		return "one is a view and the other is not"
	}
	if name := differentField(plainOptions(i.options), plainOptions(want.options)); name != "" {
		return fmt.Sprintf("the option %s is %v and not %v", name, field(i.options, name), field(want.options, name))
	}
	have, like := byName(i.indexes), byName(want.indexes)
	for name, ix := range like {
		if have[name] == nil {
			return "the index " + name + " is missing"
		}
		if part := differentField(plainIndex(have[name]), plainIndex(ix)); part != "" {
			return fmt.Sprintf("of the index %s, %s is %v and not %v", name, part, field(have[name], part), field(ix, part))
		}
	}
	for name, ix := range have {
		if like[name] == nil && !isKeyIndex(ix, key) && !i.isMeasurementsIndex(ix) {
			return "the index " + name + " is not the collection's"
		}
	}
	return ""
}

// isKeyIndex reports whether an index is one that createKeyIndex makes, or an older version made: on
// the shard key, with or without _id behind it.
func isKeyIndex(ix bson.D, key *shardkey.Pattern) bool {
	keys, _ := field(ix, "key").(bson.D)
	return key != nil && len(keys) > 0 && keys[0].Key == key.Path() && (len(keys) == 1 || len(keys) == 2 && keys[1].Key == "_id")
}

// isMeasurementsIndex reports whether an index is one that a server from 6.3 on makes by itself with a
// time-series collection: on the fields of its metadata and its time.
func (i *collectionInfo) isMeasurementsIndex(ix bson.D) bool {
	series := field(i.options, "timeseries")
	keys, _ := field(ix, "key").(bson.D)
	return series != nil && len(keys) == 2 && keys[0].Key == fieldOf(series, "metaField") && keys[1].Key == fieldOf(series, "timeField")
}

// sameCollection reports whether two looks at a name have seen one collection. Before 8.0 a
// time-series collection and a view have no UUID; those are told apart by nothing.
func (i *collectionInfo) sameCollection(o collectionInfo) bool {
	return !i.hasUUID || !o.hasUUID || bytes.Equal(i.uuid.Data, o.uuid.Data)
}

// plainOptions are a collection's options by name, without what says nothing of the collection.
func plainOptions(options bson.D) map[string]any {
	m := map[string]any{}
	for _, o := range options {
		switch {
		case slices.Contains([]string{"uuid", "autoIndexId", "flags"}, o.Key):
		case o.Key == "validationLevel" && o.Value == "strict", o.Key == "validationAction" && o.Value == "error":
		case o.Key == "changeStreamPreAndPostImages" && isFalse(fieldOf(o.Value, "enabled")):
		case isFalse(o.Value):
		case o.Key == "timeseries":
			m[o.Key] = unordered(timeseries(o.Value))
		default:
			m[o.Key] = unordered(o.Value)
		}
	}
	return m
}

// plainIndex are the parts of an index by name, without what says nothing of the index.
func plainIndex(ix bson.D) map[string]any {
	m := map[string]any{}
	for _, e := range ix {
		switch {
		case slices.Contains([]string{"v", "ns", "background", "expireAfterSeconds", "textIndexVersion", "2dsphereIndexVersion"}, e.Key):
		case isFalse(e.Value):
		case e.Key == "collation":
			m[e.Key] = unordered(e.Value)
		default:
			m[e.Key] = e.Value
		}
	}
	return m
}

// unordered is an option's value as a map if it is a document: the order of its fields says
// nothing. A collation's version does not either.
func unordered(v any) any {
	d, ok := v.(bson.D)
	if !ok {
		return v
	}
	m := map[string]any{}
	for _, e := range d {
		if e.Key != "version" && !isFalse(e.Value) {
			m[e.Key] = e.Value
		}
	}
	return m
}

// differentField is the first name, in alphabetical order, whose values are not the same; "" if
// there is none.
func differentField(a, b map[string]any) string {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !sameValue(a[name], b[name]) {
			return name
		}
	}
	return ""
}

// sameValue compares values that came from BSON; numbers are the same whatever their type.
func sameValue(a, b any) bool {
	if x, ok := asNumber(a); ok {
		y, ok := asNumber(b)
		return ok && x == y
	}
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && differentField(x, y) == ""
	case bson.D:
		y, ok := b.(bson.D)
		return ok && slices.EqualFunc(x, y, func(e, f bson.E) bool { return e.Key == f.Key && sameValue(e.Value, f.Value) })
	case bson.A:
		y, ok := b.(bson.A)
		return ok && slices.EqualFunc(x, y, sameValue)
	}
	return reflect.DeepEqual(a, b)
}

func asNumber(v any) (float64, bool) {
	switch n := v.(type) {
	case int32:
		return float64(n), true
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// isFalse reports whether a value is false, which is what a missing flag means.
func isFalse(v any) bool { return v == false }

// fieldOf is a field of a document; nil of anything else.
func fieldOf(v any, name string) any {
	d, _ := v.(bson.D)
	return field(d, name)
}
