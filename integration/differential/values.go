package differential

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// documents is how many different documents a collection may hold: few, so that operations meet.
const documents = 120

func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return d
}

// number is n as one of the types in which it is equal.
func number(r *rand.Rand, n int) any {
	switch r.IntN(6) {
	case 0:
		return int64(n)
	case 1:
		return float64(n)
	case 2:
		return decimal(fmt.Sprintf("%d.0", n))
	default:
		return int32(n)
	}
}

func oid(i int) bson.ObjectID {
	return bson.ObjectID{0x65, 1, 2, 3, 4, 5, 6, 7, 8, 9, byte(i >> 8), byte(i)}
}

// id is the _id of document i: of many types, and for numbers in any of the representations that are equal.
func id(r *rand.Rand, i int) any {
	switch i % 8 {
	case 0, 1, 2:
		return number(r, i)
	case 3:
		return fmt.Sprintf("id%03d", i)
	case 4:
		return oid(i)
	case 5:
		return bson.D{{Key: "x", Value: number(r, i)}, {Key: "y", Value: "é"}}
	case 6:
		return bson.NewDateTimeFromTime(time.UnixMilli(int64(i) * 1000))
	default:
		return float64(i) + 0.5
	}
}

// key is the value of the shard key of document i; several documents share one.
func key(r *rand.Rand, i int) any {
	k := i % 40
	switch k % 10 {
	case 0, 1, 2:
		return number(r, k)
	case 3:
		return fmt.Sprintf("k%02d", k)
	case 4:
		return oid(1000 + k)
	case 5:
		return nil
	case 6:
		return bson.D{{Key: "a", Value: number(r, k)}}
	case 7:
		return k%20 == 7
	case 8:
		return bson.Binary{Subtype: 0, Data: []byte{byte(k), 0xff}}
	default:
		return bson.NewDateTimeFromTime(time.UnixMilli(int64(k)))
	}
}

// any value a document may hold in a field that is neither key nor counted on.
func value(r *rand.Rand) any { return valueAt(r, 0) }

func valueAt(r *rand.Rand, depth int) any {
	n := 24
	if depth > 1 {
		n = 20 // no deeper
	}
	switch r.IntN(n) {
	case 0, 1:
		return number(r, r.IntN(12))
	case 2:
		return float64(r.IntN(40)) / 4
	case 3:
		return []any{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), int64(math.MaxInt64), int64(math.MinInt64), 1e300}[r.IntN(7)]
	case 4, 5:
		return []any{"", "a", "b", "ab", "B", "é", "日本", "a\x00b"}[r.IntN(8)]
	case 6:
		return nil
	case 7:
		return r.IntN(2) == 0
	case 8:
		return oid(r.IntN(5))
	case 9:
		return bson.NewDateTimeFromTime(time.UnixMilli(int64(r.IntN(5)-2) * 1e9))
	case 10:
		return bson.Timestamp{T: uint32(1 + r.IntN(3)), I: uint32(1 + r.IntN(3))}
	case 11:
		n := r.IntN(3) // equal bytes under two subtypes are one value to the stand-in server
		return bson.Binary{Subtype: []byte{0, 4, 128}[n], Data: []byte("0123456789abcdefgh")[n : n+16]}
	case 12:
		return bson.Regex{Pattern: []string{"^a", "b"}[r.IntN(2)], Options: []string{"", "i"}[r.IntN(2)]}
	case 13:
		return bson.MinKey{}
	case 14:
		return bson.MaxKey{}
	case 15:
		return bson.JavaScript("f()")
	case 16:
		return int32(-r.IntN(5)) // no symbol and no undefined: the stand-in server cannot match a document that holds one
	case 17:
		return decimal([]string{"0.1", "1E+3", "NaN", "Infinity", "-2.50"}[r.IntN(5)])
	case 18:
		return r.IntN(2) == 0 // no code with scope: the stand-in server takes it for code
	case 19:
		return int64(r.IntN(5)) << 40
	case 20, 21:
		d := bson.D{}
		for _, name := range []string{"x", "y", "z"}[:r.IntN(4)] {
			d = append(d, bson.E{Key: name, Value: valueAt(r, depth+1)})
		}
		return d
	default:
		a := bson.A{}
		for range r.IntN(4) {
			a = append(a, valueAt(r, depth+1))
		}
		return a
	}
}

// collection is one of the collections of a program: how it is keyed decides what its documents look like.
type collection struct {
	name string
	key  string // "" is unsharded
}

var collections = []collection{{"byk", "k"}, {"byid", "_id"}, {"bypath", "a.b"}, {"plain", ""}}

// keyFields are the fields that hold the key of document i (besides _id).
func (c collection) keyFields(r *rand.Rand, i int) bson.D {
	switch c.key {
	case "k":
		if v := key(r, i); v != nil || r.IntN(2) == 0 {
			return bson.D{{Key: "k", Value: v}}
		}
		return bson.D{} // missing is null
	case "a.b":
		d := bson.D{{Key: "c", Value: int32(i)}}
		if v := key(r, i); v != nil || r.IntN(2) == 0 {
			d = append(d, bson.E{Key: "b", Value: v})
		}
		return bson.D{{Key: "a", Value: d}}
	}
	return bson.D{{Key: "k", Value: key(r, i)}}
}

// keyFilter is an equality that holds for document i and binds the key.
func (c collection) keyFilter(r *rand.Rand, i int) bson.D {
	name := c.key
	if name == "" {
		name = "k"
	}
	if name == "_id" {
		return bson.D{{Key: "_id", Value: id(r, i)}}
	}
	return bson.D{{Key: name, Value: key(r, i)}}
}

// doc is document i with fresh contents: u is its own number, n a small int32, w a word, m exactly summable, v anything, l an array.
func (c collection) doc(r *rand.Rand, i int) bson.D {
	d := bson.D{{Key: "_id", Value: id(r, i)}}
	d = append(d, c.keyFields(r, i)...)
	d = append(d, bson.E{Key: "u", Value: int32(i)}, bson.E{Key: "n", Value: int32(r.IntN(10))})
	if r.IntN(8) > 0 {
		d = append(d, bson.E{Key: "v", Value: value(r)})
	}
	d = append(d, bson.E{Key: "w", Value: []string{"red", "green", "blue"}[r.IntN(3)]})
	if r.IntN(4) > 0 {
		d = append(d, bson.E{Key: "m", Value: summable(r)})
	}
	if r.IntN(3) == 0 {
		l := bson.A{}
		for range r.IntN(4) {
			l = append(l, int32(r.IntN(6)))
		}
		d = append(d, bson.E{Key: "l", Value: l})
	}
	return d
}

// summable is a value whose sums do not depend on their order.
func summable(r *rand.Rand) any {
	switch r.IntN(5) {
	case 0:
		return int64(r.IntN(1000))
	case 1:
		return float64(r.IntN(400)) / 4
	case 2:
		return "not a number"
	default:
		return int32(r.IntN(1000) - 300)
	}
}
