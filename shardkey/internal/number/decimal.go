package number

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
)

// coefficient bounds of decimal128: 34 digits, the first above as two words.
const (
	limitHi = 0x0001ed09bead87c0 // 10^34 = limitHi·2^64 + limitLo
	limitLo = 0x378d8e6400000000
)

// uint128 is an unsigned integer of 128 bits.
type uint128 struct{ hi, lo uint64 }

func (u uint128) zero() bool { return u.hi|u.lo == 0 }

func (u uint128) bitLen() int {
	if u.hi != 0 {
		return 64 + bits.Len64(u.hi)
	}
	return bits.Len64(u.lo)
}

func (u uint128) trailingZeros() int {
	if u.lo != 0 {
		return bits.TrailingZeros64(u.lo)
	}
	return 64 + bits.TrailingZeros64(u.hi)
}

func (u uint128) shiftRight(n int) uint128 {
	if n >= 64 {
		return uint128{0, u.hi >> (n - 64)}
	}
	if n == 0 {
		return u
	}
	return uint128{u.hi >> n, u.lo>>n | u.hi<<(64-n)}
}

// divMod divides by a small number.
func (u uint128) divMod(d uint64) (q uint128, rest uint64) {
	q.hi, rest = u.hi/d, u.hi%d
	q.lo, rest = bits.Div64(rest, u.lo, d)
	return q, rest
}

// mul10 multiplies by ten; the caller knows that it fits.
func (u uint128) mul10() uint128 {
	hi, lo := bits.Mul64(u.lo, 10)
	return uint128{u.hi*10 + hi, lo}
}

func (u uint128) cmp(o uint128) int {
	if u.hi != o.hi {
		return cmp.Compare(u.hi, o.hi)
	}
	return cmp.Compare(u.lo, o.lo)
}

// decimal is a decimal128 taken apart: ±coef·10^exp. Finite and not zero, coef has no trailing zeros.
type decimal struct {
	class Class
	neg   bool
	coef  uint128
	exp   int
}

// readDecimal takes apart the 16 bytes of a decimal128. An encoding whose coefficient is too large is zero, as IEEE 754 says.
func readDecimal(data []byte) decimal {
	lo, hi := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
	d := decimal{neg: hi>>63 != 0}
	switch hi >> 58 & 0x1f {
	case 0x1f:
		d.class = NaN
		return d
	case 0x1e:
		d.class = Infinite
		return d
	}
	d.class = Finite
	if hi>>61&3 == 3 {
		return decimal{class: Finite}
	}
	d.exp = int(hi>>49&0x3fff) - 6176
	d.coef = uint128{hi & (1<<49 - 1), lo}
	if d.coef.zero() || d.coef.cmp(uint128{limitHi, limitLo}) >= 0 {
		return decimal{class: Finite}
	}
	for {
		q, rest := d.coef.divMod(10)
		if rest != 0 {
			return d
		}
		d.coef, d.exp = q, d.exp+1
	}
}

// int64 returns the value as an int64 where it equals one.
func (d decimal) int64() (int64, bool) {
	if d.coef.zero() {
		return 0, true
	}
	if d.exp < 0 || d.exp > 18 {
		return 0, false
	}
	c := d.coef
	for range d.exp {
		if c.hi != 0 {
			return 0, false
		}
		c = c.mul10()
	}
	if c.hi != 0 || c.lo > 1<<63 || (c.lo == 1<<63 && !d.neg) {
		return 0, false
	}
	if d.neg {
		return int64(-c.lo), true
	}
	return int64(c.lo), true
}

// float64 returns the value as a double where it equals one. The value must be finite and not zero.
//
// ±coef·10^exp is odd·2^k with odd = coef·5^exp without its factors 2: a double exactly if odd is a whole number below 2^53 and k is in range.
func (d decimal) float64() (float64, bool) {
	odd, k := d.coef, d.exp
	for n := d.exp; n < 0; n++ {
		q, rest := odd.divMod(5)
		if rest != 0 {
			return 0, false
		}
		odd = q
	}
	z := odd.trailingZeros()
	odd, k = odd.shiftRight(z), k+z
	if odd.bitLen() > 53 {
		return 0, false
	}
	for n := d.exp; n > 0; n-- {
		odd.lo *= 5
		if odd.lo >= 1<<53 {
			return 0, false
		}
	}
	if k < -1074 || k+odd.bitLen() > 1024 {
		return 0, false
	}
	f := math.Ldexp(float64(odd.lo), k)
	if d.neg {
		f = -f
	}
	return f, true
}

// digits returns how many decimal digits coef has.
func (d decimal) digits() int {
	n := 0
	for c := d.coef; !c.zero(); n++ {
		c, _ = c.divMod(10)
	}
	return n
}

// cmpMagnitude compares |d| with |o|, both finite.
func (d decimal) cmpMagnitude(o decimal) int {
	if d.coef.zero() || o.coef.zero() {
		return d.coef.cmp(o.coef)
	}
	dn, on := d.digits(), o.digits()
	if a, b := dn+d.exp, on+o.exp; a != b {
		return cmp.Compare(a, b)
	}
	a, b := d.coef, o.coef
	for ; dn < on; dn++ {
		a = a.mul10()
	}
	for ; on < dn; on++ {
		b = b.mul10()
	}
	return a.cmp(b)
}

// fromInt64 makes the decimal that equals i.
func fromInt64(i int64) decimal {
	d := decimal{class: Finite, neg: i < 0, coef: uint128{0, uint64(i)}}
	if i < 0 {
		d.coef.lo = -d.coef.lo
	}
	return d
}
