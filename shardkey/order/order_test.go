package order

import (
	"bytes"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/shardway/shardway/shardkey/internal/sample"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// TestCompareKnown goes up a ladder of values: each is less than all above it, and equal to those on its own rung.
func TestCompareKnown(t *testing.T) {
	ladder := [][]bsoncore.Value{
		{sample.Of(bson.MinKey{})},
		{sample.Of(bson.Undefined{}), Missing},
		{sample.Of(nil)},
		{sample.Of(math.NaN()), sample.Decimal("NaN")},
		{sample.Of(math.Inf(-1)), sample.Decimal("-Infinity")},
		{sample.Decimal("-1E+6111")},
		{sample.Of(-math.MaxFloat64)},
		{sample.Decimal("-9223372036854775809")},
		{sample.Of(int64(math.MinInt64)), sample.Of(float64(-1 << 63)), sample.Decimal("-9223372036854775808")},
		{sample.Of(int32(-1)), sample.Of(-1.0), sample.Decimal("-1.00")},
		{sample.Of(-0.5), sample.Decimal("-0.50")},
		{sample.Decimal("-1E-6176")},
		{sample.Of(0.0), sample.Of(math.Copysign(0, -1)), sample.Of(int64(0)), sample.Decimal("-0E+10")},
		{sample.Decimal("1E-6176")},
		{sample.Of(math.SmallestNonzeroFloat64)},
		{sample.Decimal("0.1")},
		{sample.Of(0.1)},
		{sample.Of(int32(1)), sample.Of(int64(1)), sample.Of(1.0), sample.Decimal("1.00")},
		{sample.Of(int64(1 << 53)), sample.Of(float64(1 << 53))},
		{sample.Of(int64(1<<53 + 1)), sample.Decimal("9007199254740993")},
		{sample.Of(int64(math.MaxInt64))},
		{sample.Of(float64(1 << 63)), sample.Decimal("9223372036854775808")},
		{sample.Of(1e22), sample.Decimal("1E+22")},
		{sample.Of(1e23)}, // the double is a little less than 10^23
		{sample.Decimal("1E+23")},
		{sample.Of(math.MaxFloat64)},
		{sample.Decimal("1E+6111")},
		{sample.Of(math.Inf(1)), sample.Decimal("Infinity")},
		{sample.Of("")},
		{sample.Of("AB")},
		{sample.Of("a"), sample.Of(bson.Symbol("a"))},
		{sample.Of("a\x00")},
		{sample.Of("b")},
		{sample.Of(bson.D{})},
		{sample.Of(bson.D{{Key: "z", Value: 1}})},
		{sample.Of(bson.D{{Key: "a", Value: "x"}})}, // type before name
		{sample.Of(bson.D{{Key: "b", Value: "a"}})},
		{sample.Of(bson.D{{Key: "b", Value: "a"}, {Key: "a", Value: 1}})},
		{sample.Of(bson.A{})},
		{sample.Of(bson.A{1}), sample.Of(bson.A{1.0})},
		{sample.Of(bson.A{1, 2})},
		{sample.Of(bson.A{2})},
		{sample.Of(bson.Binary{Data: []byte{9}})},
		{sample.Of(bson.Binary{Subtype: 5, Data: []byte{1}})},
		{sample.Of(bson.Binary{Data: []byte{0, 0}})},
		{sample.Of(bson.ObjectID{})},
		{sample.Of(false)},
		{sample.Of(true)},
		{sample.Of(bson.DateTime(-1))},
		{sample.Of(bson.DateTime(1))},
		{sample.Of(bson.Timestamp{T: 1})},
		{sample.Of(bson.Timestamp{T: 1 << 31})},
		{sample.Of(bson.Regex{Pattern: "a"})},
		{sample.Of(bson.Regex{Pattern: "a", Options: "i"})},
		{sample.Of(bson.DBPointer{DB: "z"})},
		{sample.Of(bson.DBPointer{DB: "aa"})},
		{sample.Of(bson.JavaScript("f"))},
		{sample.Of(bson.CodeWithScope{Code: "a", Scope: bson.D{}})},
		{sample.Of(bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}})},
		{sample.Of(bson.MaxKey{})},
	}
	for i, rung := range ladder {
		for _, a := range rung {
			for j, other := range ladder {
				for _, b := range other {
					if got, want := sign(Compare(a, b)), sign(i-j); got != want {
						t.Errorf("Compare(%v, %v) = %d, want %d", a, b, got, want)
					}
					same := bytes.Equal(AppendEqualityKey(nil, a), AppendEqualityKey(nil, b))
					if same != (i == j) {
						t.Errorf("equality keys of %v and %v: same %v, want %v", a, b, same, i == j)
					}
				}
			}
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// TestCompareNumbersExactly compares with an independent statement of what numbers are: big.Rat.
func TestCompareNumbersExactly(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20000 {
		a, b := sample.Number(r), sample.Number(r)
		ra, rb := rational(a), rational(b)
		if ra == nil || rb == nil {
			continue
		}
		if got, want := sign(Compare(a, b)), ra.Cmp(rb); got != want {
			t.Fatalf("seed %d: Compare(%v, %v) = %d, want %d", seed, a, b, got, want)
		}
	}
}

// rational is a finite number's value, nil for other numbers.
func rational(v bsoncore.Value) *big.Rat {
	switch v.Type {
	case bsoncore.TypeDouble:
		return new(big.Rat).SetFloat64(v.Double())
	case bsoncore.TypeDecimal128:
		h, l := v.Decimal128()
		if h>>61&3 == 3 && h>>59&3 != 3 {
			return new(big.Rat) // the large form is zero in decimal128
		}
		i, exp, err := bson.NewDecimal128(h, l).BigInt()
		if err != nil {
			return nil
		}
		if limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil); new(big.Int).Abs(i).Cmp(limit) >= 0 {
			return new(big.Rat)
		}
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
		if exp < 0 {
			return new(big.Rat).SetFrac(i, scale)
		}
		return new(big.Rat).SetInt(i.Mul(i, scale))
	}
	return new(big.Rat).SetInt64(v.AsInt64())
}

// TestCompareIsTotal checks what makes an order of random values of all types, and that equality keys agree with it.
func TestCompareIsTotal(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 20000 {
		a, b, c := sample.Value(r, 2), sample.Value(r, 2), sample.Value(r, 2)
		checkOrder(t, a, b, c)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func checkOrder(t *testing.T, a, b, c bsoncore.Value) {
	t.Helper()
	if Compare(a, a) != 0 {
		t.Errorf("%v is not equal to itself", a)
	}
	ab, bc, ac := sign(Compare(a, b)), sign(Compare(b, c)), sign(Compare(a, c))
	if ba := sign(Compare(b, a)); ba != -ab {
		t.Errorf("%v and %v: %d one way, %d the other", a, b, ab, ba)
	}
	if ab <= 0 && bc <= 0 && (ac > 0 || (ac == 0 && (ab != 0 || bc != 0))) {
		t.Errorf("%v ≤ %v ≤ %v, but the first and the last compare as %d", a, b, c, ac)
	}
	if same := bytes.Equal(AppendEqualityKey(nil, a), AppendEqualityKey(nil, b)); same != (ab == 0) {
		t.Errorf("%v and %v compare as %d, their equality keys are the same: %v", a, b, ab, same)
	}
}

// FuzzCompare feeds bytes that need not be BSON: the order stays total and nothing panics.
func FuzzCompare(f *testing.F) {
	for _, v := range []bsoncore.Value{sample.Of("a"), sample.Of(bson.D{{Key: "a", Value: bson.A{1, "x"}}}), sample.Of(bson.CodeWithScope{Code: "a", Scope: bson.D{}}),
		sample.Decimal("1.5"), sample.Of(bson.DBPointer{DB: "a"})} {
		f.Add(byte(v.Type), v.Data, byte(v.Type), v.Data, byte(v.Type), v.Data[:len(v.Data)/2])
	}
	f.Fuzz(func(t *testing.T, ta byte, a []byte, tb byte, b []byte, tc byte, c []byte) {
		checkOrder(t, bsoncore.Value{Type: bsoncore.Type(ta), Data: a}, bsoncore.Value{Type: bsoncore.Type(tb), Data: b},
			bsoncore.Value{Type: bsoncore.Type(tc), Data: c})
	})
}
