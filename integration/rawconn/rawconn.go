// Package rawconn is a client of the wire protocol for tests: it shows replies as they are and can send what no driver would.
package rawconn

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Opcodes of the wire protocol.
const (
	OpReply      = 1
	OpInsert     = 2002
	OpQuery      = 2004
	OpGetMore    = 2005
	OpCompressed = 2012
	OpMsg        = 2013
)

// Flags of OP_MSG.
const (
	ChecksumPresent = 1 << 0
	MoreToCome      = 1 << 1
	ExhaustAllowed  = 1 << 16
)

const (
	headerLen = 16
	maxLen    = 48_000_000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Conn is one connection. It is for one goroutine.
type Conn struct {
	net.Conn
	timeout time.Duration
	lastID  int32
}

// Message is one message as it came.
type Message struct {
	RequestID, ResponseTo, Opcode int32
	Payload                       []byte // after the header
}

// Dial connects to "host:port". Each exchange ends after a minute at most; see SetTimeout.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c, timeout: time.Minute}, nil
}

// SetTimeout bounds each write and each read of a message from now on.
func (c *Conn) SetTimeout(d time.Duration) { c.timeout = d }

// NextID is a request id not used before on this connection.
func (c *Conn) NextID() int32 { c.lastID++; return c.lastID }

// Kind0 is a body section.
func Kind0(doc any) []byte { return append([]byte{0}, mustMarshal(doc)...) }

// Kind1 is a document sequence.
func Kind1(name string, docs ...any) []byte {
	b := append([]byte{1, 0, 0, 0, 0}, name...)
	b = append(b, 0)
	for _, d := range docs {
		b = append(b, mustMarshal(d)...)
	}
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}

// mustMarshal takes raw bytes as they are, also such as are no document.
func mustMarshal(doc any) []byte {
	switch d := doc.(type) {
	case bson.Raw:
		return d
	case []byte:
		return d
	}
	b, err := bson.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("BUG: a test's document cannot be marshalled: %v", err))
	}
	return b
}

// Frame puts a header before a payload.
func Frame(requestID, responseTo, opcode int32, payload []byte) []byte {
	b := make([]byte, headerLen, headerLen+len(payload))
	for i, v := range []int32{int32(headerLen + len(payload)), requestID, responseTo, opcode} {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	return append(b, payload...)
}

// Msg is a whole OP_MSG; with ChecksumPresent its right checksum is appended.
func Msg(requestID int32, flags uint32, sections ...[]byte) []byte {
	payload := binary.LittleEndian.AppendUint32(nil, flags)
	for _, s := range sections {
		payload = append(payload, s...)
	}
	if flags&ChecksumPresent == 0 {
		return Frame(requestID, 0, OpMsg, payload)
	}
	m := Frame(requestID, 0, OpMsg, append(payload, 0, 0, 0, 0))
	sum := crc32.Checksum(m[:len(m)-4], castagnoli)
	binary.LittleEndian.PutUint32(m[len(m)-4:], sum)
	return m
}

// ChecksumHolds reports whether the message, read with ReadMessage, ends in its right checksum.
func (m Message) ChecksumHolds() bool {
	whole := Frame(m.RequestID, m.ResponseTo, m.Opcode, m.Payload)
	if len(whole) < headerLen+8 {
		return false
	}
	return binary.LittleEndian.Uint32(whole[len(whole)-4:]) == crc32.Checksum(whole[:len(whole)-4], castagnoli)
}

// Flags are an OP_MSG's flags.
func (m Message) Flags() uint32 { return binary.LittleEndian.Uint32(m.Payload) }

// Body is the body of an OP_MSG that has its body first, or the document of an OP_REPLY.
func (m Message) Body() (bson.Raw, error) {
	skip := 5
	if m.Opcode == OpReply {
		skip = 20
	}
	if len(m.Payload) < skip+5 {
		return nil, fmt.Errorf("opcode %d with %d bytes has no body", m.Opcode, len(m.Payload))
	}
	n := int(binary.LittleEndian.Uint32(m.Payload[skip:]))
	if n < 5 || n > len(m.Payload)-skip {
		return nil, fmt.Errorf("a body of %d bytes in a payload of %d", n, len(m.Payload))
	}
	body := bson.Raw(m.Payload[skip : skip+n])
	return body, body.Validate()
}

// Send writes bytes as they are.
func (c *Conn) Send(b []byte) error {
	_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
	_, err := c.Write(b)
	return err
}

// ReadMessage reads the next message.
func (c *Conn) ReadMessage() (Message, error) {
	_ = c.SetReadDeadline(time.Now().Add(c.timeout))
	return ReadMessage(c.Conn)
}

// ReadMessage reads one message.
func ReadMessage(r io.Reader) (Message, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Message{}, err
	}
	at := func(i int) int32 { return int32(binary.LittleEndian.Uint32(h[i:])) }
	length := at(0)
	if length < headerLen || length > maxLen {
		return Message{}, fmt.Errorf("a message of %d bytes", length)
	}
	m := Message{RequestID: at(4), ResponseTo: at(8), Opcode: at(12), Payload: make([]byte, length-headerLen)}
	_, err := io.ReadFull(r, m.Payload)
	return m, err
}

// Run sends a command (with its "$db") as one OP_MSG and returns the reply's body, ok or not. The error is the connection's.
func (c *Conn) Run(cmd any) (bson.Raw, error) {
	return c.Exchange(c.NextID(), 0, Kind0(cmd))
}

// Exchange sends one OP_MSG and reads its reply.
func (c *Conn) Exchange(id int32, flags uint32, sections ...[]byte) (bson.Raw, error) {
	if err := c.Send(Msg(id, flags, sections...)); err != nil {
		return nil, err
	}
	m, err := c.ReadMessage()
	if err != nil {
		return nil, err
	}
	if m.ResponseTo != id {
		return nil, fmt.Errorf("a reply to %d, not to %d", m.ResponseTo, id)
	}
	return m.Body()
}

// OK reports whether a reply says ok: 1.
func OK(reply bson.Raw) bool {
	ok, _ := reply.Lookup("ok").AsInt64OK()
	return ok == 1
}

// Code is the code of a reply's top-level error; 0 where there is none.
func Code(reply bson.Raw) int {
	n, _ := reply.Lookup("code").AsInt64OK()
	return int(n)
}
