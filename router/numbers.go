package router

import (
	"errors"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
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
		n = truncated(v.Double())
	case bsoncore.TypeDecimal128:
		h, l := v.Decimal128()
		f, err := strconv.ParseFloat(bson.NewDecimal128(h, l).String(), 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) { // out of range is an infinity
			return 0, typeMismatch(field, v, "number")
		}
		n = truncated(f)
	default:
		return 0, typeMismatch(field, v, "number")
	}
	if n < 0 {
		return 0, wire.Errorf(negative, "BSON field '%s' value must be >= 0, actual value '%d'", field, n)
	}
	return n, nil
}

func truncated(f float64) int64 {
	if math.IsNaN(f) {
		return 0
	}
	return int64(max(math.MinInt64, min(f, math.MaxInt64-1024)))
}
