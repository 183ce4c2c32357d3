package rules

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// readAhead is how many requests of a connection are read before the first has been answered.
const readAhead = 16

// opReplyHead is what stands before the document of an OP_REPLY.
const opReplyHead = wire.HeaderLen + 20

// Conn is a client's connection and the server's that belongs to it.
type Conn struct {
	relay                  *Relay
	client, server         net.Conn
	fromClient, fromServer *wire.Reader
	ctx                    context.Context // ends when the client has gone
	cancel                 context.CancelFunc

	values map[any]any // hooks' own; requests of a connection come one after the other

	mu        sync.Mutex // guards what follows
	gone      bool       // the client has gone
	finishing bool       // the server's answer is wanted even then
}

// Value returns what a hook has kept with the connection.
func (c *Conn) Value(key any) any { return c.values[key] }

// SetValue keeps something of a hook's with the connection.
func (c *Conn) SetValue(key, value any) {
	if c.values == nil {
		c.values = map[any]any{}
	}
	c.values[key] = value
}

// serve deals with the client's requests until one of the two sides has gone.
func (c *Conn) serve() {
	incoming := make(chan wire.Message, readAhead)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(incoming)
		defer c.clientGone()
		defer c.fromClient.Release()
		for {
			m, err := c.fromClient.ReadMessage()
			if err != nil {
				return
			}
			select {
			case incoming <- m:
			case <-stop:
				m.Release()
				return
			}
		}
	})
	for m := range incoming {
		if !c.relay.flows(c.ctx) || !c.handle(m) {
			m.Release()
			break
		}
		m.Release()
	}
	close(stop)
	reset(c.client)
	for m := range incoming {
		m.Release()
	}
	reader.Wait()
	c.fromServer.Release()
}

// clientGone gives up what the client waits for, but for a write whose outcome has to be learnt.
func (c *Conn) clientGone() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	if !c.finishing {
		reset(c.server)
	}
}

// beginFinish reports whether the request may begin; see Request.Finish.
func (c *Conn) beginFinish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.finishing = true
	return true
}

func (c *Conn) endFinish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finishing = false
	if c.gone {
		reset(c.server)
	}
}

// handle deals with one request; false when the connection is to be closed.
func (c *Conn) handle(m wire.Message) bool {
	r, err := c.parse(m)
	if r == nil {
		return err == nil && c.passThrough(m)
	}
	defer r.release()
	for _, hook := range c.relay.options.Hooks {
		reply, edit := hook(r)
		if edit != nil {
			r.edits = append(r.edits, edit)
		}
		if r.cut {
			return false
		}
		if reply != nil {
			return c.answer(r, reply)
		}
	}
	return c.forward(r, m)
}

// passThrough gives the server what is no command; it is the server's to refuse.
func (c *Conn) passThrough(m wire.Message) bool {
	if _, err := c.server.Write(m.Buf.B); err != nil {
		return false
	}
	reply, err := c.fromServer.ReadMessage()
	if err != nil {
		return false
	}
	defer reply.Release()
	return c.send(reply.Buf.B)
}

// forward sends a request to the server and brings its replies, as many as there are.
func (c *Conn) forward(r *Request, m wire.Message) bool {
	msg := m.Buf.B
	if r.changed {
		msg = r.encode(nil, m.Header.RequestID)
	}
	if _, err := c.server.Write(msg); err != nil {
		return false
	}
	if r.flags&wire.MoreToCome != 0 {
		return true
	}
	for {
		reply, err := c.fromServer.ReadMessage()
		if err != nil {
			return false
		}
		more, ok := c.deliver(r, reply)
		reply.Release()
		if !ok || !more {
			return ok
		}
	}
}

// deliver passes one reply on; more reports that the server streams another.
func (c *Conn) deliver(r *Request, reply wire.Message) (more, ok bool) {
	body, flags, err := replyBody(reply)
	if err != nil {
		return false, false
	}
	more = flags&wire.MoreToCome != 0
	edited := r.edit(body)
	if r.cut {
		return false, false
	}
	r.settle()
	if !r.compressed() && (len(edited) == len(body) && len(body) > 0 && &edited[0] == &body[0]) {
		return more, c.send(reply.Buf.B)
	}
	return more, c.send(r.encodeReply(edited, reply.Header, flags&^wire.ChecksumPresent))
}

// answer sends a hook's own reply.
func (c *Conn) answer(r *Request, reply bson.Raw) bool {
	reply = r.edit(reply)
	if r.cut {
		return false
	}
	r.settle()
	if r.flags&wire.MoreToCome != 0 {
		return true
	}
	return c.send(r.encodeReply(reply, wire.Header{RequestID: r.id, ResponseTo: r.id}, 0))
}

// send writes to the client, when the relay is not held.
func (c *Conn) send(msg []byte) bool {
	if !c.relay.flows(c.ctx) {
		return false
	}
	_, err := c.client.Write(msg)
	return err == nil
}

// ask runs a command of the relay's own on the server's side of the connection.
func (c *Conn) ask(msg []byte) (bson.Raw, error) {
	if _, err := c.server.Write(msg); err != nil {
		return nil, err
	}
	reply, err := c.fromServer.ReadMessage()
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	body, flags, err := replyBody(reply)
	if err != nil {
		return nil, err
	}
	if flags&wire.MoreToCome != 0 {
		return nil, errors.New("the server streams where nobody asked for it")
	}
	return append(bson.Raw(nil), body...), nil
}

// replyBody is the document of a reply, in place.
func replyBody(m wire.Message) (bson.Raw, wire.Flags, error) {
	switch m.Header.OpCode {
	case wire.OpReply:
		if len(m.Buf.B) < opReplyHead+5 {
			return nil, 0, fmt.Errorf("an OP_REPLY of %d bytes", len(m.Buf.B))
		}
		doc := m.Buf.B[opReplyHead:]
		if n := binary.LittleEndian.Uint32(doc); int(n) != len(doc) {
			return nil, 0, errors.New("an OP_REPLY with more than one document")
		}
		return doc, 0, nil
	case wire.OpMsg:
		var msg wire.Msg
		if err := wire.ParseMsg(m, &msg); err != nil {
			return nil, 0, err
		}
		return msg.Body, msg.Flags, nil
	}
	return nil, 0, fmt.Errorf("a reply with operation %d", m.Header.OpCode)
}
