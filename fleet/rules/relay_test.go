package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// limit is longer than anything here takes, on whatever machine.
const limit = 30 * time.Second

// relayTo starts a relay with hooks in front of an address.
func relayTo(t *testing.T, target string, hooks ...Hook) *Relay {
	t.Helper()
	k, err := New(Options{Target: func() string { return target }, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// scripted starts a server that answers {echo: NAME} and a relay with hooks in front of it.
func scripted(t *testing.T, hooks ...Hook) (*backendtest.Server, *Relay) {
	t.Helper()
	s := backendtest.New(t)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		return backendtest.OK(bson.E{Key: "echo", Value: c.Name})
	})
	return s, relayTo(t, s.Addr(), hooks...)
}

type client struct {
	t    *testing.T
	conn net.Conn
	from *wire.Reader
	id   int32
}

func dial(t *testing.T, addr string) *client {
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

func (c *client) send(flags wire.Flags, body bson.Raw, s ...wire.Sequence) {
	c.t.Helper()
	c.id++
	if _, err := c.conn.Write(wire.AppendMsg(nil, c.id, 0, flags, body, s...)); err != nil {
		c.t.Fatal(err)
	}
}

// receive reads a reply; it points into memory of its own.
func (c *client) receive() (bson.Raw, wire.Header, wire.Flags, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(limit))
	m, err := c.from.ReadMessage()
	if err != nil {
		return nil, wire.Header{}, 0, err
	}
	h := m.Header
	if h.OpCode == wire.OpCompressed {
		if m, _, err = wire.Decompress(m); err != nil {
			return nil, h, 0, err
		}
	}
	body, flags, err := replyBody(m)
	return append(bson.Raw(nil), body...), h, flags, err
}

func (c *client) run(body bson.Raw, s ...wire.Sequence) bson.Raw {
	c.t.Helper()
	c.send(0, body, s...)
	reply, h, _, err := c.receive()
	if err != nil {
		c.t.Fatal(err)
	}
	if h.ResponseTo != c.id {
		c.t.Fatalf("a reply to %d, want one to %d", h.ResponseTo, c.id)
	}
	return reply
}

func echo(reply bson.Raw) string {
	s, _ := reply.Lookup("echo").StringValueOK()
	return s
}

func TestPassesSequencesAndOrder(t *testing.T) {
	s, k := scripted(t)
	c := dial(t, k.Addr())
	docs := append(append([]byte(nil), doc(t, "_id", 1)...), doc(t, "_id", 2)...)
	c.send(wire.ChecksumPresent, doc(t, "insert", "c", "$db", "d"), wire.Sequence{Identifier: "documents", Docs: docs})
	for i := range 5 {
		c.send(0, doc(t, fmt.Sprint("ping", i), 1, "$db", "admin"))
	}
	for i := range 6 {
		reply, h, _, err := c.receive()
		if err != nil || h.ResponseTo != int32(i+1) {
			t.Fatalf("reply %d: %v to %d, %v", i, reply, h.ResponseTo, err)
		}
	}
	if got := s.Received()[0].Docs("documents"); len(got) != 2 {
		t.Errorf("%d documents arrived, want 2", len(got))
	}
}

func TestHooksAnswerChangeAndEdit(t *testing.T) {
	var seen []string
	record := func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		name := r.Name
		return nil, func(reply bson.Raw) bson.Raw { seen = append(seen, name+"="+echo(reply)); return reply }
	}
	answer := func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if r.Is("MINE") {
			return doc(t, "echo", "own", "ok", 1), nil
		}
		return nil, nil
	}
	change := func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if !r.Is("find") {
			return nil, nil
		}
		extra, err := r.Ask(doc(t, "extra", 1, "$db", "admin"))
		if err != nil {
			t.Error(err)
		}
		r.SetBody(doc(t, "count", "c", "$db", "d"))
		return nil, func(reply bson.Raw) bson.Raw {
			return doc(t, "echo", echo(extra)+"+"+echo(reply), "ok", 1)
		}
	}
	s, k := scripted(t, record, answer, change)
	c := dial(t, k.Addr())
	for _, want := range []struct{ name, reply string }{{"mine", "own"}, {"find", "extra+count"}, {"ping", "ping"}} {
		if got := echo(c.run(doc(t, want.name, 1, "$db", "d"))); got != want.reply {
			t.Errorf("%s was answered %q, want %q", want.name, got, want.reply)
		}
	}
	if got := fmt.Sprint(seen); got != "[mine=own find=extra+count ping=ping]" {
		t.Errorf("the first hook saw %s", got)
	}
	if n := len(s.Received()); n != 3 {
		t.Errorf("the server received %d commands, want 3", n)
	}
}

func TestCompressedRequests(t *testing.T) {
	_, k := scripted(t)
	c := dial(t, k.Addr())
	msg := wire.AppendMsg(nil, 9, 0, 0, doc(t, "ping", 1, "$db", "admin"))
	if _, err := c.conn.Write(wire.AppendCompressed(nil, msg, wire.Zlib)); err != nil {
		t.Fatal(err)
	}
	reply, h, _, err := c.receive()
	if err != nil || h.OpCode != wire.OpCompressed || echo(reply) != "ping" {
		t.Fatalf("got %v by operation %d, %v", reply, h.OpCode, err)
	}
}

func TestOldHandshake(t *testing.T) {
	s, k := scripted(t, func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if !r.Is("ismaster") || r.DB != "admin" {
			t.Errorf("the hook sees %q of %q", r.Name, r.DB)
		}
		return nil, func(reply bson.Raw) bson.Raw { return doc(t, "edited", true, "ok", 1) }
	})
	s.SetHello(backendtest.ReplicaSet("rs"))
	c := dial(t, k.Addr())
	if _, err := c.conn.Write(appendQuery(nil, 3, "admin", doc(t, "isMaster", 1))); err != nil {
		t.Fatal(err)
	}
	reply, h, _, err := c.receive()
	if err != nil || h.OpCode != wire.OpReply || h.ResponseTo != 3 || !reply.Lookup("edited").Boolean() {
		t.Fatalf("got %v by operation %d, %v", reply, h.OpCode, err)
	}
}

// streaming is a server that answers each request with three replies, the last without moreToCome.
func streaming(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		from := wire.NewReader(conn)
		for {
			m, err := from.ReadMessage()
			if err != nil {
				return
			}
			for i := range 3 {
				body, _ := bson.Marshal(bson.D{{Key: "n", Value: int32(i)}, {Key: "ok", Value: 1}})
				flags := wire.MoreToCome
				if i == 2 {
					flags = 0
				}
				if _, err := conn.Write(wire.AppendMsg(nil, int32(100+i), m.Header.RequestID, flags, body)); err != nil {
					return
				}
			}
			m.Release()
		}
	}()
	return l.Addr().String()
}

func TestStreamsOfReplies(t *testing.T) {
	k := relayTo(t, streaming(t), func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if !r.Streams() {
			t.Error("the hook does not see that the client takes a stream")
		}
		return nil, func(reply bson.Raw) bson.Raw {
			return doc(t, "edited", reply.Lookup("n").AsInt64(), "ok", 1)
		}
	})
	c := dial(t, k.Addr())
	for round := range 2 {
		c.send(wire.ExhaustAllowed, doc(t, "hello", 1, "$db", "admin"))
		for i := range 3 {
			reply, _, flags, err := c.receive()
			if err != nil || reply.Lookup("edited").AsInt64() != int64(i) || (flags&wire.MoreToCome == 0) != (i == 2) {
				t.Fatalf("round %d, reply %d: %v, flags %d, %v", round, i, reply, flags, err)
			}
		}
	}
}

func TestNoReplyWhereNoneIsWanted(t *testing.T) {
	_, k := scripted(t, func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if r.Is("silent") {
			return doc(t, "ok", 1), nil
		}
		return nil, nil
	})
	c := dial(t, k.Addr())
	c.send(wire.MoreToCome, doc(t, "silent", 1, "$db", "d"))
	if got := echo(c.run(doc(t, "ping", 1, "$db", "d"))); got != "ping" {
		t.Errorf("the first reply is to %q, want ping", got)
	}
}

func gone(err error) bool { return err != nil && !errors.Is(err, os.ErrDeadlineExceeded) }

func TestDownThenUp(t *testing.T) {
	_, k := scripted(t)
	c := dial(t, k.Addr())
	c.run(doc(t, "ping", 1, "$db", "d"))
	k.Down()
	if _, _, _, err := c.receive(); !gone(err) {
		t.Errorf("a connection lives on: %v", err)
	}
	if late, err := net.Dial("tcp", k.Addr()); err == nil { // the reset may come before the dial returns
		defer late.Close()
		late.SetReadDeadline(time.Now().Add(limit))
		if _, err := late.Read(make([]byte, 1)); !gone(err) {
			t.Errorf("a connection that was made while the relay is down: %v", err)
		}
	}
	k.Up()
	dial(t, k.Addr()).run(doc(t, "ping", 1, "$db", "d"))
}

func TestHoldThenRelease(t *testing.T) {
	_, k := scripted(t)
	c := dial(t, k.Addr())
	c.run(doc(t, "ping", 1, "$db", "d"))
	k.Hold()
	c.send(0, doc(t, "ping", 1, "$db", "d"))
	_ = c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a held relay answers: %v", err)
	}
	k.Release()
	if _, _, _, err := c.receive(); err != nil {
		t.Error(err)
	}
}

func TestTheServersEndIsTheClients(t *testing.T) {
	s, k := scripted(t)
	c := dial(t, k.Addr())
	c.run(doc(t, "ping", 1, "$db", "d"))
	s.Stop()
	c.send(0, doc(t, "ping", 1, "$db", "d"))
	if _, _, _, err := c.receive(); !gone(err) {
		t.Errorf("the connection lives on: %v", err)
	}
}

func TestAnOutcomeIsLearntAfterTheClientHasGone(t *testing.T) {
	answered := make(chan string, 1)
	s, k := scripted(t, func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		if !r.Finish(nil) {
			t.Error("the client has gone too early")
		}
		return nil, func(reply bson.Raw) bson.Raw { answered <- echo(reply); return reply }
	})
	asked, goOn := make(chan struct{}), make(chan struct{})
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		close(asked)
		<-goOn
		return backendtest.OK(bson.E{Key: "echo", Value: c.Name})
	})
	c := dial(t, k.Addr())
	c.send(0, doc(t, "insert", "c", "$db", "d"))
	<-asked
	k.Cut()
	if _, err := c.conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the connection was not reset: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := k.Settle(short); err == nil {
		t.Error("the relay has settled while a request was on its way")
	}
	close(goOn)
	if got := <-answered; got != "insert" {
		t.Errorf("learnt %q", got)
	}
	if err := k.Settle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCloseWhileTheServerIsSilent(t *testing.T) {
	s, k := scripted(t, func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) { r.Finish(nil); return nil, nil })
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	dial(t, k.Addr()).send(0, doc(t, "insert", "c", "$db", "d"))
	done := make(chan struct{})
	go func() { k.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatal("Close does not return")
	}
}
