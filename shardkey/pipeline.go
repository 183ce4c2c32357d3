package shardkey

import (
	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// pipelineEffect reads an update pipeline. What its stages plainly do is told; everything else counts as computed.
func (p Pattern) pipelineEffect(stages []byte) Effect {
	var effect Effect
	it := element.In(stages)
	var stage element.Element
	for it.Next(&stage) {
		if stage.Type != bsoncore.TypeEmbeddedDocument {
			continue // the backend refuses it
		}
		inner := element.In(stage.Data)
		var e element.Element
		if !inner.Next(&e) {
			continue // and this
		}
		switch next := p.stageEffect(string(e.Key), e.Value()); {
		case next.Kind == Computed:
			return next
		case next.Kind == SetsTo:
			effect = next
		}
	}
	if it.Malformed() {
		return Effect{Kind: MayChange}
	}
	return effect
}

var (
	computed = Effect{Kind: Computed}
	removed  = Effect{Kind: SetsTo, Value: null}
)

// stageEffect tells what one stage does: Untouched, SetsTo or Computed.
func (p Pattern) stageEffect(name string, arg bsoncore.Value) Effect {
	switch name {
	case "$set", "$addFields":
		if arg.Type == bsoncore.TypeEmbeddedDocument {
			return p.setStage(arg.Data, "", 0)
		}
	case "$unset":
		return p.unsetStage(arg)
	case "$project":
		if arg.Type == bsoncore.TypeEmbeddedDocument {
			return p.projectStage(arg.Data)
		}
	case "$replaceWith":
		return p.newRoot(arg)
	case "$replaceRoot":
		if root, has := element.Lookup(arg.Data, "newRoot"); arg.Type == bsoncore.TypeEmbeddedDocument && has {
			return p.newRoot(root)
		}
	}
	return computed // and what later versions bring
}

// setStage reads the fields of a $set stage below prefix. An object beside a parent's path only adds to it, unless it is an expression.
func (p Pattern) setStage(fields []byte, prefix string, depth int) Effect {
	var effect Effect
	it := element.In(fields)
	var e element.Element
	for it.Next(&e) {
		if len(e.Key) > 0 && e.Key[0] == '$' {
			return computed
		}
		path := prefix + string(e.Key)
		r := p.relation([]byte(path))
		if r == unrelated {
			continue
		}
		effect = stronger(effect, p.setField(r, path, e.Value(), depth))
	}
	if it.Malformed() {
		return computed
	}
	return effect
}

// setField reads one field of a $set stage, whose path is related to the key's by r.
func (p Pattern) setField(r relation, path string, v bsoncore.Value, depth int) Effect {
	if r == inside {
		return computed
	}
	switch v.Type {
	case bsoncore.TypeString:
		text, ok := element.Text(v.Data)
		switch {
		case !ok:
			return computed
		case len(text) == 0 || text[0] != '$':
			// a constant
		case string(text[1:]) == path:
			return Effect{}
		default:
			return computed
		}
	case bsoncore.TypeEmbeddedDocument:
		if literal, has := element.Lookup(v.Data, "$literal"); has {
			if literal.Type == bsoncore.TypeEmbeddedDocument || literal.Type == bsoncore.TypeArray {
				return computed
			}
			v = literal
			break
		}
		if r == parent && depth < maxDepth {
			return p.setStage(v.Data, path+".", depth+1)
		}
		return computed
	case bsoncore.TypeArray, bsoncore.TypeUndefined:
		return computed
	}
	if r == parent {
		return removed
	}
	return Effect{Kind: SetsTo, Value: v}
}

// unsetStage reads the argument of an $unset stage, a path or several.
func (p Pattern) unsetStage(arg bsoncore.Value) Effect {
	switch arg.Type {
	case bsoncore.TypeString:
		path, ok := element.Text(arg.Data)
		if !ok {
			return computed
		}
		switch p.relation(path) {
		case unrelated:
			return Effect{}
		case same, parent:
			return removed
		}
		return computed
	case bsoncore.TypeArray:
		var effect Effect
		it := element.In(arg.Data)
		var e element.Element
		for it.Next(&e) {
			if e.Type != bsoncore.TypeString {
				return computed
			}
			effect = stronger(effect, p.unsetStage(e.Value()))
		}
		if !it.Malformed() {
			return effect
		}
	}
	return computed
}

// projectStage reads a $project stage: one that names the fields that stay and the key among them, or the fields that go and not the key.
func (p Pattern) projectStage(spec []byte) Effect {
	var includes, excludes, kept, named bool
	it := element.In(spec)
	var e element.Element
	for it.Next(&e) {
		r := p.relation(e.Key)
		yes, plain := switched(e.Value())
		switch {
		case !plain && r == unrelated && e.Type == bsoncore.TypeEmbeddedDocument:
			// A nested specification says nothing of the stage's kind; an expression includes. Another field will tell.
		case !plain:
			includes = true
			text, ok := element.Text(e.Data)
			isItself := e.Type == bsoncore.TypeString && ok && len(text) > 1 && text[0] == '$' && string(text[1:]) == string(e.Key)
			kept = kept || isItself && r != inside
			named = named || r != unrelated
			if r != unrelated && !isItself {
				return computed
			}
		case string(e.Key) == "_id" && r == unrelated:
			// It goes either way with both kinds.
		case yes:
			includes = true
			kept = kept || r == same || r == parent
			named = named || r != unrelated
		default:
			excludes = true
			named = named || r != unrelated
		}
	}
	switch {
	case it.Malformed() || includes == excludes: // only nested ones, or what the backend refuses
		return computed
	case includes && kept, excludes && !named:
		return Effect{}
	}
	return computed
}

// switched reads what says in a projection that a field stays or goes; plain is false for everything else.
func switched(v bsoncore.Value) (yes, plain bool) {
	if v.Type == bsoncore.TypeBoolean {
		return v.Boolean(), true
	}
	if n, ok := v.AsFloat64OK(); ok {
		return n != 0, true
	}
	return false, false
}

// newRoot reads what a document is replaced with: itself, or itself merged with objects that do not hold the key's first field.
func (p Pattern) newRoot(root bsoncore.Value) Effect {
	if isRoot(root) {
		return Effect{}
	}
	if root.Type != bsoncore.TypeEmbeddedDocument {
		return computed
	}
	it := element.In(root.Data)
	var e element.Element
	if !it.Next(&e) || string(e.Key) != "$mergeObjects" || e.Type != bsoncore.TypeArray || it.Next(&element.Element{}) {
		return computed
	}
	hasRoot := false
	parts := element.In(e.Data)
	var part element.Element
	for parts.Next(&part) {
		v := part.Value()
		switch {
		case isRoot(v):
			hasRoot = true
		case v.Type == bsoncore.TypeEmbeddedDocument && !p.holdsFirst(v.Data):
		default:
			return computed
		}
	}
	if parts.Malformed() || !hasRoot {
		return computed
	}
	return Effect{}
}

// isRoot reports whether an expression is the document itself.
func isRoot(v bsoncore.Value) bool {
	if v.Type != bsoncore.TypeString {
		return false
	}
	text, ok := element.Text(v.Data)
	return ok && (string(text) == "$$ROOT" || string(text) == "$$CURRENT")
}

// holdsFirst reports whether an object expression has the first field of the key's path, or may have it, being an operator.
func (p Pattern) holdsFirst(fields []byte) bool {
	it := element.In(fields)
	var e element.Element
	for it.Next(&e) {
		if len(e.Key) > 0 && e.Key[0] == '$' || string(e.Key) == p.parts[0] {
			return true
		}
	}
	return it.Malformed()
}
