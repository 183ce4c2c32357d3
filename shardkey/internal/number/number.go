// Package number says what BSON's four kinds of numbers are, exactly: 1, 1.0, NumberLong(1) and NumberDecimal("1.00") are one number,
// NumberDecimal("0.1") and the double 0.1 are two.
package number

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Class says what kind of value a number is.
type Class byte

// The classes.
const (
	NaN Class = iota
	Infinite
	Finite
)

// Form says which of a number's fields hold its value.
type Form byte

// The forms, in order of preference: a number has the first one that represents it exactly.
const (
	Integer Form = iota // Int
	Double              // Float; ±Inf and NaN too
	Decimal             // Neg, CoefHi, CoefLo, Exp
)

// Number is the exact value of a BSON number, in the one form that every equal number has.
type Number struct {
	Form  Form
	Int   int64
	Float float64
	// ±(CoefHi·2^64 + CoefLo)·10^Exp, the coefficient without trailing zeros.
	Neg            bool
	CoefHi, CoefLo uint64
	Exp            int
}

// Of returns the number that v is; false where v is not a number or cut short.
func Of(v bsoncore.Value) (Number, bool) {
	switch {
	case v.Type == bsoncore.TypeInt32 && len(v.Data) >= 4:
		return Number{Int: int64(int32(binary.LittleEndian.Uint32(v.Data)))}, true
	case v.Type == bsoncore.TypeInt64 && len(v.Data) >= 8:
		return Number{Int: int64(binary.LittleEndian.Uint64(v.Data))}, true
	case v.Type == bsoncore.TypeDouble && len(v.Data) >= 8:
		return ofDouble(math.Float64frombits(binary.LittleEndian.Uint64(v.Data))), true
	case v.Type == bsoncore.TypeDecimal128 && len(v.Data) >= 16:
		return ofDecimal(readDecimal(v.Data)), true
	}
	return Number{}, false
}

func ofDouble(f float64) Number {
	// −2^63 is an int64, 2^63 is none; −0 is 0.
	if f >= -1<<63 && f < 1<<63 && f == math.Trunc(f) {
		return Number{Int: int64(f)}
	}
	if f != f {
		f = math.NaN() // one NaN
	}
	return Number{Form: Double, Float: f}
}

func ofDecimal(d decimal) Number {
	switch d.class {
	case NaN:
		return Number{Form: Double, Float: math.NaN()}
	case Infinite:
		if d.neg {
			return Number{Form: Double, Float: math.Inf(-1)}
		}
		return Number{Form: Double, Float: math.Inf(1)}
	}
	if i, ok := d.int64(); ok {
		return Number{Int: i}
	}
	if f, ok := d.float64(); ok {
		return Number{Form: Double, Float: f}
	}
	return Number{Form: Decimal, Neg: d.neg, CoefHi: d.coef.hi, CoefLo: d.coef.lo, Exp: d.exp}
}

// Compare orders two numbers exactly: NaN first, then −Inf … +Inf.
func Compare(a, b Number) int {
	if a.Form == Integer && b.Form == Integer {
		return cmp.Compare(a.Int, b.Int)
	}
	an, bn := a.Form == Double && a.Float != a.Float, b.Form == Double && b.Float != b.Float
	switch {
	case an && bn:
		return 0
	case an:
		return -1
	case bn:
		return 1
	}
	if a.Form == Double && b.Form == Double {
		return cmp.Compare(a.Float, b.Float)
	}
	if as, bs := a.sign(), b.sign(); as != bs {
		return as - bs
	} else if as < 0 {
		return -cmpMagnitude(a, b)
	}
	return cmpMagnitude(a, b)
}

func (n Number) sign() int {
	switch n.Form {
	case Integer:
		return cmp.Compare(n.Int, 0)
	case Double:
		return cmp.Compare(n.Float, 0)
	}
	if n.Neg {
		return -1
	}
	return 1
}

// cmpMagnitude compares |a| with |b|; neither is NaN, and they are of different forms or both decimals.
func cmpMagnitude(a, b Number) int {
	switch {
	case a.Form == Double:
		return -cmpMagnitudeDouble(b, math.Abs(a.Float))
	case b.Form == Double:
		return cmpMagnitudeDouble(a, math.Abs(b.Float))
	}
	return a.decimal().cmpMagnitude(b.decimal())
}

func (n Number) decimal() decimal {
	if n.Form == Integer {
		return fromInt64(n.Int)
	}
	return decimal{class: Finite, neg: n.Neg, coef: uint128{n.CoefHi, n.CoefLo}, exp: n.Exp}
}

// cmpMagnitudeDouble compares |a|, an integer or a decimal, with f, which is positive or zero.
func cmpMagnitudeDouble(a Number, f float64) int {
	if math.IsInf(f, 1) {
		return -1
	}
	d := a.decimal()
	if f == 0 {
		return b2i(!d.coef.zero())
	}
	if d.coef.zero() {
		return -1
	}
	// Doubles lie between 10^-324 and 10^309: what is outside needs no arithmetic, and what is inside is of bounded size.
	switch magnitude := d.digits() + d.exp; {
	case magnitude > 310:
		return 1
	case magnitude < -325:
		return -1
	}
	mant, k := math.Frexp(f)
	right := new(big.Int).SetUint64(uint64(mant * (1 << 53)))
	left := new(big.Int).SetUint64(d.coef.hi)
	left.Lsh(left, 64).Or(left, new(big.Int).SetUint64(d.coef.lo))
	scale := func(x *big.Int, ten int) { x.Mul(x, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(ten)), nil)) }
	if d.exp >= 0 {
		scale(left, d.exp)
	} else {
		scale(right, -d.exp)
	}
	if k -= 53; k >= 0 {
		right.Lsh(right, uint(k))
	} else {
		left.Lsh(left, uint(-k))
	}
	return left.Cmp(right)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
