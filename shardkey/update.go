package shardkey

import (
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// EffectKind says what an update does to a document's shard key value.
type EffectKind byte

// The kinds of effect.
const (
	// Untouched: no part of the update can change the value.
	Untouched EffectKind = iota
	// SetsTo: the value becomes Effect.Value, in documents that are there and in one that an upsert makes.
	SetsTo
	// OnlyOnInsert: an upsert's new document gets Effect.Value; documents that are there keep theirs.
	OnlyOnInsert
	// MayChange: operators make the new value from the document's, or it cannot be a shard key value.
	MayChange
	// Replaces: the update is a whole document, whose value is Effect.Value.
	Replaces
	// Computed: a pipeline makes the new value from the document. Whether that is another one than before can be asked in the pipeline itself.
	Computed
)

// Effect is what an update does to the shard key value of the documents it is applied to.
type Effect struct {
	Kind EffectKind
	// Value is the new value for SetsTo, OnlyOnInsert and Replaces: part of the update's bytes, null where the field is missing or removed.
	Value bsoncore.Value
	// Err says why a replacement cannot be placed: an array as its value or on the key's path, 61 ShardKeyNotFound.
	Err error
}

// IsReplacement reports whether u, the u of an update statement or the update of a findAndModify, is a whole document and not operators or a pipeline.
func IsReplacement(u bson.RawValue) bool {
	if u.Type != bson.TypeEmbeddedDocument {
		return false
	}
	it := element.In(u.Value)
	var e element.Element
	return !it.Next(&e) || len(e.Key) == 0 || e.Key[0] != '$'
}

// UpdateEffect tells what an update does to the key: operators, a replacement or a pipeline. An update that MongoDB refuses may give any
// effect; the backend says why.
func (p Pattern) UpdateEffect(u bson.RawValue) Effect {
	switch {
	case u.Type == bson.TypeArray:
		return p.pipelineEffect(u.Value)
	case u.Type != bson.TypeEmbeddedDocument:
		return Effect{Kind: MayChange}
	case IsReplacement(u):
		if _, has := element.Lookup(u.Value, "_id"); !has && p.parts[0] == "_id" {
			return Effect{} // a replacement without _id keeps the document's
		}
		v, err := p.Value(u.Value)
		return Effect{Kind: Replaces, Value: v, Err: err}
	}
	var effect Effect
	it := element.In(u.Value)
	var op element.Element
	for it.Next(&op) {
		if op.Type != bsoncore.TypeEmbeddedDocument {
			continue // the backend refuses it
		}
		effect = stronger(effect, p.operatorEffect(string(op.Key), op.Data))
	}
	if it.Malformed() {
		return Effect{Kind: MayChange}
	}
	return effect
}

// stronger joins the effects of two operators. Two that both set the path conflict, and the backend refuses them.
func stronger(a, b Effect) Effect {
	rank := [...]int{Untouched: 0, OnlyOnInsert: 1, SetsTo: 2, Computed: 3, MayChange: 4}
	if rank[b.Kind] > rank[a.Kind] {
		return b
	}
	return a
}

// relation of a path in an update to the key's path.
type relation byte

const (
	unrelated relation = iota
	parent             // a proper prefix of the key's path
	same
	inside // the key's path is a proper prefix of it
)

func (p Pattern) relation(path []byte) relation {
	n, k := len(path), len(p.path)
	switch {
	case n == k && string(path) == p.path:
		return same
	case n < k && p.path[n] == '.' && p.path[:n] == string(path):
		return parent
	case n > k && path[k] == '.' && string(path[:k]) == p.path:
		return inside
	}
	return unrelated
}

// operatorEffect reads the fields of one update operator.
func (p Pattern) operatorEffect(op string, fields []byte) Effect {
	var effect Effect
	it := element.In(fields)
	var e element.Element
	for it.Next(&e) {
		if op == "$rename" {
			if to, ok := element.Text(e.Data); ok && e.Type == bsoncore.TypeString && p.relation(to) != unrelated {
				return Effect{Kind: MayChange}
			}
		}
		if r := p.relation(e.Key); r != unrelated {
			effect = stronger(effect, p.fieldEffect(op, r, &e))
		}
	}
	if it.Malformed() {
		return Effect{Kind: MayChange}
	}
	return effect
}

// fieldEffect reads one field of an operator, whose path is related to the key's by r.
func (p Pattern) fieldEffect(op string, r relation, e *element.Element) Effect {
	if r == inside {
		return Effect{Kind: MayChange}
	}
	switch op {
	case "$set", "$setOnInsert":
		v, err := p.valueOf(e)
		if err != nil {
			return Effect{Kind: MayChange}
		}
		if op == "$set" {
			return Effect{Kind: SetsTo, Value: v}
		}
		return Effect{Kind: OnlyOnInsert, Value: v}
	case "$unset":
		return Effect{Kind: SetsTo, Value: null}
	}
	return Effect{Kind: MayChange}
}

// valueOf returns the key's value in a document in which e's path, the key's or a parent's, has e's value.
func (p Pattern) valueOf(e *element.Element) (bsoncore.Value, error) {
	rest := p.parts[strings.Count(string(e.Key), ".")+1:]
	switch {
	case e.Type == bsoncore.TypeArray:
		return bsoncore.Value{}, errArrayValue
	case len(rest) == 0:
		return e.Value(), nil
	case e.Type != bsoncore.TypeEmbeddedDocument:
		return null, nil
	}
	return valueAt(e.Data, rest)
}
