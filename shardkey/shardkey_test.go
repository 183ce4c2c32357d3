package shardkey

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shardway/shardway/shardkey/internal/sample"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func pattern(_ testing.TB, path string) Pattern {
	p, err := ParsePattern(sample.Document(path, "hashed"))
	if err != nil {
		panic(err)
	}
	return p
}

func code(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestParsePattern(t *testing.T) {
	for _, path := range []string{"a", "a.b.c", "_id", "ref.$id", "é", "a b"} {
		p := pattern(t, path)
		if p.Path() != path || p.Zero() || !bytes.Equal(p.Raw(), sample.Document(path, "hashed")) {
			t.Errorf("%q: path %q, raw %v", path, p.Path(), p.Raw())
		}
	}
	bad := map[string]bson.Raw{
		"empty":     sample.Document(),
		"ranged":    sample.Document("a", 1),
		"down":      sample.Document("a", -1),
		"kind":      sample.Document("a", "2d"),
		"type":      sample.Document("a", true),
		"compound":  sample.Document("a", "hashed", "b", 1),
		"two":       sample.Document("a", "hashed", "b", "hashed"),
		"no name":   sample.Document("", "hashed"),
		"lead dot":  sample.Document(".a", "hashed"),
		"trail dot": sample.Document("a.", "hashed"),
		"two dots":  sample.Document("a..b", "hashed"),
		"dollar":    sample.Document("$a", "hashed"),
		"dollar 2":  sample.Document("a.$b", "hashed"),
		"$id":       sample.Document("$id", "hashed"),
	}
	for name, raw := range bad {
		if _, err := ParsePattern(raw); code(err) != wire.BadValue {
			t.Errorf("%s: %v, want BadValue", name, err)
		}
	}
	if _, err := ParsePattern(sample.Document("a", 1)); !strings.Contains(err.Error(), "hashed") {
		t.Errorf("the refusal of a ranged key does not name what is supported: %v", err)
	}
}

func TestRange(t *testing.T) {
	whole := Range{}
	lo, hi := whole.SplitAt(1 << 63)
	if !whole.IsWhole() || whole.Middle() != 1<<63 || lo != (Range{0, 1 << 63}) || hi != (Range{1 << 63, 0}) || whole.Width() != 1 {
		t.Errorf("whole range: %v %v", lo, hi)
	}
	if !hi.Contains(math.MaxUint64) || hi.Contains(1<<63-1) || lo.Contains(1<<63) || !lo.Contains(0) || lo.Overlaps(hi) || !whole.Overlaps(lo) ||
		!whole.ContainsRange(hi) || hi.ContainsRange(whole) {
		t.Error("bounds")
	}
	if lo.CanSplitAt(0) || !lo.CanSplitAt(1) || lo.CanSplitAt(1<<63) || hi.Last() != math.MaxUint64 {
		t.Error("splits")
	}
	for _, n := range []int{1, 2, 3, 7, 64, 1000} {
		ranges := Even(n)
		if len(ranges) != n || ranges[0].Lo != 0 || ranges[n-1].Hi != 0 {
			t.Fatalf("Even(%d) = %v", n, ranges)
		}
		for i, r := range ranges {
			want := new(big.Int).Div(new(big.Int).Mul(big.NewInt(int64(i)), new(big.Int).Lsh(big.NewInt(1), 64)), big.NewInt(int64(n)))
			if d := new(big.Int).Sub(want, new(big.Int).SetUint64(uint64(r.Lo))); d.CmpAbs(big.NewInt(int64(n))) > 0 || (i > 0 && ranges[i-1].Hi != r.Lo) || !r.Valid() {
				t.Fatalf("Even(%d)[%d] = %v, want about %v", n, i, r, want)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	doc := bson.Raw(bsoncore.BuildDocument(nil, Range{}.AppendLower(nil, "a"), Range{}.AppendUpper(nil, "b"), Range{Lo: 1 << 63}.AppendLower(nil, "c"),
		Range{Hi: 1}.AppendUpper(nil, "d")))
	if doc.Lookup("a").Type != bson.TypeMinKey || doc.Lookup("b").Type != bson.TypeMaxKey || doc.Lookup("c").Int64() != 0 || doc.Lookup("d").Int64() != math.MinInt64+1 {
		t.Errorf("bounds show as %v", doc)
	}
	for _, c := range []struct {
		v   any
		p   Position
		end bool
		ok  bool
	}{{bson.MinKey{}, 0, false, true}, {bson.MaxKey{}, 0, true, true}, {int64(math.MinInt64), 0, false, true}, {int32(0), 1 << 63, false, true}, {-1.0, 1<<63 - 1, false, true},
		{1.5, 0, false, false}, {"x", 0, false, false}} {
		v := sample.Of(c.v)
		p, end, ok := ParseBound(bson.RawValue{Type: bson.Type(v.Type), Value: v.Data})
		if p != c.p || end != c.end || ok != c.ok {
			t.Errorf("ParseBound(%v) = %v %v %v", c.v, p, end, ok)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "write testdata anew; positions that change make every existing deployment wrong")

// vectors are values of every class with the name they have in testdata.
func vectors() (names []string, values []bsoncore.Value) {
	add := func(name string, v bsoncore.Value) { names, values = append(names, name), append(values, v) }
	for _, v := range []any{nil, int32(0), int32(1), int64(-1), int64(math.MaxInt64), int64(math.MinInt64), 0.1, 1.5, -0.5, math.Inf(1), math.Inf(-1), math.NaN(), 1e300, float64(1 << 63),
		"", "a", "tenant-1", "é", "a\x00b", strings.Repeat("x", 500), bson.D{}, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: bson.A{"x", nil}}}, bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}},
		bson.Binary{Data: []byte{1, 2}}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.ObjectID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, true, false, bson.DateTime(1700000000000),
		bson.DateTime(-1), bson.Timestamp{T: 1, I: 2}, bson.Regex{Pattern: "^a", Options: "i"}, bson.DBPointer{DB: "db.c", Pointer: bson.ObjectID{1}}, bson.JavaScript("f()"),
		bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "x", Value: 1}}}, bson.MinKey{}, bson.MaxKey{}} {
		s := fmt.Sprintf("%T %v", v, v)
		add(strings.NewReplacer("\x00", `\0`, "\n", `\n`).Replace(s[:min(len(s), 60)]), sample.Of(v))
	}
	for _, d := range []string{"0.1", "-0.1", "1E+100", "9223372036854775808", "9.999999999999999999999999999999999E+6144", "1E-6176"} {
		add("decimal "+d, sample.Decimal(d))
	}
	return names, values
}

// TestPinnedVectors holds the positions in place: a change here is another HashName.
func TestPinnedVectors(t *testing.T) {
	const file = "testdata/" + "xxh64-1.txt"
	names, values := vectors()
	var lines []string
	for i, v := range values {
		canonical, err := AppendCanonical(nil, v)
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
		pos, err := HashValue(v)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%016x\t%s\t%s", uint64(pos), hex.EncodeToString(canonical), names[i]))
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var pinned []string
	for s := bufio.NewScanner(f); s.Scan(); {
		pinned = append(pinned, s.Text())
	}
	if len(pinned) != len(lines) {
		t.Fatalf("%d vectors pinned, %d computed", len(pinned), len(lines))
	}
	for i := range lines {
		if lines[i] != pinned[i] {
			t.Errorf("computed %s\npinned   %s", lines[i], pinned[i])
		}
	}
}

// equal is an independent statement of which values are one key value: MongoDB's order says so, and null is undefined. Inside documents null and undefined
// may share a position as well, so values that hold undefined are not asked.
func equal(a, b bsoncore.Value) bool {
	null := func(v bsoncore.Value) bool { return v.Type == bsoncore.TypeNull || v.Type == bsoncore.TypeUndefined }
	return (null(a) && null(b)) || order.Compare(a, b) == 0
}

// rational is a finite number's exact value; nil for anything else.
func rational(v bsoncore.Value) *big.Rat {
	switch v.Type {
	case bsoncore.TypeInt32, bsoncore.TypeInt64:
		return new(big.Rat).SetInt64(v.AsInt64())
	case bsoncore.TypeDouble:
		return new(big.Rat).SetFloat64(v.Double())
	case bsoncore.TypeDecimal128:
		h, l := v.Decimal128()
		d := bson.NewDecimal128(h, l)
		if d.IsNaN() || d.IsInf() != 0 {
			return nil
		}
		i, exp, err := d.BigInt()
		if limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil); err != nil || new(big.Int).Abs(i).Cmp(limit) >= 0 {
			return new(big.Rat)
		}
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
		if exp < 0 {
			return new(big.Rat).SetFrac(i, scale)
		}
		return new(big.Rat).SetInt(i.Mul(i, scale))
	}
	return nil
}

// TestEqualNumbersEqualPositions holds law 5 against math/big, which knows nothing of our number forms.
func TestEqualNumbersEqualPositions(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	equalPairs := 0
	for range 30000 {
		a, b := sample.Number(r), sample.Number(r)
		ra, rb := rational(a), rational(b)
		if ra == nil || rb == nil {
			continue
		}
		same := ra.Cmp(rb) == 0
		if same {
			equalPairs++
		}
		ca, _ := AppendCanonical(nil, a)
		cb, _ := AppendCanonical(nil, b)
		if bytes.Equal(ca, cb) != same {
			t.Fatalf("seed %d: %v and %v: equal %v, canonical %x and %x", seed, a, b, same, ca, cb)
		}
	}
	if equalPairs < 100 {
		t.Errorf("only %d equal pairs: the test shows nothing", equalPairs)
	}
}

func TestEqualValuesEqualPositions(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	p := pattern(t, "k")
	for range 30000 {
		a, b := sample.Value(r, 2), sample.Value(r, 2)
		if a.Type == bsoncore.TypeArray || b.Type == bsoncore.TypeArray {
			continue
		}
		pa, erra := HashValue(a)
		pb, errb := HashValue(b)
		if erra != nil || errb != nil {
			t.Fatalf("seed %d: %v %v", seed, erra, errb)
		}
		eq := equal(a, b)
		if eq && pa != pb {
			t.Fatalf("seed %d: %v and %v are equal, and at %x and %x", seed, a, b, pa, pb)
		}
		if eq != p.EqualValues(a, b) && !bytes.Contains(a.Data, []byte{byte(bsoncore.TypeUndefined)}) && !bytes.Contains(b.Data, []byte{byte(bsoncore.TypeUndefined)}) {
			t.Fatalf("seed %d: EqualValues(%v, %v) = %v", seed, a, b, !eq)
		}
	}
}

// TestValue is cases 13, 15 and 45: where a document's value is, and what is none.
func TestValue(t *testing.T) {
	p := pattern(t, "a.b")
	for _, c := range []struct {
		doc  bson.D
		want any
		code wire.Code
	}{
		{bson.D{}, nil, 0},
		{bson.D{{Key: "a", Value: 5}}, nil, 0},
		{bson.D{{Key: "a", Value: bson.D{}}}, nil, 0},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: nil}}}}, nil, 0},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 7}}}}, 7, 0},
		{bson.D{{Key: "a.b", Value: 7}}, nil, 0},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.D{{Key: "c", Value: 1}}}}}}, bson.D{{Key: "c", Value: 1}}, 0},
		{bson.D{{Key: "a", Value: bson.A{}}}, nil, wire.ShardKeyNotFound},
		{bson.D{{Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 1}}}}}, nil, wire.ShardKeyNotFound},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{1}}}}}, nil, wire.ShardKeyNotFound},
	} {
		raw, _ := bson.Marshal(c.doc)
		v, err := p.Value(raw)
		if code(err) != c.code || (err == nil && !v.Equal(sample.Of(c.want))) {
			t.Errorf("%v: %v %v, want %v %v", c.doc, v, err, c.want, c.code)
		}
	}
	if _, err := p.Position(bson.Raw{9, 0, 0, 0, 1}); code(err) != wire.InvalidBSON {
		t.Errorf("malformed document: %v", err)
	}
	missing, _ := p.Position(sample.Document())
	null, _ := p.Position(sample.Document("a", bson.D{{Key: "b", Value: nil}}))
	if missing != null {
		t.Error("missing and null are apart")
	}
}

// TestInvalidUTF8 is case 36: the bytes are hashed as they are.
func TestInvalidUTF8(t *testing.T) {
	a, errA := HashValue(sample.Of("f\xff\xfe"))
	b, errB := HashValue(sample.Of("f\uFFFD\uFFFD"))
	if errA != nil || errB != nil || a == b {
		t.Errorf("%x %v, %x %v", a, errA, b, errB)
	}
}

func TestNestedTooDeep(t *testing.T) {
	v := sample.Of(bson.D{})
	for range maxDepth + 1 {
		v = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: sample.Document("a", v)}
	}
	if _, err := HashValue(v); code(err) != wire.Overflow {
		t.Errorf("%v", err)
	}
}

func TestAllocatesNothing(t *testing.T) {
	p := pattern(t, "a.b")
	var target Target
	for name, v := range map[string]any{"string": "tenant-4711", "long": strings.Repeat("x", 5000), "int": 5, "double": 2.5, "id": bson.ObjectID{}, "object": bson.D{{Key: "x", Value: 1}}} {
		doc := sample.Document("x", 1, "a", bson.D{{Key: "c", Value: 1}, {Key: "b", Value: v}})
		most := 0.0
		if name == "object" {
			most = 1 // its canonical bytes
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = p.Position(doc) }); n > most {
			t.Errorf("Position of a %s: %v allocations", name, n)
		}
		filter := sample.Document("a.b", v, "c", bson.D{{Key: "$gt", Value: 1}})
		p.TargetInto(&target, filter, true)
		if !target.Bound {
			t.Fatalf("%s: not bound", name)
		}
		if name == "object" {
			continue
		}
		if n := testing.AllocsPerRun(100, func() { p.TargetInto(&target, filter, true) }); n != 0 {
			t.Errorf("TargetInto with a %s: %v allocations", name, n)
		}
	}
}

func BenchmarkTarget(b *testing.B) {
	p := pattern(b, "tenant")
	filter := sample.Document("tenant", "tenant-4711")
	var target Target
	for b.Loop() {
		p.TargetInto(&target, filter, true)
	}
}

// FuzzPosition feeds bytes that need not be BSON: no panic, and an equal value at an equal place.
func FuzzPosition(f *testing.F) {
	_, values := vectors()
	for _, v := range values {
		f.Add([]byte(sample.Document("k", v)))
	}
	p := pattern(f, "k")
	f.Fuzz(func(t *testing.T, doc []byte) {
		v, err := p.Value(doc)
		if err != nil {
			return
		}
		pos, err := HashValue(v)
		canonical, err2 := AppendCanonical(nil, v)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("HashValue %v, AppendCanonical %v", err, err2)
		}
		if again, _ := p.Position(doc); err == nil && again != pos {
			t.Fatal("two positions")
		}
		_ = canonical
	})
}

func positions(values ...any) []Position {
	var out []Position
	for _, v := range values {
		p, err := HashValue(sample.Of(v))
		if err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
