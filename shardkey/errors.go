package shardkey

import "github.com/shardway/shardway/wire"

// Errors of the hot path are made once: an *wire.Error is never changed after it was made.
var (
	errArrayValue = wire.Errorf(wire.ShardKeyNotFound,
		"Shard key cannot contain array values or array descendants: the shard key's value is an array")
	errArrayOnPath = wire.Errorf(wire.ShardKeyNotFound,
		"Shard key cannot contain array values or array descendants: there is an array on the shard key's path")
	errMalformed = wire.Errorf(wire.InvalidBSON, "invalid BSON: a length or a type that cannot be")
	errTooDeep   = wire.Errorf(wire.Overflow, "cannot nest a document deeper than %d levels", maxDepth)
)
