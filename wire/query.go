package wire

import (
	"encoding/binary"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Query is an OP_QUERY, which only handshakes still use.
type Query struct {
	// NS is "db.$cmd" for a command, and whatever an old client asks for otherwise.
	NS string
	// Body is the command, taken out of {$query: …} where it was wrapped.
	Body bson.Raw
}

// DB returns the database and whether NS is a command's.
func (q Query) DB() (db string, isCommand bool) { return strings.CutSuffix(q.NS, ".$cmd") }

// ParseQuery parses an OP_QUERY in place; what does not fit its message is a *FatalError.
func ParseQuery(m Message) (Query, error) {
	p := m.Payload()
	if len(p) < 4 {
		return Query{}, Fatalf(ProtocolError, "OP_QUERY of %d bytes", len(m.Buf.B))
	}
	p = p[4:]
	end := indexZero(p)
	if end < 0 || len(p) < end+1+8 {
		return Query{}, Fatalf(ProtocolError, "OP_QUERY ends within its header")
	}
	q := Query{NS: string(p[:end])}
	doc, _, err := takeDocument(p[end+1+8:])
	if err != nil {
		return Query{}, err
	}
	q.Body = doc
	if v, err := bsoncore.Document(doc).LookupErr("$query"); err == nil {
		if inner, ok := v.DocumentOK(); ok {
			q.Body = bson.Raw(inner)
		}
	}
	return q, nil
}

// Flags of an OP_REPLY.
const (
	replyQueryFailure = 2
	replyAwaitCapable = 8
)

// AppendReply appends a whole OP_REPLY with one document. failure sets the QueryFailure flag, which tells an old
// client that the document is an error.
func AppendReply(dst []byte, requestID, responseTo int32, failure bool, body []byte) []byte {
	start := len(dst)
	var h [HeaderLen]byte
	PutHeader(h[:], Header{RequestID: requestID, ResponseTo: responseTo, OpCode: OpReply})
	dst = append(dst, h[:]...)
	flags := uint32(replyAwaitCapable)
	if failure {
		flags |= replyQueryFailure
	}
	dst = binary.LittleEndian.AppendUint32(dst, flags)
	dst = binary.LittleEndian.AppendUint64(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, 1)
	dst = append(dst, body...)
	putLength(dst, start)
	return dst
}
