package backendtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

var errBadMessage = errors.New("a message no server would take")

// Command is one command as a Server received it.
type Command struct {
	// Name is the first field's name, DB is $db.
	Name, DB string
	// Body is the body document.
	Body bson.Raw
	// Sequences has the documents of kind 1 sections by identifier.
	Sequences map[string][]bson.Raw
	// Flags are the OP_MSG flag bits.
	Flags uint32
	// Message is the whole message, byte for byte.
	Message []byte
	// Conn numbers the connection it came on, from 1.
	Conn int

	opcode int32
}

// Docs returns the documents given under name, as a sequence or as an array in the body.
func (c Command) Docs(name string) []bson.Raw {
	if docs, ok := c.Sequences[name]; ok {
		return docs
	}
	a, ok := c.Body.Lookup(name).ArrayOK()
	if !ok {
		return nil
	}
	values, err := a.Values()
	if err != nil {
		return nil
	}
	var docs []bson.Raw
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok {
			docs = append(docs, d)
		}
	}
	return docs
}

// RequestID is the message's.
func (c Command) RequestID() int32 { return int32(binary.LittleEndian.Uint32(c.Message[4:])) }

func (c Command) isHello() bool {
	return strings.EqualFold(c.Name, "hello") || strings.EqualFold(c.Name, "ismaster")
}

// asksWho reports whether the command asks only who is logged in.
func (c Command) asksWho() bool {
	return c.Name == "connectionStatus" && c.Body.Lookup("showPrivileges").Type == 0
}

func readMessage(nc net.Conn) ([]byte, error) {
	var head [16]byte
	if _, err := io.ReadFull(nc, head[:]); err != nil {
		return nil, err
	}
	size := int32(binary.LittleEndian.Uint32(head[:]))
	if size < 16 || size > 48_000_000 {
		return nil, fmt.Errorf("%w: length %d", errBadMessage, size)
	}
	msg := make([]byte, size)
	copy(msg, head[:])
	_, err := io.ReadFull(nc, msg[16:])
	return msg, err
}

// parse takes a message apart and checks it as strictly as a server does.
func parse(msg []byte) (Command, error) {
	cmd := Command{Message: msg, opcode: int32(binary.LittleEndian.Uint32(msg[12:]))}
	var err error
	switch cmd.opcode {
	case opQuery:
		err = cmd.parseQuery(msg[16:])
	case opMsg:
		err = cmd.parseMsg(msg[16:])
	default:
		err = fmt.Errorf("%w: opcode %d", errBadMessage, cmd.opcode)
	}
	if err != nil {
		return cmd, err
	}
	elems, err := cmd.Body.Elements()
	if err != nil || len(elems) == 0 {
		return cmd, fmt.Errorf("%w: its body: %v", errBadMessage, err)
	}
	cmd.Name = elems[0].Key()
	cmd.DB, _ = cmd.Body.Lookup("$db").StringValueOK()
	return cmd, nil
}

func (c *Command) parseQuery(b []byte) error {
	if len(b) < 5 {
		return fmt.Errorf("%w: a short OP_QUERY", errBadMessage)
	}
	_, rest, ok := strings.Cut(string(b[4:]), "\x00") // flags, full collection name
	if !ok || len(rest) < 13 {
		return fmt.Errorf("%w: a short OP_QUERY", errBadMessage)
	}
	doc, _, err := document([]byte(rest[8:])) // skip, limit
	c.Body = doc
	return err
}

func (c *Command) parseMsg(b []byte) error {
	if len(b) < 5 {
		return fmt.Errorf("%w: a short OP_MSG", errBadMessage)
	}
	c.Flags = binary.LittleEndian.Uint32(b)
	b = b[4:]
	if c.Flags&1 != 0 {
		b = b[:len(b)-4]
	}
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		var err error
		switch {
		case kind == 0 && c.Body == nil:
			c.Body, b, err = document(b)
		case kind == 1:
			b, err = c.sequence(b)
		default:
			err = fmt.Errorf("%w: a section of kind %d", errBadMessage, kind)
		}
		if err != nil {
			return err
		}
	}
	if c.Body == nil {
		return fmt.Errorf("%w: no body", errBadMessage)
	}
	return nil
}

func (c *Command) sequence(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: a short sequence", errBadMessage)
	}
	size := int(int32(binary.LittleEndian.Uint32(b)))
	if size < 5 || size > len(b) {
		return nil, fmt.Errorf("%w: a sequence of %d bytes in %d", errBadMessage, size, len(b))
	}
	name, docs, ok := strings.Cut(string(b[4:size]), "\x00")
	if !ok {
		return nil, fmt.Errorf("%w: a sequence without a name", errBadMessage)
	}
	if c.Sequences == nil {
		c.Sequences = map[string][]bson.Raw{}
	}
	if _, twice := c.Sequences[name]; twice {
		return nil, fmt.Errorf("%w: the sequence %s twice", errBadMessage, name)
	}
	all := []bson.Raw{}
	for rest := []byte(docs); len(rest) > 0; {
		var d bson.Raw
		var err error
		if d, rest, err = document(rest); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	c.Sequences[name] = all
	return b[size:], nil
}

func document(b []byte) (bson.Raw, []byte, error) {
	if len(b) < 5 {
		return nil, nil, fmt.Errorf("%w: a short document", errBadMessage)
	}
	size := int(int32(binary.LittleEndian.Uint32(b)))
	if size < 5 || size > len(b) {
		return nil, nil, fmt.Errorf("%w: a document of %d bytes in %d", errBadMessage, size, len(b))
	}
	doc := bson.Raw(b[:size])
	if err := doc.Validate(); err != nil {
		return nil, nil, fmt.Errorf("%w: %v", errBadMessage, err)
	}
	return doc, b[size:], nil
}

func encode(body any) []byte {
	if raw, ok := body.(bson.Raw); ok {
		return raw
	}
	b, err := bson.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("backendtest: a script's answer does not marshal: %v", err))
	}
	return b
}

// ReplyTo makes a whole OP_MSG answering cmd, for scripts that want to spoil one.
func ReplyTo(cmd Command, body any) []byte { return reply(cmd, encode(body)) }

func reply(cmd Command, body []byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, 16, 64+len(body))
	le.PutUint32(b[8:], uint32(cmd.RequestID()))
	if cmd.opcode == opQuery {
		le.PutUint32(b[12:], opReply)
		b = le.AppendUint32(b, 8)
		b = le.AppendUint64(b, 0)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint32(b, 1)
	} else {
		le.PutUint32(b[12:], opMsg)
		b = le.AppendUint32(b, 0)
		b = append(b, 0)
	}
	b = append(b, body...)
	le.PutUint32(b, uint32(len(b)))
	return b
}

func write(nc net.Conn, cmd Command, body []byte) bool {
	if cmd.Flags&2 != 0 {
		return true // moreToCome: nothing is to be answered
	}
	_, err := nc.Write(reply(cmd, body))
	return err == nil
}
