package router

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// lone is a router without backends, for what it answers by itself.
type lone struct {
	t    *testing.T
	r    *Router
	addr string
	stop func() // shuts down, once
	// entered gets a value whenever the command testWait begins, and ended what ended it.
	entered chan struct{}
	ended   chan error
}

func newLone(t *testing.T) *lone {
	t.Helper()
	table := partition.NewTable()
	table.Apply(&catalog.Snapshot{Maps: map[string]*catalog.Map{}, Databases: map[string]*catalog.Database{}})
	e := &lone{t: t, entered: make(chan struct{}, 10), ended: make(chan error, 10)}
	e.r = New(Config{Backends: &backend.Set{}, Table: table, Log: zerolog.Nop(), RecentLog: &RecentLog{}})
	e.r.commands["testWait"] = &Command{Name: "testWait", Run: func(ctx context.Context, _ *Request) (Reply, error) {
		e.entered <- struct{}{}
		<-ctx.Done()
		e.ended <- context.Cause(ctx)
		return Reply{}, ctx.Err()
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.addr = l.Addr().String()
	served := make(chan struct{})
	go func() { defer close(served); _ = e.r.Serve(context.Background(), l) }()
	e.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		e.r.Shutdown(ctx)
		<-served
	})
	t.Cleanup(e.stop)
	return e
}

// peer is a client that speaks the protocol by hand.
type peer struct {
	t  *testing.T
	nc net.Conn
	r  *wire.Reader
	id int32
}

func (e *lone) dial() *peer {
	e.t.Helper()
	nc, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &peer{t: e.t, nc: nc, r: wire.NewReader(nc)}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.nc.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// msg is a whole OP_MSG of a command on a database.
func (p *peer) msg(flags wire.Flags, cmd bson.D) []byte {
	p.t.Helper()
	if _, has := find(cmd, "$db"); !has {
		cmd = append(cmd[:len(cmd):len(cmd)], bson.E{Key: "$db", Value: "admin"})
	}
	body, err := bson.Marshal(cmd)
	if err != nil {
		p.t.Fatal(err)
	}
	p.id++
	return wire.AppendMsg(nil, p.id, 0, flags, body)
}

func find(d bson.D, key string) (any, bool) {
	for _, e := range d {
		if e.Key == key {
			return e.Value, true
		}
	}
	return nil, false
}

// receive reads one reply: its header, flags and document, the last two of an OP_MSG only.
func (p *peer) receive() (wire.Header, wire.Flags, bson.Raw) {
	p.t.Helper()
	m, err := p.r.ReadMessage()
	if err != nil {
		p.t.Fatalf("instead of a reply: %v", err)
	}
	if m.Header.OpCode == wire.OpReply {
		return m.Header, wire.Flags(binary.LittleEndian.Uint32(m.Payload())), bson.Raw(m.Payload()[20:])
	}
	var msg wire.Msg
	if m.Header.OpCode == wire.OpMsg {
		if err := wire.ParseMsg(m, &msg); err != nil {
			p.t.Fatal(err)
		}
	}
	return m.Header, msg.Flags, msg.Body
}

func (p *peer) run(cmd bson.D) bson.Raw {
	p.t.Helper()
	p.send(p.msg(0, cmd))
	h, _, body := p.receive()
	if h.ResponseTo != p.id {
		p.t.Fatalf("a reply to %d, want one to %d", h.ResponseTo, p.id)
	}
	return body
}

// ok runs a command that must succeed.
func (p *peer) ok(cmd bson.D) bson.Raw {
	p.t.Helper()
	body := p.run(cmd)
	if e := wire.ErrorFromReply(body); e != nil {
		p.t.Fatalf("%v: %v", cmd, e)
	}
	return body
}

// fails runs a command that must fail with a code.
func (p *peer) fails(cmd bson.D, code wire.Code) {
	p.t.Helper()
	if got := codeIn(p.run(cmd)); got != code {
		p.t.Errorf("%v: code %d, want %d", cmd, got, code)
	}
}

func codeIn(body bson.Raw) wire.Code {
	if e := wire.ErrorFromReply(body); e != nil {
		return e.Code
	}
	return 0
}

// closed demands that the router has closed the connection without a word.
func (p *peer) closed(what string) {
	p.t.Helper()
	if m, err := p.r.ReadMessage(); err == nil {
		p.t.Errorf("%s: got an answer of %d bytes, want the connection closed", what, len(m.Buf.B))
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		p.t.Errorf("%s: the connection stays open", what)
	}
}

func ping() bson.D { return bson.D{{Key: "ping", Value: 1}} }

func TestChecksums(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	p.send(p.msg(wire.ChecksumPresent, ping()))
	m, err := p.r.ReadMessage()
	if err != nil {
		t.Fatal(err)
	}
	b := m.Buf.B
	sum := crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli))
	if b[16]&1 == 0 || binary.LittleEndian.Uint32(b[len(b)-4:]) != sum {
		t.Error("the reply to a request with a checksum has none, or a wrong one")
	}
	p.send(p.msg(0, ping()))
	if _, flags, _ := p.receive(); flags != 0 {
		t.Errorf("the reply to a request without a checksum has flags %#x", flags)
	}
	bad := p.msg(wire.ChecksumPresent, ping())
	bad[len(bad)-1] ^= 1
	p.send(bad)
	p.closed("a wrong checksum")
}

func TestMalformedMessagesKeepTheConnection(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	body, _ := bson.Marshal(append(ping(), bson.E{Key: "$db", Value: "admin"}))
	send := func(sections ...[]byte) {
		b := make([]byte, wire.HeaderLen)
		p.id++
		wire.PutHeader(b, wire.Header{RequestID: p.id, OpCode: wire.OpMsg})
		b = append(b, 0, 0, 0, 0)
		for _, s := range sections {
			b = append(b, s...)
		}
		p.send(wire.Seal(b, 0))
	}
	kind0 := append([]byte{0}, body...)
	sequence := append([]byte{1, 4 + 4, 0, 0, 0}, "abc\x00"...)
	for _, tt := range []struct {
		name     string
		sections [][]byte
		code     wire.Code
	}{
		{"sequence first", [][]byte{sequence, kind0}, 0},
		{"two bodies", [][]byte{kind0, kind0}, 40430},
		{"no body", [][]byte{sequence}, 40587},
		{"kind 2", [][]byte{{2}, kind0}, wire.Unauthorized},
		{"kind 9", [][]byte{kind0, {9}}, 40432},
	} {
		send(tt.sections...)
		if _, _, got := p.receive(); codeIn(got) != tt.code {
			t.Errorf("%s: %v, want code %d", tt.name, got, tt.code)
		}
	}
	sequence[1]++ // overruns the message
	send(kind0, sequence)
	p.closed("a sequence that overruns its message")
	p = e.dial()
	send(kind0, sequence[:0], []byte{1, 8, 0, 0, 0, 'a', 0, 0}) // no document in the two bytes
	p.closed("a sequence with half a document")
}

func TestUnacknowledgedGetsNoReply(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	var all []byte
	for range 1000 {
		all = append(all, p.msg(wire.MoreToCome, bson.D{{Key: "noSuchCommand", Value: 1}})...)
	}
	all = append(all, p.msg(wire.MoreToCome, ping())...)
	p.send(append(all, p.msg(0, ping())...))
	if h, _, body := p.receive(); h.ResponseTo != p.id || codeIn(body) != 0 {
		t.Errorf("the first reply answers %d, want the ping %d: %v", h.ResponseTo, p.id, body)
	}
	if got := e.r.stats.swallowed.Load(); got != 1000 {
		t.Errorf("%d failures counted, want 1000", got)
	}
}

func TestCompression(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	hello := p.ok(bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"zstd", "lz4", "snappy", "zlib"}}})
	var names struct{ Compression []string }
	if err := bson.Unmarshal(hello, &names); err != nil || len(names.Compression) != 3 || names.Compression[0] != "zstd" || names.Compression[2] != "zlib" {
		t.Errorf("negotiated %q, %v", names.Compression, err)
	}
	if _, err := p.ok(bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"lz4"}}}).LookupErr("compression"); err == nil {
		t.Error("compression is offered that was not asked for")
	}
	for _, c := range []wire.Compressor{wire.Snappy, wire.Zlib, wire.Zstd} {
		for _, cmd := range []bson.D{ping(), {{Key: "hello", Value: 1}}} {
			p.send(wire.AppendCompressed(nil, p.msg(wire.ChecksumPresent, cmd), c))
			m, err := p.r.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			inner, how, err := wire.Decompress(m)
			var msg wire.Msg
			if err != nil || how != c || wire.ParseMsg(inner, &msg) != nil || codeIn(msg.Body) != 0 || inner.Header.ResponseTo != p.id {
				t.Errorf("compressor %d, %v: %v, answered with %d: %v", c, cmd, err, how, msg.Body)
			}
		}
	}
	whole := p.msg(0, ping())
	noop := make([]byte, wire.HeaderLen, 64)
	wire.PutHeader(noop, wire.Header{MessageLength: int32(len(whole) + 9), RequestID: p.id, OpCode: wire.OpCompressed})
	noop = binary.LittleEndian.AppendUint32(noop, uint32(wire.OpMsg))
	noop = binary.LittleEndian.AppendUint32(noop, uint32(len(whole)-wire.HeaderLen))
	noop = append(append(noop, 0), whole[wire.HeaderLen:]...)
	p.send(noop)
	if h, _, body := p.receive(); h.OpCode != wire.OpMsg || codeIn(body) != 0 {
		t.Errorf("noop: answered with opcode %d: %v", h.OpCode, body)
	}
	p.ok(ping()) // not compressed, and so the reply
	for name, spoil := range map[string]func([]byte){
		"size too small":     func(b []byte) { b[20]-- },
		"2 GB":               func(b []byte) { copy(b[20:], []byte{0xff, 0xff, 0xff, 0x7f}) },
		"nested":             func(b []byte) { binary.LittleEndian.PutUint32(b[16:], uint32(wire.OpCompressed)) },
		"unknown compressor": func(b []byte) { b[24] = 7 },
		"garbage":            func(b []byte) { copy(b[25:], "garbage") },
	} {
		p := e.dial()
		b := wire.AppendCompressed(nil, p.msg(0, ping()), wire.Snappy)
		spoil(b)
		p.send(b)
		p.closed(name)
	}
}

func query(id int32, ns string, cmd bson.D) []byte {
	body, _ := bson.Marshal(cmd)
	b := make([]byte, wire.HeaderLen)
	wire.PutHeader(b, wire.Header{RequestID: id, OpCode: wire.OpQuery})
	b = append(b, 0, 0, 0, 0)
	b = append(append(b, ns...), 0)
	b = append(b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func TestLegacyOpcodes(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	for _, tt := range []struct {
		ns    string
		cmd   bson.D
		code  wire.Code
		field string
	}{
		{"admin.$cmd", bson.D{{Key: "isMaster", Value: 1}, {Key: "helloOk", Value: true}}, 0, "helloOk"},
		{"admin.$cmd", bson.D{{Key: "ismaster", Value: 1}}, 0, "ismaster"},
		{"admin.$cmd", bson.D{{Key: "hello", Value: 1}}, 0, "isWritablePrimary"},
		{"admin.$cmd", bson.D{{Key: "$query", Value: bson.D{{Key: "ismaster", Value: 1}}}}, 0, "ismaster"},
		{"admin.$cmd", bson.D{{Key: "buildinfo", Value: 1}}, 0, "version"},
		{"admin.$cmd", bson.D{{Key: "_isSelf", Value: 1}}, 0, "id"},
		{"admin.$cmd", bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "PLAIN"}}, wire.MechanismUnavailable, ""},
		{"admin.$cmd", bson.D{{Key: "IsMaster", Value: 1}}, wire.UnsupportedOpQueryCommand, ""},
		{"admin.$cmd", bson.D{{Key: "getLastError", Value: 1}}, wire.UnsupportedOpQueryCommand, ""},
		{"admin.$cmd", bson.D{}, wire.InvalidBSON, ""},
		{"db.c", bson.D{{Key: "a", Value: 1}}, 5739101, ""},
	} {
		p.id++
		p.send(query(p.id, tt.ns, tt.cmd))
		h, flags, body := p.receive()
		failure := flags&2 != 0
		if h.OpCode != wire.OpReply || h.ResponseTo != p.id || codeIn(body) != tt.code || failure != (tt.code != 0) {
			t.Errorf("%s %v: opcode %d, flags %d, %v; want code %d", tt.ns, tt.cmd, h.OpCode, flags, body, tt.code)
		}
		if _, err := body.LookupErr(tt.field); tt.field != "" && err != nil {
			t.Errorf("%v: no %s in %v", tt.cmd, tt.field, body)
		}
	}
	for _, op := range []wire.OpCode{2001, 2002, 2005, 2006, 2007, 1, 9999, -1} {
		p := e.dial()
		b := make([]byte, 40)
		wire.PutHeader(b, wire.Header{MessageLength: 40, OpCode: op})
		p.send(b)
		p.closed("opcode")
	}
	for _, length := range []int32{-1, 0, 15, wire.MaxMessageSize + 1} {
		p := e.dial()
		b := make([]byte, 40)
		wire.PutHeader(b, wire.Header{MessageLength: length, OpCode: wire.OpMsg})
		p.send(b)
		p.closed("length")
	}
}

func TestChecksOfAnyCommand(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	with := func(more ...bson.E) bson.D { return append(ping(), more...) }
	for _, tt := range []struct {
		cmd  bson.D
		code wire.Code
	}{
		{with(), 0},
		{bson.D{{Key: "atlasVersion", Value: 1}}, wire.CommandNotFound},
		{bson.D{{Key: "top", Value: 1}}, wire.CommandNotFound},
		{with(bson.E{Key: "$db", Value: "local"}), wire.IllegalOperation},
		{with(bson.E{Key: "$db", Value: "a b"}), wire.InvalidNamespace},
		{with(bson.E{Key: "$db", Value: "shardway"}), wire.InvalidNamespace},
		{bson.D{{Key: "getParameter", Value: "*"}, {Key: "$db", Value: "test"}}, wire.Unauthorized},
		{with(bson.E{Key: "apiVersion", Value: "1"}), 0},
		{with(bson.E{Key: "apiVersion", Value: "2"}), wire.APIVersionError},
		{with(bson.E{Key: "apiVersion", Value: 1}), wire.TypeMismatch},
		{with(bson.E{Key: "apiStrict", Value: true}), 4886600},
		{with(bson.E{Key: "apiDeprecationErrors", Value: true}), 4886600},
		{with(bson.E{Key: "apiVersion", Value: "1"}, bson.E{Key: "apiStrict", Value: "x"}), wire.TypeMismatch},
		{with(bson.E{Key: "apiVersion", Value: "1"}, bson.E{Key: "apiDeprecationErrors", Value: 1}), wire.TypeMismatch},
		{with(bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: catalog.NewUUID()}}}, bson.E{Key: "txnNumber", Value: int64(1)}), 50889},
		{with(bson.E{Key: "txnNumber", Value: int64(1)}), wire.InvalidOptions},
		{bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}, {Key: "lsid", Value: bson.D{{Key: "id", Value: catalog.NewUUID()}}}, {Key: "txnNumber", Value: int64(1)}}, 50768},
		{bson.D{{Key: "isdbgrid", Value: 1}, {Key: "apiVersion", Value: "1"}, {Key: "apiStrict", Value: true}}, wire.APIStrictError},
		{bson.D{{Key: "isdbgrid", Value: 1}, {Key: "apiVersion", Value: "1"}}, 0},
		{with(bson.E{Key: "$maxTimeMs", Value: 1}), wire.InvalidOptions},
		{with(bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}), wire.InvalidOptions},
		{with(bson.E{Key: "readConcern", Value: bson.D{{Key: "provenance", Value: "customDefault"}}}), wire.InvalidOptions},
		{with(bson.E{Key: "readConcern", Value: bson.D{{Key: "provenance", Value: "clientSupplied"}}}), 0},
		{bson.D{{Key: "count", Value: "c"}, {Key: "$db", Value: "d"}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}}}}, wire.InvalidOptions},
		{bson.D{{Key: "testWait", Value: 1}, {Key: "maxTimeMS", Value: 5}}, wire.MaxTimeMSExpired},
	} {
		p.fails(tt.cmd, tt.code)
	}
	if help, ok := p.ok(bson.D{{Key: "testWait", Value: 1}, {Key: "help", Value: true}}).Lookup("help").StringValueOK(); !ok || help == "" {
		t.Error("help:true gave no help")
	}
	p.ok(bson.D{{Key: "setParameter", Value: 1}, {Key: "requireApiVersion", Value: true}})
	p.fails(bson.D{{Key: "hostInfo", Value: 1}}, 498870)
	p.ok(bson.D{{Key: "hostInfo", Value: 1}, {Key: "apiVersion", Value: "1"}})
	p.ok(ping()) // needs none
}

func TestKillAndListOperations(t *testing.T) {
	e := newLone(t)
	busy, p := e.dial(), e.dial()
	busy.send(busy.msg(0, bson.D{{Key: "testWait", Value: "c"}, {Key: "mark", Value: "me"}}))
	<-e.entered
	list := func(spec bson.D) []bson.Raw {
		t.Helper()
		reply := p.ok(bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})
		values, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
		var docs []bson.Raw
		for _, v := range values {
			docs = append(docs, v.Document())
		}
		return docs
	}
	var opid int64
	for _, d := range list(bson.D{{Key: "localOps", Value: true}}) {
		if mark, _ := d.Lookup("command", "mark").StringValueOK(); mark == "me" {
			opid = d.Lookup("opid").AsInt64()
			if ns := d.Lookup("ns").StringValue(); ns != "admin.c" || !d.Lookup("active").Boolean() {
				t.Errorf("the operation is shown as %v", d)
			}
		} else if _, err := d.LookupErr("command", "aggregate"); err != nil {
			t.Errorf("an operation that is neither: %v", d)
		}
	}
	if opid == 0 {
		t.Fatal("the running request is not listed")
	}
	idle := e.dial()
	idle.ok(ping())
	if n := len(list(bson.D{{Key: "idleConnections", Value: true}})); n != 3 {
		t.Errorf("%d connections listed, want 3", n)
	}
	p.ok(bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: opid + 7}}) // nobody's
	p.ok(bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: opid}})
	if _, _, body := busy.receive(); codeIn(body) != wire.Interrupted {
		t.Errorf("the killed request was answered %v", body)
	}
	busy.ok(ping()) // the connection lives, and so do its next requests
	busy.fails(bson.D{{Key: "testWait", Value: 1}, {Key: "maxTimeMS", Value: 5}}, wire.MaxTimeMSExpired)
	p.fails(bson.D{{Key: "killOp", Value: 1}}, wire.FailedToParse)
	p.fails(bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: "nonsense"}}, 28625)
	p.fails(bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: "nobody:1"}}, wire.ShardNotFound)
}

func TestKillSessions(t *testing.T) {
	e := newLone(t)
	busy, p := e.dial(), e.dial()
	session := func() (id bson.RawValue) { return p.ok(bson.D{{Key: "startSession", Value: 1}}).Lookup("id") }
	mine, other := session(), session()
	if mine.Equal(other) {
		t.Fatal("two sessions are the same")
	}
	wait := bson.D{{Key: "testWait", Value: 1}, {Key: "lsid", Value: mine}}
	busy.send(busy.msg(0, wait))
	<-e.entered
	p.ok(bson.D{{Key: "killSessions", Value: bson.A{other}}})
	p.ok(bson.D{{Key: "endSessions", Value: bson.A{other}}})
	p.ok(bson.D{{Key: "refreshSessions", Value: bson.A{mine}}})
	select {
	case err := <-e.ended:
		t.Fatalf("another session's end ended the request: %v", err)
	default:
	}
	for _, kill := range []bson.D{
		{{Key: "killSessions", Value: bson.A{mine}}},
		{{Key: "killSessions", Value: bson.A{}}},
		{{Key: "killAllSessions", Value: bson.A{}}},
		{{Key: "killAllSessionsByPattern", Value: bson.A{bson.D{{Key: "lsid", Value: mine}}}}},
	} {
		p.ok(kill)
		if _, _, body := busy.receive(); codeIn(body) != wire.Interrupted {
			t.Errorf("%v: the request was answered %v", kill, body)
		}
		<-e.ended
		busy.send(busy.msg(0, wait))
		<-e.entered
	}
	for _, name := range []string{"endSessions", "killSessions", "refreshSessions"} {
		p.fails(bson.D{{Key: name, Value: 1}}, wire.TypeMismatch)
		p.fails(bson.D{{Key: name, Value: bson.A{1}}}, wire.TypeMismatch)
		p.fails(bson.D{{Key: name, Value: bson.A{bson.D{}}}}, 40414)
		p.fails(bson.D{{Key: name, Value: bson.A{bson.D{{Key: "id", Value: "x"}}}}}, wire.TypeMismatch)
	}
}

func TestClientVanishes(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	p.send(p.msg(0, bson.D{{Key: "testWait", Value: 1}}))
	<-e.entered
	_ = p.nc.Close()
	if err := waits.For(t, "the end of a request whose client is gone", e.ended); wire.AsError(err).Code != wire.ClientDisconnect {
		t.Errorf("ended by %v", err)
	}
}

func TestDrain(t *testing.T) {
	e := newLone(t)
	busy, idle, monitor := e.dial(), e.dial(), e.dial()
	idle.ok(ping())
	first := monitor.ok(bson.D{{Key: "hello", Value: 1}})
	monitor.send(monitor.msg(wire.ExhaustAllowed, bson.D{{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: first.Lookup("topologyVersion")}, {Key: "maxAwaitTimeMS", Value: 600_000}}))
	busy.send(busy.msg(0, bson.D{{Key: "testWait", Value: 1}, {Key: "maxTimeMS", Value: 500}}))
	<-e.entered
	done := make(chan struct{})
	go func() { defer close(done); e.stop() }()
	_, flags, body := monitor.receive()
	if codeIn(body) != wire.ShutdownInProgress || flags != 0 || body.Lookup("topologyVersion", "counter").AsInt64() != 1 {
		t.Errorf("the monitor hears %v (flags %#x), want 91 and counter 1", body, flags)
	}
	if _, err := body.LookupErr("remainingQuiesceTimeMillis"); err != nil {
		t.Error("remainingQuiesceTimeMillis is missing")
	}
	idle.ok(ping()) // still served
	idle.fails(bson.D{{Key: "isMaster", Value: 1}}, wire.ShutdownInProgress)
	if _, err := net.Dial("tcp", e.addr); err == nil {
		t.Error("the listener still takes connections")
	}
	if _, _, body := busy.receive(); codeIn(body) != wire.MaxTimeMSExpired {
		t.Errorf("the request in flight got %v, want its own end", body)
	}
	<-done
	for _, p := range []*peer{busy, idle, monitor} {
		if _, err := p.r.ReadMessage(); err != io.EOF {
			t.Errorf("after the drain: %v, want EOF", err)
		}
	}
}

func TestDrainCuts(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	p.send(p.msg(0, bson.D{{Key: "testWait", Value: 1}})) // for ever
	<-e.entered
	e.stop()
	if err := <-e.ended; wire.AsError(err).Code != wire.InterruptedAtShutdown {
		t.Errorf("cut with %v", err)
	}
}

// watchedListener is a listener that tells when it is closed.
type watchedListener struct {
	net.Listener
	closed func()
}

func (l *watchedListener) Close() error { l.closed(); return l.Listener.Close() }

// Who hears that the server goes must not be able to connect to it once more.
func TestListenersCloseBeforeAnybodyHears(t *testing.T) {
	r := New(Config{Log: zerolog.Nop()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := false
	r.listeners[&watchedListener{l, func() {
		select {
		case <-r.drain:
			heard = true
		default:
		}
	}}] = struct{}{}
	r.Shutdown(t.Context())
	if heard {
		t.Error("monitors hear of the end while the listener still takes connections")
	}
}

// failing is a listener without descriptors.
type failing struct {
	net.Listener
	left int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left--; f.left < 0 {
		return nil, net.ErrClosed
	}
	return nil, errors.New("too many open files")
}

func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Router{log: zerolog.Nop()}
		began := time.Now()
		if err := r.acceptLoop(t.Context(), &failing{left: 10}); err != ErrClosed {
			t.Error(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("ten failures took %v, want the doubling pauses up to one second", took)
		}
	})
}

func TestIdleConnectionsAreSmall(t *testing.T) {
	e := newLone(t)
	const n = 300
	before := memory()
	for range n {
		e.dial().ok(ping())
	}
	t.Logf("an idle connection, its client's end included, takes about %d bytes of heap and stack", (memory()-before)/n)
}

func TestReplyDocument(t *testing.T) {
	if _, err := docReply(bson.D{{Key: "f", Value: func() {}}}); err == nil {
		t.Error("a value that is no BSON was encoded")
	}
	r, err := docReply(bson.D{{Key: "a", Value: 1}})
	if err != nil || bsoncore.Document(r.Body).Validate() != nil || r.Body.Lookup("ok").Double() != 1 {
		t.Errorf("%v %v", r.Body, err)
	}
}
