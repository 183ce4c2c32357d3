// Package element walks BSON in place: no allocation, no copy, no trust in any length. It is what the hot paths read documents with: one pass over each
// element, where the library's take three.
package element

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Element is one element of a document. Its slices are parts of the document's own bytes.
type Element struct {
	Type bsoncore.Type
	Key  []byte
	Data []byte
	// Raw is all of it.
	Raw []byte
}

// Value returns the element's value.
func (e *Element) Value() bsoncore.Value { return bsoncore.Value{Type: e.Type, Data: e.Data} }

// Iter walks the elements of one document.
type Iter struct {
	rest []byte
	bad  bool
}

// In starts at the first element of doc, which may be an array. A document whose length is not its own is malformed.
func In(doc []byte) Iter {
	if len(doc) < 5 || int(int32(binary.LittleEndian.Uint32(doc))) != len(doc) || doc[len(doc)-1] != 0 {
		return Iter{bad: true}
	}
	return Iter{rest: doc[4 : len(doc)-1]}
}

// Next reads the next element into e. It returns false at the end and at the first malformed element.
func (it *Iter) Next(e *Element) bool {
	rest := it.rest
	if len(rest) == 0 {
		return false
	}
	end := 1 + nameLen(rest[1:])
	if end == 0 {
		return it.fail()
	}
	t, data := bsoncore.Type(rest[0]), rest[end+1:]
	n := Size(t, data)
	if uint(n) > uint(len(data)) { // also below zero
		return it.fail()
	}
	to := end + 1 + n
	e.Type, e.Key, e.Data, e.Raw = t, rest[1:end], data[:n:n], rest[:to:to]
	it.rest = data[n:]
	return true
}

// nameLen returns how many bytes lie before the first NUL, −1 where there is none. Names are short: eight bytes at once find most.
func nameLen(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		if zero := (x - ones) &^ x & tops; zero != 0 {
			return n + bits.TrailingZeros64(zero)/8
		}
	}
	for ; n < len(b); n++ {
		if b[n] == 0 {
			return n
		}
	}
	return -1
}

func (it *Iter) fail() bool {
	it.rest, it.bad = nil, true
	return false
}

// Malformed reports whether the walk ended at something that is not BSON.
func (it *Iter) Malformed() bool { return it.bad }

// Size returns how many bytes at the start of data a value of type t takes, −1 where they cannot be one.
// The result may be larger than len(data).
func Size(t bsoncore.Type, data []byte) int {
	switch t {
	case bsoncore.TypeNull, bsoncore.TypeUndefined, bsoncore.TypeMinKey, bsoncore.TypeMaxKey:
		return 0
	case bsoncore.TypeBoolean:
		return 1
	case bsoncore.TypeInt32:
		return 4
	case bsoncore.TypeDouble, bsoncore.TypeInt64, bsoncore.TypeDateTime, bsoncore.TypeTimestamp:
		return 8
	case bsoncore.TypeObjectID:
		return 12
	case bsoncore.TypeDecimal128:
		return 16
	case bsoncore.TypeString, bsoncore.TypeSymbol, bsoncore.TypeJavaScript:
		return sized(data, 4, 1)
	case bsoncore.TypeDBPointer:
		if n := sized(data, 4, 1); n >= 0 {
			return n + 12
		}
		return -1
	case bsoncore.TypeBinary:
		return sized(data, 5, 0)
	case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
		return sized(data, 0, 5)
	case bsoncore.TypeCodeWithScope:
		return sized(data, 0, 14)
	case bsoncore.TypeRegex:
		pattern := bytes.IndexByte(data, 0)
		if pattern < 0 {
			return -1
		}
		options := bytes.IndexByte(data[pattern+1:], 0)
		if options < 0 {
			return -1
		}
		return pattern + options + 2
	}
	return -1
}

// sized reads the length that a value begins with: the bytes behind it, to which head is added. A length
// below least is malformed.
func sized(data []byte, head, least int) int {
	if len(data) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(data)))
	if n < least {
		return -1
	}
	return n + head
}

// Text returns the bytes of a string, symbol or code value without length and NUL; false where malformed.
func Text(data []byte) ([]byte, bool) {
	if len(data) < 5 || int(int32(binary.LittleEndian.Uint32(data))) != len(data)-4 {
		return nil, false
	}
	return data[4 : len(data)-1], true
}

// Lookup returns the first element of doc with the given name. found is false where there is none or doc is malformed before it.
func Lookup(doc []byte, name string) (v bsoncore.Value, found bool) {
	it := In(doc)
	var e Element
	for it.Next(&e) {
		if string(e.Key) == name {
			return e.Value(), true
		}
	}
	return bsoncore.Value{}, false
}

// More reports whether there are bytes behind the last element.
func (it *Iter) More() bool { return len(it.rest) > 0 }
