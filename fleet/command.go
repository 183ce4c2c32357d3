package fleet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	opMsg       = 2013
	headerSize  = 16
	maxReplyLen = 48_000_000
)

// Command sends one command (with its "$db") to a server over a connection of its own and returns the reply. A
// driver's client would do as well, but starts monitors that outlive a killed server's test.
// The error is a [bson] or network error, or carries the server's own errmsg.
func Command(ctx context.Context, addr string, cmd bson.D) (bson.Raw, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	msg := make([]byte, headerSize+5, headerSize+5+len(body))
	binary.LittleEndian.PutUint32(msg[0:], uint32(headerSize+5+len(body)))
	binary.LittleEndian.PutUint32(msg[4:], 1)
	binary.LittleEndian.PutUint32(msg[12:], opMsg)
	if _, err := conn.Write(append(msg, body...)); err != nil {
		return nil, err
	}
	reply, err := readReply(conn)
	if err != nil {
		return nil, err
	}
	if ok, _ := reply.Lookup("ok").AsInt64OK(); ok != 1 {
		text, _ := reply.Lookup("errmsg").StringValueOK()
		return reply, fmt.Errorf("%s: %s", cmd[0].Key, text)
	}
	return reply, nil
}

func readReply(r io.Reader) (bson.Raw, error) {
	var head [headerSize + 5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint32(head[0:])
	if op := binary.LittleEndian.Uint32(head[12:]); op != opMsg || length < uint32(len(head))+5 || length > maxReplyLen {
		return nil, fmt.Errorf("not a reply: opcode %d, %d bytes", op, length)
	}
	doc := make(bson.Raw, length-uint32(len(head)))
	if _, err := io.ReadFull(r, doc); err != nil {
		return nil, err
	}
	return doc, doc.Validate()
}
