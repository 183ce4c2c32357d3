// Package sample makes BSON values for tests: the awkward ones by name, and random ones of every type.
package sample

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Of encodes a Go value as a BSON value.
func Of(v any) bsoncore.Value {
	if v == nil {
		return bsoncore.Value{Type: bsoncore.TypeNull}
	}
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		panic(err)
	}
	return bsoncore.Value{Type: bsoncore.Type(t), Data: data}
}

// Decimal encodes the decimal128 that a text stands for.
func Decimal(s string) bsoncore.Value {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return Of(d)
}

var integers = []int64{0, 1, -1, 2, 5, 42, math.MaxInt32, math.MinInt32, 1 << 53, 1<<53 + 1, -(1 << 53) - 1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1}

var doubles = []float64{0, math.Copysign(0, -1), 1, -1, 0.1, 0.5, -0.5, 2.5, 1e15, 1 << 53, 1 << 62, -(1 << 63), 1 << 63, 1e300, -1e300,
	math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN()}

var decimals = []string{"0", "-0", "0E+6000", "1", "1.00", "1E+0", "-1", "0.1", "0.5", "-0.5", "0.50", "42", "4.2E+1", "9223372036854775807", "9223372036854775808",
	"-9223372036854775808", "-9223372036854775809", "9007199254740993", "1E+300", "1E-6176", "9.999999999999999999999999999999999E+6144", "1E+6111", "-1E+6111",
	"NaN", "Infinity", "-Infinity", "1E+22", "1E+23", "0.1000000000000000055511151231257827", "4.940656458412465441765687928682214E-324"}

var texts = []string{"", "a", "ab", "AB", "b", "a\x00b", "é", "zzzzzzzz", "$x"}

// Number returns a random number of any of the four types; many are equal to others.
func Number(r *rand.Rand) bsoncore.Value {
	switch r.IntN(5) {
	case 0:
		return Of(int32(r.IntN(7) - 3))
	case 1:
		return Of(integers[r.IntN(len(integers))])
	case 2:
		return Of(doubles[r.IntN(len(doubles))])
	case 3:
		return Decimal(decimals[r.IntN(len(decimals))])
	}
	return randomDecimal(r)
}

// randomDecimal makes any decimal128, encodings that are not canonical included; often one that equals a double or an integer.
func randomDecimal(r *rand.Rand) bsoncore.Value {
	var data [16]byte
	exp := 6176 + r.IntN(40) - 20
	if r.IntN(4) == 0 {
		exp = r.IntN(12288)
	}
	coef := r.Uint64() >> r.IntN(64)
	var high uint64
	if r.IntN(2) == 0 {
		high = r.Uint64() & (1<<49 - 1)
	}
	binary.LittleEndian.PutUint64(data[:], coef)
	binary.LittleEndian.PutUint64(data[8:], uint64(r.IntN(2))<<63|uint64(exp)<<49|high)
	return bsoncore.Value{Type: bsoncore.TypeDecimal128, Data: data[:]}
}

// Scalar returns a random value that is no object and no array.
func Scalar(r *rand.Rand) bsoncore.Value {
	switch r.IntN(14) {
	case 0, 1, 2:
		return Number(r)
	case 3, 4:
		return Of(texts[r.IntN(len(texts))])
	case 5:
		return Of(nil)
	case 6:
		return Of(r.IntN(2) == 0)
	case 7:
		return Of(bson.DateTime(r.IntN(5) - 2))
	case 8:
		return Of(bson.Timestamp{T: uint32(r.IntN(3)) << 31, I: uint32(r.IntN(3))})
	case 9:
		return Of(bson.ObjectID{11: byte(r.IntN(3))})
	case 10:
		return Of(bson.Binary{Subtype: byte(r.IntN(2) * 0x80), Data: make([]byte, r.IntN(3))})
	case 11:
		return Of(bson.Regex{Pattern: texts[1+r.IntN(3)], Options: "i"[:r.IntN(2)]})
	case 12:
		return Of(bson.MinKey{})
	}
	return Of(bson.MaxKey{})
}

// Odd returns a random value of the types that clients seldom store.
func Odd(r *rand.Rand) bsoncore.Value {
	switch r.IntN(5) {
	case 0:
		return Of(bson.Undefined{})
	case 1:
		return Of(bson.Symbol(texts[r.IntN(len(texts))]))
	case 2:
		return Of(bson.JavaScript(texts[r.IntN(len(texts))]))
	case 3:
		return Of(bson.CodeWithScope{Code: bson.JavaScript(texts[r.IntN(3)]), Scope: bson.D{{Key: "x", Value: int32(r.IntN(2))}}})
	}
	return Of(bson.DBPointer{DB: texts[r.IntN(3)], Pointer: bson.ObjectID{0: byte(r.IntN(2))}})
}

// Value returns a random value of any type; objects and arrays nest to the given depth.
func Value(r *rand.Rand, depth int) bsoncore.Value {
	k := r.IntN(10)
	switch {
	case k == 0:
		return Odd(r)
	case k < 3 && depth > 0:
		return Object(r, depth)
	case k < 5 && depth > 0:
		var values []bsoncore.Value
		for range r.IntN(3) {
			values = append(values, Value(r, depth-1))
		}
		return bsoncore.Value{Type: bsoncore.TypeArray, Data: bsoncore.BuildArray(nil, values...)}
	}
	return Scalar(r)
}

// Object returns a random object.
func Object(r *rand.Rand, depth int) bsoncore.Value {
	at, doc := bsoncore.AppendDocumentStart(nil)
	for range r.IntN(3) {
		doc = bsoncore.AppendValueElement(doc, string("abc"[r.IntN(3)]), Value(r, depth-1))
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, at)
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc}
}

// Document makes a document of names and values, in turn.
func Document(pairs ...any) bson.Raw {
	at, doc := bsoncore.AppendDocumentStart(nil)
	for i := 0; i < len(pairs); i += 2 {
		v, ok := pairs[i+1].(bsoncore.Value)
		if !ok {
			v = Of(pairs[i+1])
		}
		doc = bsoncore.AppendValueElement(doc, pairs[i].(string), v)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, at)
	return bson.Raw(doc)
}
