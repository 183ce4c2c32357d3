package shardkey

import (
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// HashName names the function from values to positions. It stands in every map; another function would be another name, and
// only a rekey changes it.
const HashName = "xxh64/1"

// Pattern is a shard key: one field, hashed. The zero Pattern is no key. A Pattern is immutable and may be copied.
//
// A hierarchical key, with more fields behind the first, would add them here; callers only see positions.
type Pattern struct {
	path  string
	parts []string // path, split at its dots
}

// supported is the sentence that every refusal of a pattern ends with.
const supported = `supported is one field with a hashed key, like { "tenant" : "hashed" } or { "address.city" : "hashed" }`

// ParsePattern reads a shard key pattern as clients give it. What is not one hashed field is 2 BadValue: the message names what is supported. The
// pattern does not keep raw.
func ParsePattern(raw bson.Raw) (Pattern, error) {
	it := element.In(raw)
	var e, second element.Element
	if !it.Next(&e) {
		if it.Malformed() {
			return Pattern{}, errMalformed
		}
		return Pattern{}, wire.Errorf(wire.BadValue, "Shard key pattern is empty: %s", supported)
	}
	path := string(e.Key)
	if err := checkPath(path); err != nil {
		return Pattern{}, err
	}
	if it.Next(&second) {
		return Pattern{}, wire.Errorf(wire.BadValue, "Unsupported shard key pattern with more than one field ('%s', '%s'): %s",
			path, second.Key, supported)
	}
	if it.Malformed() {
		return Pattern{}, errMalformed
	}
	if err := checkKind(path, e.Value()); err != nil {
		return Pattern{}, err
	}
	return Pattern{path: path, parts: strings.Split(path, ".")}, nil
}

// checkKind refuses what stands beside a field's name, unless it is "hashed".
func checkKind(path string, v bsoncore.Value) error {
	if kind, ok := v.StringValueOK(); ok {
		if kind == "hashed" {
			return nil
		}
		return wire.Errorf(wire.BadValue, "Unsupported shard key pattern: '%s' cannot be of kind '%s': %s", path, kind, supported)
	}
	if n, ok := v.AsFloat64OK(); ok && n > 0 {
		return wire.Errorf(wire.BadValue, "Unsupported shard key pattern: '%s' is ranged, and ranged shard keys are not supported: %s", path, supported)
	}
	return wire.Errorf(wire.BadValue, "Unsupported shard key pattern: the value of '%s' must be \"hashed\": %s", path, supported)
}

// checkPath refuses names that MongoDB does not take in a shard key.
func checkPath(path string) error {
	if path == "" {
		return wire.Errorf(wire.BadValue, "Shard key field names must not be empty")
	}
	for _, part := range strings.Split(path, ".") {
		switch {
		case part == "":
			return wire.Errorf(wire.BadValue, "Shard key field '%s' has an empty component: no leading, trailing or doubled dots", path)
		case part[0] == '$' && part != "$id" && part != "$ref" && part != "$db":
			return wire.Errorf(wire.BadValue, "Shard key field '%s' has a component that begins with '$'", path)
		}
	}
	if strings.HasPrefix(path, "$") {
		return wire.Errorf(wire.BadValue, "Shard key field '%s' begins with '$'", path)
	}
	return nil
}

// Zero reports whether p is the zero Pattern.
func (p Pattern) Zero() bool { return p.path == "" }

// Path returns the dotted path of the key's field.
func (p Pattern) Path() string { return p.path }

// Fields returns the paths of all fields of the key.
func (p Pattern) Fields() []string { return []string{p.path} }

// Equal reports whether p and o are the same key.
func (p Pattern) Equal(o Pattern) bool { return p.path == o.path }

// Raw returns the pattern as a document, {path: "hashed"}: what config.collections shows and what an index on the key is made from. The zero
// Pattern gives an empty document.
func (p Pattern) Raw() bson.Raw {
	if p.Zero() {
		return bson.Raw(bsoncore.BuildDocument(nil))
	}
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, p.path, "hashed")))
}

// String returns the pattern as shells show it.
func (p Pattern) String() string { return `{ "` + p.path + `" : "hashed" }` }
