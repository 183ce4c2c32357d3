package wire

import "encoding/binary"

// OpCode is the operation of a message.
type OpCode int32

// The operations that are still spoken; all others were removed from servers by 6.0.
const (
	OpReply      OpCode = 1
	OpQuery      OpCode = 2004
	OpCompressed OpCode = 2012
	OpMsg        OpCode = 2013
)

// Limits that hello announces, in bytes and statements.
const (
	// HeaderLen is the length of a message's header.
	HeaderLen = 16
	// MsgBodyStart is where the body of an OP_MSG begins whose first section is the body: after header, flags and kind.
	MsgBodyStart = HeaderLen + 4 + 1
	// MaxMessageSize is hello's maxMessageSizeBytes.
	MaxMessageSize = 48000000
	// MaxDocumentSize is hello's maxBsonObjectSize.
	MaxDocumentSize = 16777216
	// MaxInternalDocumentSize is what a command or reply around a largest document may take.
	MaxInternalDocumentSize = MaxDocumentSize + 16*1024
	// MaxWriteBatchSize is hello's maxWriteBatchSize.
	MaxWriteBatchSize = 100000
	// MaxDepth is how deep documents may nest (15 Overflow beyond).
	MaxDepth = 200
)

// Header is the head of every message.
type Header struct {
	MessageLength, RequestID, ResponseTo int32
	OpCode                               OpCode
}

// ParseHeader reads a header from the first HeaderLen bytes of b. A length outside
// HeaderLen..MaxMessageSize is a *FatalError.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, Fatalf(InvalidLength, "message header of %d bytes", len(b))
	}
	h := Header{
		MessageLength: int32(binary.LittleEndian.Uint32(b)),
		RequestID:     int32(binary.LittleEndian.Uint32(b[4:])),
		ResponseTo:    int32(binary.LittleEndian.Uint32(b[8:])),
		OpCode:        OpCode(binary.LittleEndian.Uint32(b[12:])),
	}
	if h.MessageLength < HeaderLen || h.MessageLength > MaxMessageSize {
		return h, Fatalf(ProtocolError, "message length %d is outside %d..%d", h.MessageLength, HeaderLen, MaxMessageSize)
	}
	return h, nil
}

// PutHeader writes h to the first HeaderLen bytes of b.
func PutHeader(b []byte, h Header) {
	binary.LittleEndian.PutUint32(b, uint32(h.MessageLength))
	binary.LittleEndian.PutUint32(b[4:], uint32(h.RequestID))
	binary.LittleEndian.PutUint32(b[8:], uint32(h.ResponseTo))
	binary.LittleEndian.PutUint32(b[12:], uint32(h.OpCode))
}

// SetRequestID overwrites the requestID of a whole message in place.
func SetRequestID(msg []byte, id int32) { binary.LittleEndian.PutUint32(msg[4:], uint32(id)) }

// SetResponseTo overwrites the responseTo of a whole message in place.
func SetResponseTo(msg []byte, id int32) { binary.LittleEndian.PutUint32(msg[8:], uint32(id)) }

func putLength(msg []byte, start int) {
	binary.LittleEndian.PutUint32(msg[start:], uint32(len(msg)-start))
}
