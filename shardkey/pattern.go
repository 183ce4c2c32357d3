package shardkey

import (
	"go.mongodb.org/mongo-driver/v2/bson"
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

// Zero reports whether p is the zero Pattern.
func (p Pattern) Zero() bool { return p.path == "" }

// Path returns the dotted path of the key's field.
func (p Pattern) Path() string { return p.path }

// Fields returns the paths of all fields of the key. The caller must not change the slice.
func (p Pattern) Fields() []string { return []string{p.path} }

// Raw returns the pattern as a document, {path: "hashed"}: what config.collections shows and what an index on the key is made from.
func (p Pattern) Raw() bson.Raw {
	raw, err := bson.Marshal(bson.D{{Key: p.path, Value: "hashed"}})
	if err != nil {
		panic("BUG: a pattern that does not encode: " + err.Error())
	}
	return raw
}

// String returns the pattern as shells show it.
func (p Pattern) String() string { return `{ "` + p.path + `" : "hashed" }` }
