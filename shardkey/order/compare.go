// Package order compares BSON values as MongoDB does, for merging sorted streams, and says which values are one value, for grouping.
package order

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/internal/number"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Null and Undefined order a missing field; Missing is how a sort key and Compare write one. It has no BSON type of its own.
var (
	Null    = bsoncore.Value{Type: bsoncore.TypeNull}
	Missing = bsoncore.Value{}
)

// canonical is MongoDB's order of types; types with one number are compared with one another.
func canonical(t bsoncore.Type) int {
	switch t {
	case bsoncore.TypeMinKey:
		return -1
	case 0, bsoncore.TypeUndefined:
		return 0
	case bsoncore.TypeNull:
		return 5
	case bsoncore.TypeInt32, bsoncore.TypeInt64, bsoncore.TypeDouble, bsoncore.TypeDecimal128:
		return 10
	case bsoncore.TypeString, bsoncore.TypeSymbol:
		return 15
	case bsoncore.TypeEmbeddedDocument:
		return 20
	case bsoncore.TypeArray:
		return 25
	case bsoncore.TypeBinary:
		return 30
	case bsoncore.TypeObjectID:
		return 35
	case bsoncore.TypeBoolean:
		return 40
	case bsoncore.TypeDateTime:
		return 45
	case bsoncore.TypeTimestamp:
		return 47
	case bsoncore.TypeRegex:
		return 50
	case bsoncore.TypeDBPointer:
		return 55
	case bsoncore.TypeJavaScript:
		return 60
	case bsoncore.TypeCodeWithScope:
		return 65
	case bsoncore.TypeMaxKey:
		return 127
	}
	return 128
}

// maxDepth bounds recursion; MongoDB lets documents nest no deeper.
const maxDepth = 250

// Compare orders two values by MongoDB's order under the simple collation: by type, numbers of all types together and exactly, strings by their
// bytes, documents and arrays element by element. The result is below zero, zero or above. The zero Value stands for a missing field and is equal to undefined.
//
// Malformed values are ordered by their bytes, so that the order stays total.
func Compare(a, b bsoncore.Value) int {
	if a.Type == b.Type && len(a.Data) == len(b.Data) { // what most sorts are by, at once
		switch le := binary.LittleEndian; {
		case a.Type == bsoncore.TypeInt32 && len(a.Data) == 4:
			return cmp.Compare(int32(le.Uint32(a.Data)), int32(le.Uint32(b.Data)))
		case (a.Type == bsoncore.TypeInt64 || a.Type == bsoncore.TypeDateTime) && len(a.Data) == 8:
			return cmp.Compare(int64(le.Uint64(a.Data)), int64(le.Uint64(b.Data)))
		case a.Type == bsoncore.TypeObjectID && len(a.Data) == 12:
			return bytes.Compare(a.Data, b.Data)
		}
	}
	return compare(a, b, 0)
}

func compare(a, b bsoncore.Value, depth int) int {
	ca, cb := canonical(a.Type), canonical(b.Type)
	if ca != cb {
		return ca - cb
	}
	if ca == 10 {
		if r, ok := compareNumbers(a, b); ok {
			return r
		}
		return bytes.Compare(a.Data, b.Data)
	}
	oka, okb := whole(a), whole(b)
	switch {
	case !oka && !okb:
		return bytes.Compare(a.Data, b.Data)
	case !oka:
		return -1
	case !okb:
		return 1
	}
	return compareSame(ca, a.Data, b.Data, depth)
}

func compareNumbers(a, b bsoncore.Value) (int, bool) {
	x, okx := number.Of(a)
	y, oky := number.Of(b)
	switch {
	case okx && oky:
		return number.Compare(x, y), true
	case okx:
		return 1, true
	case oky:
		return -1, true
	}
	return 0, false
}

// whole reports whether the value's bytes are as many as its type says.
func whole(v bsoncore.Value) bool {
	if v.Type == 0 {
		return true
	}
	n := element.Size(v.Type, v.Data)
	if n < 0 || n != len(v.Data) {
		return false
	}
	switch v.Type {
	case bsoncore.TypeCodeWithScope:
		_, _, ok := codeScope(v.Data)
		return ok
	case bsoncore.TypeDBPointer:
		return len(v.Data) >= 17
	}
	return true
}

// compareSame compares the bytes of two values of the same canonical type that are no numbers.
func compareSame(canonical int, a, b []byte, depth int) int {
	switch canonical {
	case 15, 60: // strings, symbols; code
		return bytes.Compare(a[4:len(a)-1], b[4:len(b)-1])
	case 20, 25:
		return compareElements(a, b, canonical == 20, depth)
	case 30: // length, subtype, bytes
		if r := cmp.Compare(uint64(binary.LittleEndian.Uint32(a)), uint64(binary.LittleEndian.Uint32(b))); r != 0 {
			return r
		}
		return bytes.Compare(a[4:], b[4:])
	case 40:
		return int(min(a[0], 1)) - int(min(b[0], 1))
	case 45:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a)), int64(binary.LittleEndian.Uint64(b)))
	case 47:
		return cmp.Compare(binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b))
	case 55: // length of the namespace, namespace, id
		if r := cmp.Compare(uint64(binary.LittleEndian.Uint32(a)), uint64(binary.LittleEndian.Uint32(b))); r != 0 {
			return r
		}
		return bytes.Compare(a[4:], b[4:])
	case 65:
		ca, sa, _ := codeScope(a)
		cb, sb, _ := codeScope(b)
		if r := bytes.Compare(ca, cb); r != 0 {
			return r
		}
		return compareElements(sa, sb, true, depth)
	}
	return bytes.Compare(a, b) // ObjectId, regular expression; nothing for null, undefined, MinKey, MaxKey
}

// codeScope takes apart a code with scope.
func codeScope(data []byte) (code, scope []byte, ok bool) {
	if len(data) < 14 {
		return nil, nil, false
	}
	n := element.Size(bsoncore.TypeString, data[4:])
	if n < 5 || n > len(data)-4-5 {
		return nil, nil, false
	}
	return data[8 : 4+n-1], data[4+n:], true
}

// compareElements compares two documents or arrays element by element: first the types, then (in documents) the names, then the values; what
// ends first is less.
func compareElements(a, b []byte, names bool, depth int) int {
	if depth >= maxDepth {
		return bytes.Compare(a, b)
	}
	ia, ib := element.In(a), element.In(b)
	var x, y element.Element
	for {
		okx, oky := ia.Next(&x), ib.Next(&y)
		if !okx || !oky {
			return endOrder(okx, oky, &ia, &ib, a, b)
		}
		if r := canonical(x.Type) - canonical(y.Type); r != 0 {
			return r
		}
		if names {
			if r := bytes.Compare(x.Key, y.Key); r != 0 {
				return r
			}
		}
		if r := compare(x.Value(), y.Value(), depth+1); r != 0 {
			return r
		}
	}
}

// endOrder decides when one of two walks is over: the shorter is less, a malformed end is less than a proper one.
func endOrder(okx, oky bool, ia, ib *element.Iter, a, b []byte) int {
	switch ma, mb := ia.Malformed(), ib.Malformed(); {
	case oky:
		return -1
	case okx:
		return 1
	case ma && mb:
		return bytes.Compare(a, b)
	case ma:
		return -1
	case mb:
		return 1
	}
	return 0
}
