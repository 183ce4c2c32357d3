package shardkey

import (
	"github.com/shardway/shardway/shardkey/internal/number"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// integer returns v as an int64 where it is a number that equals one.
func integer(v bsoncore.Value) (int64, bool) {
	n, ok := number.Of(v)
	return n.Int, ok && n.Form == number.Integer
}
