package shardkey

import "errors"

var (
	errArrayValue  = errors.New("the shard key's value is an array")
	errArrayOnPath = errors.New("an array on the shard key's path")
	errMalformed   = errors.New("invalid BSON")
	errTooDeep     = errors.New("BSON nested too deep")
)
