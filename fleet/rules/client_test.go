package rules_test

import (
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// limit is longer than anything here takes, on whatever machine.
const limit = time.Minute

// client is one connection to a server.
type client struct {
	t    *testing.T
	conn net.Conn
	from *wire.Reader
	id   int32
}

func dialServer(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, conn: conn, from: wire.NewReader(conn)}
}

func doc(t *testing.T, pairs ...any) bson.Raw {
	t.Helper()
	var d bson.D
	for i := 0; i < len(pairs); i += 2 {
		d = append(d, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// try sends a command and returns the reply, or the connection's error.
func (c *client) try(body bson.Raw, s ...wire.Sequence) (bson.Raw, error) {
	c.id++
	_ = c.conn.SetDeadline(time.Now().Add(limit))
	if _, err := c.conn.Write(wire.AppendMsg(nil, c.id, 0, 0, body, s...)); err != nil {
		return nil, err
	}
	m, err := c.from.ReadMessage()
	if err != nil {
		return nil, err
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil {
		return nil, err
	}
	return msg.Body, nil
}

func (c *client) send(body bson.Raw, s ...wire.Sequence) bson.Raw {
	c.t.Helper()
	reply, err := c.try(body, s...)
	if err != nil {
		c.t.Fatal(err)
	}
	return reply
}

func (c *client) run(pairs ...any) bson.Raw {
	c.t.Helper()
	return c.send(doc(c.t, pairs...))
}

// must runs a command that has to succeed.
func (c *client) must(pairs ...any) bson.Raw {
	c.t.Helper()
	reply := c.run(pairs...)
	if !wire.ReplyOK(reply) {
		c.t.Fatalf("%v: %v", pairs[0], reply)
	}
	return reply
}

// time is the server's time.
func (c *client) time() bson.Timestamp {
	c.t.Helper()
	t, i := c.must("ping", 1, "$db", "admin").Lookup("operationTime").Timestamp()
	return bson.Timestamp{T: t, I: i}
}
