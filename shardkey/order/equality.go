package order

import (
	"encoding/binary"
	"math"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/internal/number"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// AppendEqualityKey appends bytes that are the same for two values exactly if Compare says 0: the key under which $group, $addToSet and distinct
// know a value. Whether a missing field counts as null is the caller's affair; Missing has a key of its own, which is also that of undefined.
//
// The bytes of malformed values are taken as they are. The keys of several values written one after another are unambiguous.
func AppendEqualityKey(dst []byte, v bsoncore.Value) []byte { return appendKey(dst, v, 0) }

func appendKey(dst []byte, v bsoncore.Value, depth int) []byte {
	if n, ok := number.Of(v); ok {
		return appendNumber(append(dst, 10), n)
	}
	if !whole(v) || depth > maxDepth {
		dst = binary.BigEndian.AppendUint32(append(dst, 0xff, byte(canonical(v.Type))), uint32(len(v.Data)))
		return append(dst, v.Data...)
	}
	class := canonical(v.Type)
	dst = append(dst, byte(class))
	switch class {
	case 20:
		return appendElements(dst, v.Data, true, depth)
	case 25:
		return appendElements(dst, v.Data, false, depth)
	case 15, 60:
		return append(dst, v.Data[:len(v.Data)-1]...) // whatever stands in the place of the last zero
	case 40:
		return append(dst, min(v.Data[0], 1))
	case 65:
		code, scope, _ := codeScope(v.Data)
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(code))), code...)
		return appendElements(dst, scope, true, depth)
	}
	return append(dst, v.Data...) // of fixed size, or with their length or end in them
}

func appendNumber(dst []byte, n number.Number) []byte {
	switch n.Form {
	case number.Integer:
		return binary.BigEndian.AppendUint64(append(dst, 'i'), uint64(n.Int))
	case number.Double:
		if n.Float != n.Float {
			return append(dst, 'n')
		}
		return binary.BigEndian.AppendUint64(append(dst, 'd'), math.Float64bits(n.Float))
	}
	sign := byte('+')
	if n.Neg {
		sign = '-'
	}
	dst = binary.BigEndian.AppendUint64(append(dst, sign), n.CoefHi)
	dst = binary.BigEndian.AppendUint64(dst, n.CoefLo)
	return binary.BigEndian.AppendUint16(dst, uint16(int16(n.Exp)))
}

func appendElements(dst, doc []byte, names bool, depth int) []byte {
	it := element.In(doc)
	var e element.Element
	for it.Next(&e) {
		dst = append(dst, 1)
		if names {
			dst = append(append(dst, e.Key...), 0)
		}
		dst = appendKey(dst, e.Value(), depth+1)
	}
	if it.Malformed() {
		dst = binary.BigEndian.AppendUint32(append(dst, 2), uint32(len(doc)))
		return append(dst, doc...)
	}
	return append(dst, 0)
}
