package shardkey

import (
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// UpsertValue returns the shard key value of the document that an upsert with this filter makes, where the update does not touch the key: MongoDB copies the
// filter's equalities into it. These are {path: v}, $eq, $in and $all of one value, and whole parent objects, at the top, inside $and and inside an $or of one branch. A key
// that the filter does not mention is missing, so null. known is false when the filter mentions the key in any other way.
func (p Pattern) UpsertValue(filter bson.Raw) (v bsoncore.Value, known bool) {
	u := upsertScan{p: p}
	u.conjunction(filter, 0)
	if u.unclear || u.found > 1 {
		return bsoncore.Value{}, false
	}
	if u.found == 0 {
		// The backend makes an _id; what it will be nobody knows.
		return null, p.path != "_id"
	}
	return u.value, true
}

// UpsertMakesID reports whether the server makes the _id of the document that an upsert with this filter makes: the filter says nothing of it.
func (p Pattern) UpsertMakesID(filter bson.Raw) bool {
	u := upsertScan{p: p}
	u.conjunction(filter, 0)
	return p.path == "_id" && !u.unclear && u.found == 0
}

// HasExpr reports whether a filter has $expr, at the top or in $and, $or and $nor. An upsert's may not.
func HasExpr(filter bson.Raw) bool { return hasExpr(filter, 0) }

func hasExpr(filter []byte, depth int) bool {
	it := element.In(filter)
	var e element.Element
	for depth < maxFilterDepth && it.Next(&e) {
		switch string(e.Key) {
		case "$expr":
			return true
		case "$and", "$or", "$nor":
			if e.Type != bsoncore.TypeArray {
				continue
			}
			in := element.In(e.Data)
			var branch element.Element
			for in.Next(&branch) {
				if branch.Type == bsoncore.TypeEmbeddedDocument && hasExpr(branch.Data, depth+1) {
					return true
				}
			}
		}
	}
	return false
}

type upsertScan struct {
	p       Pattern
	value   bsoncore.Value
	found   int
	unclear bool
}

func (u *upsertScan) conjunction(filter []byte, depth int) {
	it := element.In(filter)
	var e element.Element
	for !u.unclear && it.Next(&e) {
		switch {
		case string(e.Key) == "$and" && e.Type == bsoncore.TypeArray && depth < maxFilterDepth:
			inner := element.In(e.Data)
			var branch element.Element
			for inner.Next(&branch) {
				u.conjunction(branch.Data, depth+1)
			}
		case string(e.Key) == "$or" && e.Type == bsoncore.TypeArray && depth < maxFilterDepth && isOne(e.Data):
			only, _ := element.Lookup(e.Data, "0")
			u.conjunction(only.Data, depth+1)
		case string(e.Key) == "$comment":
		case len(e.Key) > 0 && e.Key[0] == '$':
			// An $or of several branches, $nor … give the new document nothing for certain; servers differ in what they make simpler first.
			u.unclear = (e.Type == bsoncore.TypeEmbeddedDocument || e.Type == bsoncore.TypeArray) && u.mentions(e.Data, depth)
		default:
			u.field(&e)
		}
	}
	u.unclear = u.unclear || it.Malformed()
}

// mentions reports whether anything inside an operator names the key, its parents or what lies in it.
func (u *upsertScan) mentions(data []byte, depth int) bool {
	if depth > maxFilterDepth {
		return true
	}
	it := element.In(data)
	var e element.Element
	for it.Next(&e) {
		if u.p.relation(e.Key) != unrelated {
			return true
		}
		if (e.Type == bsoncore.TypeEmbeddedDocument || e.Type == bsoncore.TypeArray) && u.mentions(e.Data, depth+1) {
			return true
		}
		if t, ok := element.Text(e.Data); ok && e.Type == bsoncore.TypeString && len(t) > 1 && t[0] == '$' && u.p.relation(t[1:]) != unrelated {
			return true
		}
	}
	return it.Malformed()
}

func (u *upsertScan) field(e *element.Element) {
	r := u.p.relation(e.Key)
	if r == unrelated {
		return
	}
	v := e.Value()
	if v.Type == bsoncore.TypeEmbeddedDocument && isOperators(v.Data) {
		eq, ok := equality(v.Data)
		if !ok {
			u.unclear = true
			return
		}
		v = eq
	}
	if r == inside || v.Type == bsoncore.TypeRegex || v.Type == bsoncore.TypeArray {
		u.unclear = true
		return
	}
	if r == parent {
		s := scanner{p: &u.p}
		inner, ok := s.keyValue(v, u.p.parts[strings.Count(string(e.Key), ".")+1:])
		if !ok {
			u.unclear = true
			return
		}
		v = inner
	}
	u.value = v
	u.found++
}

// isOne reports whether an array of BSON has one element, a document.
func isOne(array []byte) bool {
	it := element.In(array)
	var e element.Element
	return it.Next(&e) && e.Type == bsoncore.TypeEmbeddedDocument && string(e.Key) == "0" && !it.More()
}

// equality returns the one value that operators of a field say it equals.
func equality(operators []byte) (v bsoncore.Value, ok bool) {
	n := 0
	it := element.In(operators)
	var e element.Element
	for it.Next(&e) {
		switch string(e.Key) {
		case "$eq":
			v, n = e.Value(), n+1
		case "$in", "$all":
			if e.Type != bsoncore.TypeArray {
				return v, false
			}
			in := element.In(e.Data)
			var one element.Element
			if !in.Next(&one) || in.More() || one.Type == bsoncore.TypeEmbeddedDocument && isOperators(one.Data) || one.Type == bsoncore.TypeRegex {
				if string(e.Key) == "$all" {
					return v, false
				}
				continue // nothing is copied of it
			}
			v, n = one.Value(), n+1
		}
	}
	return v, n == 1 && !it.Malformed()
}
