package shardkey

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/internal/number"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The tags that canonical values begin with, one for each class of values that can be equal to one another.
// They are part of HashName: none may ever change.
const (
	tagMinKey    = 0x01
	tagNull      = 0x05
	tagInteger   = 0x0a
	tagDouble    = 0x0b
	tagDecimal   = 0x0c
	tagString    = 0x0f
	tagObject    = 0x14
	tagArray     = 0x19
	tagBinary    = 0x1e
	tagObjectID  = 0x23
	tagBoolean   = 0x28
	tagDate      = 0x2d
	tagTimestamp = 0x2f
	tagRegex     = 0x32
	tagDBPointer = 0x37
	tagCode      = 0x3c
	tagCodeScope = 0x41
	tagMaxKey    = 0x7f

	tagEnd = 0x00 // ends the elements of an object, an array and a scope
)

// maxDepth is how deep MongoDB lets documents nest.
const maxDepth = 200

// canonicalNaN stands for every NaN.
const canonicalNaN = 0x7ff8000000000000

// AppendCanonical appends v's canonical bytes: equal for values that MongoDB compares as equal, whatever their types, and different for others
// (but for null and undefined, which are one here).
//
// An array has none where it is the key's value: ErrorCode 61 ShardKeyNotFound; arrays inside documents have. Bytes that are not
// BSON, and documents nested deeper than MongoDB allows, are errors too.
func AppendCanonical(dst []byte, v bsoncore.Value) ([]byte, error) {
	switch v.Type {
	case bsoncore.TypeArray:
		return dst, errArrayValue
	case bsoncore.TypeEmbeddedDocument, bsoncore.TypeCodeWithScope:
		return appendCanonical(dst, v, 0)
	}
	return appendFlat(dst, v)
}

// appendFlat appends a key value that is no document and holds none. (It keeps dst off the heap, as recursion would not.)
func appendFlat(dst []byte, v bsoncore.Value) ([]byte, error) {
	if v.Type == bsoncore.TypeString || v.Type == bsoncore.TypeSymbol {
		s, ok := element.Text(v.Data)
		if !ok {
			return dst, errMalformed
		}
		return append(append(dst, tagString), s...), nil
	}
	return appendScalar(dst, v)
}

// appendCanonical appends a value inside a document, or one of a type whose bytes say where they end.
func appendCanonical(dst []byte, v bsoncore.Value, depth int) ([]byte, error) {
	if n := element.Size(v.Type, v.Data); n < 0 || n > len(v.Data) {
		return dst, errMalformed
	}
	switch v.Type {
	case bsoncore.TypeEmbeddedDocument:
		return appendElements(append(dst, tagObject), v.Data, depth)
	case bsoncore.TypeArray:
		return appendElements(append(dst, tagArray), v.Data, depth)
	case bsoncore.TypeCodeWithScope:
		return appendCodeScope(append(dst, tagCodeScope), v.Data, depth)
	}
	return appendScalar(dst, v)
}

// appendScalar appends a value that is no document and holds none.
func appendScalar(dst []byte, v bsoncore.Value) ([]byte, error) {
	if n := element.Size(v.Type, v.Data); n < 0 || n > len(v.Data) {
		return dst, errMalformed
	}
	if n, ok := number.Of(v); ok {
		return appendNumber(dst, n), nil
	}
	switch v.Type {
	case bsoncore.TypeNull, bsoncore.TypeUndefined:
		return append(dst, tagNull), nil
	case bsoncore.TypeString, bsoncore.TypeSymbol:
		return appendText(append(dst, tagString), v.Data)
	case bsoncore.TypeJavaScript:
		return appendText(append(dst, tagCode), v.Data)
	case bsoncore.TypeBinary:
		// MongoDB's order of comparison: length, subtype, bytes.
		dst = append(dst, tagBinary, v.Data[3], v.Data[2], v.Data[1], v.Data[0])
		return append(dst, v.Data[4:]...), nil
	case bsoncore.TypeObjectID:
		return append(append(dst, tagObjectID), v.Data[:12]...), nil
	case bsoncore.TypeBoolean:
		return append(dst, tagBoolean, byte(b2u(v.Data[0] != 0))), nil
	case bsoncore.TypeDateTime:
		return binary.BigEndian.AppendUint64(append(dst, tagDate), binary.LittleEndian.Uint64(v.Data)), nil
	case bsoncore.TypeTimestamp:
		return binary.BigEndian.AppendUint64(append(dst, tagTimestamp), binary.LittleEndian.Uint64(v.Data)), nil
	case bsoncore.TypeRegex:
		return append(append(dst, tagRegex), v.Data...), nil
	case bsoncore.TypeDBPointer:
		return append(append(dst, tagDBPointer), v.Data...), nil
	case bsoncore.TypeMinKey:
		return append(dst, tagMinKey), nil
	case bsoncore.TypeMaxKey:
		return append(dst, tagMaxKey), nil
	}
	return dst, errMalformed
}

func appendNumber(dst []byte, n number.Number) []byte {
	switch n.Form {
	case number.Integer:
		return binary.BigEndian.AppendUint64(append(dst, tagInteger), uint64(n.Int))
	case number.Double:
		bits := math.Float64bits(n.Float)
		if n.Float != n.Float {
			bits = canonicalNaN
		}
		return binary.BigEndian.AppendUint64(append(dst, tagDouble), bits)
	}
	dst = append(dst, tagDecimal, byte(b2u(n.Neg)))
	dst = binary.BigEndian.AppendUint64(dst, n.CoefHi)
	dst = binary.BigEndian.AppendUint64(dst, n.CoefLo)
	return binary.BigEndian.AppendUint16(dst, uint16(int16(n.Exp)))
}

// appendText appends a string with its length before it, so that what follows cannot be taken for a part of it.
func appendText(dst, data []byte) ([]byte, error) {
	s, ok := element.Text(data)
	if !ok {
		return dst, errMalformed
	}
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...), nil
}

func appendElements(dst, doc []byte, depth int) ([]byte, error) {
	if depth >= maxDepth {
		return dst, errTooDeep
	}
	it := element.In(doc)
	var e element.Element
	var err error
	for it.Next(&e) {
		// The value's tag, which is never tagEnd, comes behind the name; a name is preceded by one byte that is not tagEnd either.
		dst = append(append(append(dst, 1), e.Key...), 0)
		if dst, err = appendCanonical(dst, e.Value(), depth+1); err != nil {
			return dst, err
		}
	}
	if it.Malformed() {
		return dst, errMalformed
	}
	return append(dst, tagEnd), nil
}

// appendCodeScope appends a code with scope: int32 length of the whole, the code as a string, the scope as a document.
func appendCodeScope(dst, data []byte, depth int) ([]byte, error) {
	code, scope, ok := splitCodeScope(data)
	if !ok {
		return dst, errMalformed
	}
	dst, err := appendText(dst, code)
	if err != nil {
		return dst, err
	}
	return appendElements(dst, scope, depth)
}

func splitCodeScope(data []byte) (code, scope []byte, ok bool) {
	n := element.Size(bsoncore.TypeString, data[4:])
	if n < 0 || n > len(data)-4 {
		return nil, nil, false
	}
	return data[4 : 4+n], data[4+n:], true
}

// HashValue returns the position of documents whose shard key value is v. Errors are AppendCanonical's.
func HashValue(v bsoncore.Value) (Position, error) {
	switch v.Type {
	case bsoncore.TypeArray, bsoncore.TypeEmbeddedDocument, bsoncore.TypeCodeWithScope:
		canonical, err := AppendCanonical(make([]byte, 0, len(v.Data)+64), v)
		if err != nil {
			return 0, err
		}
		return Position(xxhash.Sum64(canonical)), nil
	}
	var buf [128]byte
	if s, ok := longString(v, len(buf)); ok {
		var d xxhash.Digest
		d.Reset()
		buf[0] = tagString
		_, _ = d.Write(buf[:1])
		_, _ = d.Write(s)
		return Position(d.Sum64()), nil
	}
	canonical, err := appendFlat(buf[:0], v)
	if err != nil {
		return 0, err
	}
	return Position(xxhash.Sum64(canonical)), nil
}

// longString returns the text of a string whose canonical bytes do not fit in room, to hash it where it is.
func longString(v bsoncore.Value, room int) ([]byte, bool) {
	if (v.Type != bsoncore.TypeString && v.Type != bsoncore.TypeSymbol) || len(v.Data) < room {
		return nil, false
	}
	return element.Text(v.Data)
}

// EqualValues reports whether a and b are one shard key value: a document that changes from one to the other keeps its place. Values that
// cannot be keys are equal to none.
func (p Pattern) EqualValues(a, b bsoncore.Value) bool {
	var abuf, bbuf [128]byte
	ca, err := AppendCanonical(abuf[:0], a)
	if err != nil {
		return false
	}
	cb, err := AppendCanonical(bbuf[:0], b)
	return err == nil && bytes.Equal(ca, cb)
}

// integer returns v as an int64 where it is a number that equals one.
func integer(v bsoncore.Value) (int64, bool) {
	n, ok := number.Of(v)
	return n.Int, ok && n.Form == number.Integer
}
