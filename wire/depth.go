package wire

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// leastLevel is the fewest bytes of a level: type, name, length and end.
const leastLevel = 1 + 1 + 4 + 1

// CheckDepth is 15 Overflow for a message with a document that nests deeper than MaxDepth, the outermost counted. A server may end the connection on which it reads such a
// message, and with it the requests of all who share it.
func (m *Msg) CheckDepth() error {
	deep := tooDeep(m.Body)
	for i := range m.Sequences {
		deep = deep || sequenceTooDeep(m.Sequences[i].Docs)
	}
	if deep {
		return Errorf(Overflow, "BSONObj exceeds maximum nested object depth: %d", MaxDepth)
	}
	return nil
}

// mayBeDeep tells from the bytes alone that no document in them is too deep: each level but the outermost begins with the type of a document, an array or a code with scope.
func mayBeDeep(b []byte) bool {
	if len(b) < MaxDepth*leastLevel {
		return false
	}
	return bytes.Count(b, []byte{byte(bsoncore.TypeEmbeddedDocument)})+bytes.Count(b, []byte{byte(bsoncore.TypeArray)})+
		bytes.Count(b, []byte{byte(bsoncore.TypeCodeWithScope)}) >= MaxDepth
}

func sequenceTooDeep(docs []byte) bool {
	if !mayBeDeep(docs) {
		return false
	}
	for len(docs) >= 5 {
		n := int(binary.LittleEndian.Uint32(docs))
		if n < 5 || n > len(docs) {
			return false // which others say
		}
		if tooDeep(docs[:n]) {
			return true
		}
		docs = docs[n:]
	}
	return false
}

// tooDeep walks a document without recursion.
func tooDeep(doc []byte) bool {
	if !mayBeDeep(doc) || len(doc) < 5 {
		return false
	}
	var stack [MaxDepth][]byte // what is left of each level
	depth := 1
	stack[0] = doc[4:]
	for depth > 0 {
		rem := stack[depth-1]
		if len(rem) <= 1 {
			depth--
			continue
		}
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return false // malformed: others say so
		}
		stack[depth-1] = rest
		var inner []byte
		switch v := e.Value(); v.Type {
		case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
			inner = v.Data
		case bsoncore.TypeCodeWithScope:
			_, inner, _ = v.CodeWithScopeOK()
		}
		if len(inner) < 5 {
			continue
		}
		if depth == MaxDepth {
			return true
		}
		stack[depth] = inner[4:]
		depth++
	}
	return false
}
