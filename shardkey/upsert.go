package shardkey

import (
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// UpsertValue returns the shard key value of the document that an upsert with this filter makes, where the update does not touch the key: MongoDB copies the
// filter's equalities ({path: v}, $eq, whole parent objects, at the top or inside $and) into it; a key that the filter does not mention is missing, so null.
// known is false when the filter mentions the key in any other way.
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
		case string(e.Key) == "$comment":
		case len(e.Key) > 0 && e.Key[0] == '$':
			// $or, $nor, $expr … give the new document nothing for certain; one with a single branch may.
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
		eq, has := element.Lookup(v.Data, "$eq")
		if !has {
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
