package shardkey

import (
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Target says which documents of a collection a filter can match, as far as the shard key tells.
type Target struct {
	// Bound says that only documents with one of a finite set of shard key values can match. When false, the other fields are empty
	// and any partition may hold a match.
	Bound bool
	// Positions are those of the values, sorted, each once. Bound without positions is a filter that nothing matches.
	Positions []Position
	// Values are the distinct values, in no order; two values may share a position. They are parts of the filter's bytes.
	Values []bsoncore.Value
}
