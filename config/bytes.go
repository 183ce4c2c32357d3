package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bytes is an amount of data. It is written as a number of bytes or with a suffix KB, MB, GB or TB,
// which are powers of 1024 as everywhere in MongoDB.
type Bytes int64

var byteUnits = []struct {
	suffix string
	size   Bytes
}{{"TB", 1 << 40}, {"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}, {"B", 1}}

// ParseBytes reads what String writes, and fractions of a unit.
func ParseBytes(text string) (Bytes, error) {
	number, unit := strings.ToUpper(strings.TrimSpace(text)), Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/int64(unit) {
		return Bytes(n) * unit, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0) || f*float64(unit) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not an amount of data: write bytes, or a number with KB, MB, GB or TB", text)
	}
	return Bytes(f * float64(unit)), nil
}

// String is the amount in the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && u.size > 1 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Set makes Bytes a flag's value.
func (b *Bytes) Set(text string) error {
	n, err := ParseBytes(text)
	*b = n
	return err
}

// Type names the value in a command's help.
func (b *Bytes) Type() string { return "bytes" }

// UnmarshalYAML reads what ParseBytes reads.
func (b *Bytes) UnmarshalYAML(node *yaml.Node) error { return b.Set(node.Value) }
