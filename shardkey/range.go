package shardkey

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Position is the 64-bit hash of a shard key value: where in the hash space its documents are.
type Position uint64

// signBit turns a position into what clients see and back: position − 2^63 as an int64, order kept.
const signBit = 1 << 63

// Int64 returns the number clients see in place of p: p − 2^63.
func (p Position) Int64() int64 { return int64(uint64(p) ^ signBit) }

// PositionFromInt64 is the inverse of Position.Int64.
func PositionFromInt64(i int64) Position { return Position(uint64(i) ^ signBit) }

// Range is a half-open interval of positions, [Lo, Hi). Hi == 0 stands for 2^64, the end of the hash
// space, so the zero Range is the whole of it.
type Range struct {
	Lo, Hi Position
}

// Contains reports whether p lies in r.
func (r Range) Contains(p Position) bool { return p >= r.Lo && (r.Hi == 0 || p < r.Hi) }

// ContainsRange reports whether every position of o lies in r.
func (r Range) ContainsRange(o Range) bool {
	return o.Lo >= r.Lo && (r.Hi == 0 || (o.Hi != 0 && o.Hi <= r.Hi))
}

// Overlaps reports whether r and o have a position in common.
func (r Range) Overlaps(o Range) bool {
	return (r.Hi == 0 || o.Lo < r.Hi) && (o.Hi == 0 || r.Lo < o.Hi)
}

// IsWhole reports whether r is the whole hash space.
func (r Range) IsWhole() bool { return r.Lo == 0 && r.Hi == 0 }

// Last returns the last position of r.
func (r Range) Last() Position { return r.Hi - 1 }

// Valid reports whether r holds at least one position.
func (r Range) Valid() bool { return r.Hi == 0 || r.Lo < r.Hi }

// Width is the number of positions in r as a fraction of the hash space, in (0, 1].
func (r Range) Width() float64 {
	const space = 1 << 64
	if r.IsWhole() {
		return 1
	}
	return float64(uint64(r.Hi-r.Lo)) / space
}

// CanSplitAt reports whether at divides r into two ranges with at least one position each.
func (r Range) CanSplitAt(at Position) bool { return at > r.Lo && r.Contains(at) }

// SplitAt divides r into [Lo, at) and [at, Hi). It must be true that r.CanSplitAt(at).
func (r Range) SplitAt(at Position) (lo, hi Range) {
	return Range{r.Lo, at}, Range{at, r.Hi}
}

// Middle returns the position that halves r; equal to Lo when r holds only one position.
func (r Range) Middle() Position {
	if r.IsWhole() {
		return signBit
	}
	return r.Lo + (r.Hi-r.Lo)/2
}

// Even divides the whole hash space into n ranges of the same width (give or take one position),
// in order. n below 1 counts as 1.
func Even(n int) []Range {
	n = max(n, 1)
	ranges := make([]Range, n)
	// floor(i·2^64/n), computed without a 65-bit number: 2^64 = n·step + rest.
	step := ^uint64(0)/uint64(n) + b2u(^uint64(0)%uint64(n) == uint64(n)-1)
	rest := -step * uint64(n)
	for i := range ranges {
		ranges[i].Lo = Position(step*uint64(i) + min(uint64(i), rest))
		if i > 0 {
			ranges[i-1].Hi = ranges[i].Lo
		}
	}
	return ranges
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// String shows r in hexadecimal, for logs.
func (r Range) String() string {
	if r.Hi == 0 {
		return fmt.Sprintf("[%016x, end)", uint64(r.Lo))
	}
	return fmt.Sprintf("[%016x, %016x)", uint64(r.Lo), uint64(r.Hi))
}

// AppendLower appends the element name: r.Lo as clients see it: MinKey at the beginning of the hash
// space, else NumberLong(Lo − 2^63).
func (r Range) AppendLower(dst []byte, name string) []byte {
	return AppendBound(dst, name, r.Lo, false)
}

// AppendUpper appends the element name: r.Hi as clients see it: MaxKey at the end of the hash space,
// else NumberLong(Hi − 2^63).
func (r Range) AppendUpper(dst []byte, name string) []byte { return AppendBound(dst, name, r.Hi, true) }

// AppendBound appends one bound of a range as the element name: what clients see in config.chunks and in
// mongos' replies, NumberLong(p − 2^63). Zero is an end of the hash space and shows as MinKey for a lower bound and
// as MaxKey for an upper one.
func AppendBound(dst []byte, name string, p Position, upper bool) []byte {
	switch {
	case p == 0 && upper:
		return bsoncore.AppendMaxKeyElement(dst, name)
	case p == 0:
		return bsoncore.AppendMinKeyElement(dst, name)
	default:
		return bsoncore.AppendInt64Element(dst, name, p.Int64())
	}
}

// ParseBound reads a bound as clients give it. MinKey is 0; MaxKey is 0 too and end is then true: it can only be an
// upper bound. Any integer type is taken, since shells send whole numbers as doubles. ok is false for anything else.
func ParseBound(v bson.RawValue) (p Position, end, ok bool) {
	switch v.Type {
	case bson.TypeMinKey:
		return 0, false, true
	case bson.TypeMaxKey:
		return 0, true, true
	}
	i, ok := integer(bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
	if !ok {
		return 0, false, false
	}
	return PositionFromInt64(i), false, true
}
