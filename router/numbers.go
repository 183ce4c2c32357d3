package router

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// maxBatch is the largest batchSize that is passed on: a backend was seen to reserve memory for what it is told.
const maxBatch = 1 << 20

// wholeNumber reads a field of any number type that must not be negative; fractions are cut off, as MongoDB does; null is 0.
func wholeNumber(field string, v bsoncore.Value, negative wire.Code) (int64, error) {
	if v.Type == bsoncore.TypeNull {
		return 0, nil
	}
	var n int64
	switch v.Type {
	case bsoncore.TypeInt32, bsoncore.TypeInt64:
		n, _ = v.AsInt64OK()
	case bsoncore.TypeDouble:
		f := v.Double()
		if math.IsNaN(f) {
			f = 0
		}
		n = int64(max(math.MinInt64, min(f, math.MaxInt64-1024)))
	default:
		f, ok := v.AsFloat64OK()
		if !ok {
			return 0, typeMismatch(field, v, "number")
		}
		n = int64(f)
	}
	if n < 0 {
		return 0, wire.Errorf(negative, "BSON field '%s' value must be >= 0, actual value '%d'", field, n)
	}
	return n, nil
}
