package router

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/wire"
)

// crowdedEnv is a writeEnv over three scripted servers with one connection to each.
func crowdedEnv(t *testing.T) (*writeEnv, []*backendtest.Server) {
	t.Helper()
	uris := map[string]string{}
	var servers []*backendtest.Server
	for i := range 3 {
		s := backendtest.New(t)
		s.SetScript(writesDone)
		servers = append(servers, s)
		uris["b"+itoa(i)] = s.URI()
	}
	e := newWriteEnv(t, uris, func(c *backend.Config) { c.MaxConns = 1 })
	e.shard("c", "k", 5)
	e.knownBackends()
	return e, servers
}

// crowd is a find that is on its way to the backend of the key 5, so that what follows it shares its connection and is given away.
type crowd struct {
	e     *writeEnv
	ahead net.Conn
	// let lets the server answer it; done lets the server answer what follows.
	let, done func()
}

// crowd sends the find ahead. The servers answer all else by script.
func (e *writeEnv) crowd(servers []*backendtest.Server, script backendtest.Script) *crowd {
	e.t.Helper()
	arrived, let, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	q := &crowd{e: e, let: sync.OnceFunc(func() { close(let) }), done: sync.OnceFunc(func() { close(done) })}
	var once sync.Once
	for _, s := range servers {
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if c.Name == "find" && len(c.Body.Lookup("projection").Value) > 0 {
				once.Do(func() { close(arrived) })
				<-let
				return writesDone(c)
			}
			<-done
			return script(c)
		})
	}
	e.t.Cleanup(q.let)
	e.t.Cleanup(q.done)
	q.ahead = e.dial()
	e.write(q.ahead, wireMessage(e.t, findOf(e.db, "c", 5, bson.E{Key: "projection", Value: d("x", 1)})))
	waits.For(e.t, "the find ahead at its backend", arrived)
	return q
}

func (e *writeEnv) dial() net.Conn {
	e.t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

func (e *writeEnv) write(c net.Conn, m wire.Message) {
	e.t.Helper()
	if _, err := c.Write(m.Buf.B); err != nil {
		e.t.Fatal(err)
	}
}

// given sends a command that is to be given away, and a ping behind it, which is read only once it has been.
func (q *crowd) given(m wire.Message) net.Conn {
	q.e.t.Helper()
	ping := wireMessage(q.e.t, d("ping", 1, "$db", "admin"))
	in := &q.e.router.stats.bytesIn
	want := in.Load() + int64(len(m.Buf.B)+len(ping.Buf.B))
	c := q.e.dial()
	q.e.write(c, m)
	q.e.write(c, ping)
	waits.Until(q.e.t, "what a client sent behind a command that shares a connection is read: the command was given away",
		func() bool { return in.Load() >= want })
	return c
}

// read returns the next reply's body.
func (e *writeEnv) read(r *wire.Reader) bson.Raw {
	e.t.Helper()
	m, err := r.ReadMessage()
	if err != nil {
		e.t.Fatal(err)
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil || m.Header.ResponseTo != 7 {
		e.t.Fatal(m.Header, err)
	}
	return msg.Body
}

// answered reads the replies to what given sent: the command's first.
func (q *crowd) answered(c net.Conn) bson.Raw {
	q.e.t.Helper()
	r := wire.NewReader(c)
	body := q.e.read(r)
	if pong := q.e.read(r); len(pong) > 60 || pong.Lookup("ok").AsFloat64() != 1 {
		q.e.t.Fatalf("the reply to the ping is %v", pong)
	}
	return body
}

// What was given away is answered as it would have been by its own goroutine, whatever the backend says, and whoever reads that: the one whose request is ahead, or
// the connection's own goroutine.
func TestGivenIsAnsweredAlike(t *testing.T) {
	found := func(id int64) func(string) backendtest.Script {
		return func(string) backendtest.Script {
			return func(c backendtest.Command) backendtest.Answer {
				if c.Name != "find" {
					return backendtest.OK()
				}
				return backendtest.OK(bson.E{Key: "cursor", Value: d("firstBatch", bson.A{d("_id", 1)}, "id", id, "ns", c.DB+"."+c.Body.Lookup("find").StringValue())})
			}
		}
	}
	type test struct {
		name   string
		script func(string) backendtest.Script
		cmd    func(db string) bson.D
	}
	find := func(db string) bson.D { return findOf(db, "c", 5) }
	write := func(name string, more ...bson.E) func(string) bson.D {
		return func(db string) bson.D { return hotWrite(db, name, more...) }
	}
	tests := []test{
		{"find", found(0), find}, {"find, a cursor open", found(99), find}, {"find, an error", failingFinds(2), find}, {"find, not primary", failingFinds(10107), find},
	}
	for answer, script := range hotAnswers {
		tests = append(tests, test{"update, " + answer, script, write("update")}, test{"retryable update, " + answer, script, write("update", bson.E{Key: "txnNumber", Value: int64(3)})})
	}
	tests = append(tests, test{"insert", hotAnswers["done"], write("insert")}, test{"insert, a duplicate", hotAnswers["a duplicate"], write("insert")},
		test{"delete", hotAnswers["done"], write("delete")}, test{"insert, cut once", hotAnswers["cut once"], write("insert", bson.E{Key: "txnNumber", Value: int64(4)})})
	for _, tt := range tests {
		for _, pumped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, pumped %v", tt.name, pumped), func(t *testing.T) {
				t.Parallel()
				e, servers := crowdedEnv(t)
				for _, s := range servers {
					s.SetScript(tt.script(e.db))
				}
				m := wireMessage(t, tt.cmd(e.db))
				if !takes(e.router, m) {
					t.Fatal("the hot path does not take it")
				}
				want := e.observe(m, servers)

				q := e.crowd(servers, tt.script(e.db))
				for _, s := range servers {
					s.Forget()
				}
				c := q.given(wireMessage(t, tt.cmd(e.db)))
				q.let()
				if pumped { // who reads for it has gone by then
					e.read(wire.NewReader(q.ahead))
				}
				q.done()
				got := q.answered(c)
				if a, b := without(got, "cursor"), without(want.reply, "cursor"); !bytes.Equal(a, b) || batchOf(got) != batchOf(want.reply) {
					t.Errorf("answered %v, want %v", got, want.reply)
				}
				var sent []string
				for i, s := range servers {
					for _, c := range s.Received() {
						if c.Name == "find" || isWrite(c) {
							sent = append(sent, fmt.Sprintf("b%d flags %d %x", i, c.Flags, []byte(c.Body)))
						}
					}
				}
				for i := range want.sent {
					want.sent[i], _, _ = strings.Cut(want.sent[i], " documents ")
					want.sent[i], _, _ = strings.Cut(want.sent[i], " updates ")
					want.sent[i], _, _ = strings.Cut(want.sent[i], " deletes ")
				}
				slices.Sort(sent)
				if !slices.Equal(sent, want.sent) {
					t.Errorf("sent\n%s\nwant\n%s", strings.Join(sent, "\n"), strings.Join(want.sent, "\n"))
				}
			})
		}
	}
}

func failingFinds(code int32) func(string) backendtest.Script {
	return func(db string) backendtest.Script {
		return func(backendtest.Command) backendtest.Answer {
			return backendtest.Err(code, "Name", "no "+db+".c@1.0.1 here, not master", "Label")
		}
	}
}

// A client that sends many requests at once is answered in their order.
func TestGivenPipelined(t *testing.T) {
	e, servers := crowdedEnv(t)
	q := e.crowd(servers, writesDone)
	c := q.given(wireMessage(t, hotWrite(e.db, "update")))
	for range 20 {
		e.write(c, wireMessage(t, findOf(e.db, "c", 5)))
		e.write(c, wireMessage(t, hotWrite(e.db, "insert")))
	}
	q.let()
	q.done()
	r := wire.NewReader(c)
	fields := func() string {
		var s []string
		elems, _ := e.read(r).Elements()
		for _, el := range elems {
			s = append(s, el.Key())
		}
		return strings.Join(s, " ")
	}
	if got := fields(); got != "n nModified ok" {
		t.Errorf("the update: %s", got)
	}
	fields() // the ping
	for i := range 20 {
		if a, b := fields(), fields(); a != "cursor ok" || b != "n ok" {
			t.Fatalf("pair %d: %s, %s", i, a, b)
		}
	}
}

// A client that says it has nothing more to send still gets its reply.
func TestGivenHalfClosed(t *testing.T) {
	e, servers := crowdedEnv(t)
	q := e.crowd(servers, writesDone)
	c := q.given(wireMessage(t, findOf(e.db, "c", 5)))
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	q.let()
	q.done()
	q.answered(c)
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the replies: %d bytes, %v", n, err)
	}
}

// A proxy that goes answers what was given away before it closes the connection.
func TestGivenAndShutdown(t *testing.T) {
	e, servers := crowdedEnv(t)
	q := e.crowd(servers, writesDone)
	c := q.given(wireMessage(t, findOf(e.db, "c", 5)))
	gone := make(chan struct{})
	go func() { defer close(gone); e.router.Shutdown(e.ctx) }()
	for closing := false; !closing; time.Sleep(time.Millisecond) {
		e.router.mu.Lock()
		closing = e.router.closing
		e.router.mu.Unlock()
	}
	e.router.eachConn(func(c *Conn) { c.stopWhenIdle() }) // Shutdown may not have come to it yet
	q.let()
	q.done()
	r := wire.NewReader(c)
	if reply := e.read(r); reply.Lookup("ok").AsFloat64() != 1 {
		t.Errorf("answered %v", reply)
	}
	if _, err := r.ReadMessage(); err != io.EOF {
		t.Errorf("after the reply: %v", err)
	}
	<-gone
}

// killOp ends what was given away, and nothing beside it.
func TestGivenIsKilled(t *testing.T) {
	e, servers := crowdedEnv(t)
	q := e.crowd(servers, writesDone)
	c := q.given(wireMessage(t, hotWrite(e.db, "update")))
	var killed int
	e.router.eachConn(func(c *Conn) {
		c.mu.Lock()
		op := c.op
		c.mu.Unlock()
		if op != nil && op.Name == "update" {
			killed++
			c.interruptOp(op, wire.Errorf(wire.Interrupted, "operation was interrupted"))
		}
	})
	r := wire.NewReader(c)
	if err := wire.ErrorFromReply(e.read(r)); killed != 1 || err == nil || err.Code != wire.Interrupted {
		t.Errorf("%d killed: %v", killed, err)
	}
	e.read(r) // the ping: the connection goes on
	q.let()
	q.done()
	if reply := e.read(wire.NewReader(q.ahead)); reply.Lookup("ok").AsFloat64() != 1 {
		t.Errorf("what was ahead: %v", reply)
	}
	if reply := roundTrip(t, e.addr, findOf(e.db, "c", 5)); reply.Lookup("ok").AsFloat64() != 1 {
		t.Errorf("what comes after: %v", reply)
	}
}

// A client that does not read its replies holds up nobody with whom it shares a connection.
func TestGivenToASlowReader(t *testing.T) {
	e, servers := crowdedEnv(t)
	large := strings.Repeat("x", 12<<20)
	script := func(c backendtest.Command) backendtest.Answer {
		if c.Name == "find" {
			return backendtest.OK(bson.E{Key: "cursor", Value: d("firstBatch", bson.A{d("_id", 1, "pad", large)}, "id", int64(0), "ns", "x.y")})
		}
		return writesDone(c)
	}
	q := e.crowd(servers, script)
	slow := q.given(wireMessage(t, findOf(e.db, "c", 5)))
	other := q.given(wireMessage(t, hotWrite(e.db, "update")))
	q.let()
	q.done()
	if reply := q.answered(other); reply.Lookup("n").AsInt64() != 1 {
		t.Errorf("the other: %v", reply)
	}
	if reply := q.answered(slow); len(reply) < len(large) {
		t.Errorf("the slow one got %d bytes", len(reply))
	}
}

// A client that is gone when its reply comes ends its own connection only.
func TestGivenToNobody(t *testing.T) {
	e, servers := crowdedEnv(t)
	q := e.crowd(servers, writesDone)
	gone := q.given(wireMessage(t, hotWrite(e.db, "update")))
	other := q.given(wireMessage(t, findOf(e.db, "c", 5)))
	before := e.router.stats.connections.Load()
	_ = gone.(*net.TCPConn).SetLinger(0) // a reset, so that writing to it fails
	_ = gone.Close()
	q.let()
	q.done()
	if reply := q.answered(other); reply.Lookup("ok").AsFloat64() != 1 {
		t.Errorf("the other: %v", reply)
	}
	waits.Until(t, "the connection of a client that is gone ends", func() bool { return e.router.stats.connections.Load() < before })
}

// A client with no room for its large reply gets all of it when it reads, and holds up nobody who shares the connection.
func TestGivenToWhoDoesNotRead(t *testing.T) {
	e, servers := crowdedEnv(t)
	pad := strings.Repeat("0123456789abcdef", 12<<20/16)
	q := e.crowd(servers, func(c backendtest.Command) backendtest.Answer {
		if c.Name != "find" {
			return backendtest.OK()
		}
		doc := d("_id", 1)
		if _, large := c.Body.Lookup("filter").Document().LookupErr("large"); large == nil {
			doc = d("_id", 2, "pad", pad)
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: d("firstBatch", bson.A{doc}, "id", int64(0), "ns", c.DB+"."+c.Body.Lookup("find").StringValue())})
	})
	large := findOf(e.db, "c", 5)
	large[1].Value = d("k", 5, "large", 1)
	slow := []net.Conn{q.given(wireMessage(t, large)), q.given(wireMessage(t, large))}
	quick := []net.Conn{q.given(wireMessage(t, findOf(e.db, "c", 5))), q.given(wireMessage(t, findOf(e.db, "c", 5)))}
	q.let()
	q.done()
	for _, c := range quick { // while the others read nothing
		if body := q.answered(c); body.Lookup("cursor", "firstBatch", "0", "_id").AsInt64() != 1 {
			t.Errorf("a find behind large replies got %v", body)
		}
	}
	for _, c := range slow {
		if body := q.answered(c); body.Lookup("cursor", "firstBatch", "0", "pad").StringValue() != pad {
			t.Error("a large reply came otherwise than it was sent")
		}
	}
}

// What is shown of a request is its own, also when it ends and its memory goes to the next one meanwhile.
func TestCurrentOpBesideRequests(t *testing.T) {
	e, _ := crowdedEnv(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			m := wireMessage(t, findOf(e.db, "c", strings.Repeat(string(rune('a'+i)), 50+100*i)))
			c := e.dial()
			r := wire.NewReader(c)
			for range 200 {
				e.write(c, m)
				e.read(r)
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); wg.Wait() }()
	for shown := 0; ; {
		select {
		case <-done:
			if shown == 0 {
				t.Error("no find was seen")
			}
			return
		default:
		}
		ops, err := e.router.operations(e.ctx, nil, opsWanted{})
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range ops {
			if err := op.Validate(); err != nil {
				t.Fatalf("% x: %v", []byte(op), err)
			}
			key, ok := op.Lookup("command", "filter", "k").StringValueOK()
			if ok && (key == "" || strings.Trim(key, key[:1]) != "" || len(key) != 50+100*int(key[0]-'a')) {
				t.Fatalf("a find of somebody's is shown as %v", op)
			}
			if ok {
				shown++
			}
		}
	}
}
