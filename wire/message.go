package wire

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Message is one whole message as it was read. Whoever has it owns its buffer and calls Release once.
type Message struct {
	Header Header
	// Buf holds the whole message, header included.
	Buf *Buffer
}

// Payload is what follows the header.
func (m Message) Payload() []byte { return m.Buf.B[HeaderLen:] }

// Release gives the buffer back; everything parsed from it becomes invalid.
func (m Message) Release() { m.Buf.Release() }

// Flags are the flag bits of an OP_MSG.
type Flags uint32

// The flags that exist. Unknown ones among bits 0–15 are 223 IllegalOpMsgFlag; others are ignored.
const (
	ChecksumPresent Flags = 1 << 0
	MoreToCome      Flags = 1 << 1
	ExhaustAllowed  Flags = 1 << 16
)

// Sequence is a section of kind 1: documents under a name, the same as an array of that name in the body.
type Sequence struct {
	Identifier string
	// Docs are the documents, one after the other, each checked to lie within the section.
	Docs []byte
}

// All calls yield for each document. The slices point into the message.
func (s Sequence) All(yield func(bson.Raw) bool) {
	for rem := s.Docs; len(rem) >= 5; {
		n := int(binary.LittleEndian.Uint32(rem))
		if n < 5 || n > len(rem) {
			return // ParseMsg has checked: cannot happen
		}
		if !yield(bson.Raw(rem[:n:n])) {
			return
		}
		rem = rem[n:]
	}
}

// Len counts the documents.
func (s Sequence) Len() int {
	n := 0
	for range s.All {
		n++
	}
	return n
}

// maxSequences is how many sections of kind 1 a message may have.
const maxSequences = 2

// Msg is an OP_MSG parsed in place. It can be reused; ParseMsg sets all of it.
type Msg struct {
	Flags Flags
	Body  bson.Raw
	// Sequences points into the Msg itself: copy it to keep it.
	Sequences []Sequence

	backing [maxSequences]Sequence
}

// Sequence returns the sequence with that identifier.
func (m *Msg) Sequence(id string) (Sequence, bool) {
	for _, s := range m.Sequences {
		if s.Identifier == id {
			return s, true
		}
	}
	return Sequence{}, false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ParseMsg parses an OP_MSG in place. Errors are *FatalError (close the connection) or *Error (reply with it); out.Flags is set
// in the second case, so that the caller knows whether a reply is wanted.
func ParseMsg(m Message, out *Msg) error {
	*out = Msg{}
	p := m.Payload()
	if len(p) < 4 {
		return Fatalf(ProtocolError, "OP_MSG of %d bytes has no flags", len(m.Buf.B))
	}
	out.Flags = Flags(binary.LittleEndian.Uint32(p))
	if unknown := out.Flags & 0xffff &^ (ChecksumPresent | MoreToCome); unknown != 0 {
		return Fatalf(IllegalOpMsgFlag, "message contains unknown required flags %#x", uint32(unknown))
	}
	p = p[4:]
	if out.Flags&ChecksumPresent != 0 {
		if len(p) < 4 {
			return Fatalf(ProtocolError, "OP_MSG ends before its checksum")
		}
		whole := m.Buf.B
		if crc32.Checksum(whole[:len(whole)-4], castagnoli) != binary.LittleEndian.Uint32(whole[len(whole)-4:]) {
			return Fatalf(ChecksumMismatch, "OP_MSG checksum does not match contents")
		}
		p = p[:len(p)-4]
	}
	return out.parseSections(p)
}

func (m *Msg) parseSections(p []byte) error {
	var bad error
	for len(p) > 0 {
		kind := p[0]
		p = p[1:]
		switch kind {
		case 0:
			doc, rest, err := takeDocument(p)
			if err != nil {
				return err
			}
			switch {
			case bad != nil:
			case m.Body != nil:
				bad = Errorf(40430, "Multiple body sections in message")
			case len(doc) > MaxInternalDocumentSize:
				bad = Errorf(BSONObjectTooLarge, "BSONObj size: %d is invalid. Size must be between 0 and %d", len(doc), MaxInternalDocumentSize)
			}
			m.Body, p = doc, rest
		case 1:
			s, rest, err := takeSequence(p)
			if err != nil {
				return err
			}
			p = rest
			if len(m.Sequences) == maxSequences {
				return Fatalf(TooManyDocumentSequences, "too many document sequences in OP_MSG")
			}
			if _, twice := m.Sequence(s.Identifier); twice && bad == nil {
				bad = Errorf(40431, "Duplicate document sequence: %s", s.Identifier)
			}
			m.backing[len(m.Sequences)] = s
			m.Sequences = m.backing[:len(m.Sequences)+1]
		case 2:
			return Errorf(Unauthorized, "Unsupported Security Token provided")
		default:
			return Errorf(40432, "Unknown section kind %d", kind)
		}
	}
	if bad != nil {
		return bad
	}
	if m.Body == nil {
		return Errorf(40587, "OP_MSG messages must have a body")
	}
	return nil
}

// takeDocument cuts a document off p, checking its length and last byte only.
func takeDocument(p []byte) (bson.Raw, []byte, error) {
	if len(p) < 5 {
		return nil, nil, Fatalf(ProtocolError, "section ends before its document")
	}
	n := int(int32(binary.LittleEndian.Uint32(p)))
	if n < 5 || n > len(p) || p[n-1] != 0 {
		return nil, nil, Fatalf(ProtocolError, "document of length %d in a section with %d bytes left", n, len(p))
	}
	return bson.Raw(p[:n:n]), p[n:], nil
}

func takeSequence(p []byte) (Sequence, []byte, error) {
	if len(p) < 5 {
		return Sequence{}, nil, Fatalf(ProtocolError, "document sequence of %d bytes", len(p))
	}
	size := int(int32(binary.LittleEndian.Uint32(p)))
	if size < 5 || size > len(p) {
		return Sequence{}, nil, Fatalf(ProtocolError, "document sequence of length %d with %d bytes left", size, len(p))
	}
	in, rest := p[4:size], p[size:]
	end := indexZero(in)
	if end < 0 {
		return Sequence{}, nil, Fatalf(ProtocolError, "document sequence without identifier")
	}
	s := Sequence{Identifier: internIdentifier(in[:end]), Docs: in[end+1:]}
	for docs := s.Docs; len(docs) > 0; {
		var err error
		if _, docs, err = takeDocument(docs); err != nil {
			return Sequence{}, nil, err
		}
	}
	return s, rest, nil
}

func indexZero(b []byte) int {
	for i, c := range b {
		if c == 0 {
			return i
		}
	}
	return -1
}

// internIdentifier avoids an allocation for the identifiers that drivers send.
func internIdentifier(b []byte) string {
	switch string(b) {
	case "documents":
		return "documents"
	case "updates":
		return "updates"
	case "deletes":
		return "deletes"
	case "ops":
		return "ops"
	case "nsInfo":
		return "nsInfo"
	}
	return string(b)
}

// Command returns the name and value of the body's first element and $db. It walks the top level: a malformed body is 22 InvalidBSON,
// a field given twice 9 FailedToParse, a field that is also a sequence 40433, a missing $db 40571, a $tenant 72 InvalidOptions.
func (m *Msg) Command() (name string, first bsoncore.Value, db string, err error) {
	var seen fieldSet
	hasDB := false
	rem := m.Body[4:]
	for i := 0; len(rem) > 1; i++ {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || elem.Value().Validate() != nil && !isContainer(elem) || unterminated(elem) {
			return "", first, "", Errorf(InvalidBSON, "the command is not a valid BSON document: element %d is malformed", i)
		}
		rem = rest
		key := elem.KeyBytes()
		if seen.add(key) {
			return "", first, "", Errorf(FailedToParse, "BSON field '%s' is a duplicate field", strings.ToValidUTF8(string(key), "?"))
		}
		for _, s := range m.Sequences {
			if s.Identifier == string(key) {
				return "", first, "", Errorf(40433, "Duplicate field between body and document sequence %s", s.Identifier)
			}
		}
		if i == 0 {
			name, first = string(key), elem.Value()
		}
		if string(key) == "$tenant" {
			return name, first, "", Errorf(InvalidOptions, "$tenant is not supported: this is no multitenant server")
		}
		if string(key) == "$db" {
			if db, hasDB = elem.Value().StringValueOK(); !hasDB {
				return name, first, "", Errorf(TypeMismatch, "BSON field '$db' is the wrong type, expected type 'string'")
			}
		}
	}
	if len(rem) != 1 || rem[0] != 0 {
		return "", first, "", Errorf(InvalidBSON, "the command is not a valid BSON document")
	}
	if !hasDB {
		return name, first, "", Errorf(40571, "OP_MSG requests require a $db argument")
	}
	return name, first, db, nil
}

// isContainer reports a value whose inside is looked at only by whoever uses it.
func isContainer(e bsoncore.Element) bool {
	t := bsoncore.Type(e[0])
	return t == bsoncore.TypeEmbeddedDocument || t == bsoncore.TypeArray
}

// unterminated reports a string without its last zero, which bsoncore lets pass.
func unterminated(e bsoncore.Element) bool {
	t := bsoncore.Type(e[0])
	return (t == bsoncore.TypeString || t == bsoncore.TypeSymbol || t == bsoncore.TypeJavaScript) && e[len(e)-1] != 0
}

// fieldSet finds a field given twice without allocating for the usual number of fields.
type fieldSet struct {
	small [24][]byte
	n     int
	large map[string]struct{}
}

func (f *fieldSet) add(key []byte) (twice bool) {
	if f.large != nil {
		_, twice = f.large[string(key)]
		f.large[string(key)] = struct{}{}
		return twice
	}
	for _, k := range f.small[:f.n] {
		if string(k) == string(key) {
			return true
		}
	}
	if f.n < len(f.small) {
		f.small[f.n] = key
		f.n++
		return false
	}
	f.large = make(map[string]struct{}, 2*f.n)
	for _, k := range f.small[:f.n] {
		f.large[string(k)] = struct{}{}
	}
	f.large[string(key)] = struct{}{}
	return false
}

// AppendMsg appends a whole OP_MSG to dst, with a checksum when flags say so.
func AppendMsg(dst []byte, requestID, responseTo int32, flags Flags, body []byte, seqs ...Sequence) []byte {
	start := len(dst)
	var h [HeaderLen]byte
	PutHeader(h[:], Header{RequestID: requestID, ResponseTo: responseTo, OpCode: OpMsg})
	dst = append(dst, h[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(flags))
	dst = append(dst, 0)
	dst = append(dst, body...)
	for _, s := range seqs {
		var at int
		at, dst = AppendSequenceStart(dst, s.Identifier)
		dst = append(dst, s.Docs...)
		EndSequence(dst, at)
	}
	return Seal(dst, start)
}

// AppendMsgStart appends what an OP_MSG begins with, up to its body: a header without length and ids, no flags, and the kind of the first section. Seal
// ends it.
func AppendMsgStart(dst []byte) []byte {
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(OpMsg))
	return append(dst, 0, 0, 0, 0, 0)
}

// AppendSequenceStart appends what a section of kind 1 begins with; documents follow, and EndSequence ends it, given at.
func AppendSequenceStart(dst []byte, id string) (at int, _ []byte) {
	dst = append(dst, 1)
	return len(dst), append(append(append(dst, 0, 0, 0, 0), id...), 0)
}

// EndSequence sets the length of the section of kind 1 that began at at and ends with dst.
func EndSequence(dst []byte, at int) {
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at))
}

// Seal sets the length of the OP_MSG that begins at start of dst and ends with it, and appends its checksum when its flags say so.
func Seal(dst []byte, start int) []byte {
	if Flags(binary.LittleEndian.Uint32(dst[start+HeaderLen:]))&ChecksumPresent == 0 {
		putLength(dst, start)
		return dst
	}
	dst = append(dst, 0, 0, 0, 0)
	putLength(dst, start)
	sum := crc32.Checksum(dst[start:len(dst)-4], castagnoli)
	binary.LittleEndian.PutUint32(dst[len(dst)-4:], sum)
	return dst
}
