package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func doc(t testing.TB, d bson.D) []byte {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// message makes a Message of whole bytes, as a Reader would.
func message(t testing.TB, b []byte) Message {
	t.Helper()
	h, err := ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	return Message{Header: h, Buf: &Buffer{B: b}}
}

func kind0(body []byte) []byte { return append([]byte{0}, body...) }

func kind1(id string, docs ...[]byte) []byte {
	in := append([]byte(id), 0)
	in = append(in, bytes.Join(docs, nil)...)
	s := binary.LittleEndian.AppendUint32([]byte{1}, uint32(4+len(in)))
	return append(s, in...)
}

// opMsg builds an OP_MSG of sections in any order; its checksum, if flagged, is right.
func opMsg(flags Flags, sections ...[]byte) []byte {
	b := make([]byte, HeaderLen)
	PutHeader(b, Header{RequestID: 7, OpCode: OpMsg})
	b = binary.LittleEndian.AppendUint32(b, uint32(flags))
	return Seal(append(b, bytes.Join(sections, nil)...), 0)
}

func insert(t testing.TB) []byte {
	return doc(t, bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "d"}})
}

func TestParseMsgSections(t *testing.T) {
	body, one, two := insert(t), doc(t, bson.D{{Key: "_id", Value: 1}}), doc(t, bson.D{{Key: "_id", Value: 2}})
	for name, sections := range map[string][][]byte{
		"body first":     {kind0(body), kind1("documents", one, two)},
		"sequence first": {kind1("documents", one, two), kind0(body)},
	} {
		for _, flags := range []Flags{0, ChecksumPresent, MoreToCome, ExhaustAllowed, 1 << 20} {
			var m Msg
			if err := ParseMsg(message(t, opMsg(flags, sections...)), &m); err != nil {
				t.Errorf("%s, flags %#x: %v", name, flags, err)
				continue
			}
			if m.Flags != flags || !bytes.Equal(m.Body, body) || len(m.Sequences) != 1 {
				t.Errorf("%s: got flags %#x, body %v, %d sequences", name, m.Flags, m.Body, len(m.Sequences))
				continue
			}
			s, ok := m.Sequence("documents")
			var got []byte
			for d := range s.All {
				got = append(got, d...)
			}
			if !ok || s.Len() != 2 || !bytes.Equal(got, append(bytes.Clone(one), two...)) {
				t.Errorf("%s: documents are %v (%d)", name, got, s.Len())
			}
		}
	}
	var m Msg
	two2 := opMsg(0, kind1("ops", one), kind0(body), kind1("nsInfo", two))
	if err := ParseMsg(message(t, two2), &m); err != nil || len(m.Sequences) != 2 {
		t.Errorf("two sequences: %v, %d of them", err, len(m.Sequences))
	}
	if err := ParseMsg(message(t, opMsg(0, kind0(body), kind1("documents"))), &m); err != nil || m.Sequences[0].Len() != 0 {
		t.Errorf("a sequence without documents: %v", err)
	}
}

func TestParseMsgErrors(t *testing.T) {
	body, one := insert(t), doc(t, bson.D{{Key: "_id", Value: 1}})
	cut := func(b []byte, n int) []byte { // n bytes less of it, its own lengths kept
		b = b[:len(b)-n]
		putLength(b, 0)
		return b
	}
	badSum := opMsg(ChecksumPresent, kind0(body))
	badSum[len(badSum)-1] ^= 1
	broken := bytes.Clone(one)
	broken[len(broken)-1] = 1
	large := make([]byte, MaxInternalDocumentSize+1)
	binary.LittleEndian.PutUint32(large, uint32(len(large)))
	seq := func(size int) []byte {
		s := kind1("documents", one)
		binary.LittleEndian.PutUint32(s[1:], uint32(size))
		return s
	}
	whole := len(seq(0)) - 1
	tests := []struct {
		name  string
		msg   []byte
		code  Code
		fatal bool
	}{
		{"two bodies", opMsg(0, kind0(body), kind0(body)), 40430, false},
		{"no body", opMsg(0, kind1("documents", one)), 40587, false},
		{"sequence twice", opMsg(0, kind1("documents", one), kind0(body), kind1("documents", one)), 40431, false},
		{"security token", opMsg(0, append([]byte{2}, one...), kind0(body)), Unauthorized, false},
		{"unknown kind", opMsg(0, kind0(body), []byte{3}), 40432, false},
		{"body too large", opMsg(0, kind0(large)), BSONObjectTooLarge, false},
		{"three sequences", opMsg(0, kind0(body), kind1("a"), kind1("b"), kind1("c")), TooManyDocumentSequences, true},
		{"unknown required flag", opMsg(1<<15, kind0(body)), IllegalOpMsgFlag, true},
		{"wrong checksum", badSum, ChecksumMismatch, true},
		{"no room for a checksum", cut(opMsg(ChecksumPresent, []byte{0}), 2), ProtocolError, true},
		{"no section", opMsg(0), 40587, false},
		{"flags cut off", cut(opMsg(0), 1), ProtocolError, true},
		{"body cut off", cut(opMsg(0, kind0(body)), 1), ProtocolError, true},
		{"body that does not end in zero", opMsg(0, kind0(broken)), ProtocolError, true},
		{"sequence that overruns the message", opMsg(0, kind0(body), seq(whole+1)), ProtocolError, true},
		{"sequence one short", opMsg(0, kind0(body), seq(whole-1)), ProtocolError, true},
		{"sequence of negative length", opMsg(0, kind0(body), seq(-1)), ProtocolError, true},
		{"sequence without identifier", opMsg(0, kind0(body), []byte{1, 6, 0, 0, 0, 'a', 'b'}), ProtocolError, true},
		{"document that overruns its sequence", opMsg(0, kind0(body), kind1("documents", one[:len(one)-1])), ProtocolError, true},
	}
	for _, tt := range tests {
		var m Msg
		err := ParseMsg(message(t, tt.msg), &m)
		var fatal *FatalError
		var plain *Error
		switch {
		case tt.fatal && (!errors.As(err, &fatal) || fatal.Code != tt.code):
			t.Errorf("%s: got %v, want the fatal %d", tt.name, err, tt.code)
		case !tt.fatal && (!errors.As(err, &plain) || plain.Code != tt.code):
			t.Errorf("%s: got %v, want %d", tt.name, err, tt.code)
		}
	}
}

func TestCommand(t *testing.T) {
	many := bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}}
	for i := range 60 {
		many = append(many, bson.E{Key: strings.Repeat("x", i+1), Value: i})
	}
	malformed := insert(t)
	malformed[len(malformed)-2] = 7 // the string no longer ends in zero
	tests := []struct {
		name string
		body []byte
		seq  string
		want string // name and db, or nothing
		code Code
	}{
		{"plain", insert(t), "documents", "insert d", 0},
		{"many fields", doc(t, many), "", "find d", 0},
		{"empty db", doc(t, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: ""}}), "", "ping ", 0},
		{"no db", doc(t, bson.D{{Key: "ping", Value: 1}}), "", "", 40571},
		{"db is no string", doc(t, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: 1}}), "", "", TypeMismatch},
		{"field twice", doc(t, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "d"}, {Key: "ping", Value: 1}}), "", "", FailedToParse},
		{"field twice among many", doc(t, append(many[:len(many):len(many)], many[40])), "", "", FailedToParse},
		{"field and sequence", doc(t, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{}}, {Key: "$db", Value: "d"}}), "documents", "", 40433},
		{"tenant", doc(t, bson.D{{Key: "ping", Value: 1}, {Key: "$tenant", Value: bson.NewObjectID()}, {Key: "$db", Value: "d"}}), "", "", InvalidOptions},
		{"malformed", malformed, "", "", InvalidBSON},
		{"element overruns", []byte{11, 0, 0, 0, 0x10, 'a', 0, 1, 2, 3, 0}, "", "", InvalidBSON},
		{"empty", doc(t, bson.D{}), "", "", 40571},
	}
	for _, tt := range tests {
		m := Msg{Body: tt.body}
		if tt.seq != "" {
			m.Sequences = []Sequence{{Identifier: tt.seq}}
		}
		name, _, db, err := m.Command()
		if tt.code == 0 {
			if err != nil || name+" "+db != tt.want {
				t.Errorf("%s: got %q %q %v, want %q", tt.name, name, db, err, tt.want)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Code != tt.code {
			t.Errorf("%s: got %v, want %d", tt.name, err, tt.code)
		}
	}
}

// TestForwardingAllocatesNothing: what every request passes costs no memory of its own.
func TestForwardingAllocatesNothing(t *testing.T) {
	body, one := insert(t), doc(t, bson.D{{Key: "_id", Value: 1}})
	in := message(t, opMsg(ChecksumPresent, kind0(body), kind1("documents", one)))
	out := make([]byte, 0, 4096)
	var m Msg
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := ParseHeader(in.Buf.B); err != nil {
			t.Fatal(err)
		}
		if err := ParseMsg(in, &m); err != nil {
			t.Fatal(err)
		}
		b := GetBuffer(100)
		out = AppendMsg(out[:0], 1, 2, m.Flags, m.Body, m.Sequences...)
		SetRequestID(out, 5)
		b.Release()
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	if got := testing.AllocsPerRun(100, func() { _, _, _, _ = m.Command() }); got > 2 {
		t.Errorf("Command allocates %v times, want its two strings at most", got)
	}
}

func TestAppendReplyAndParseQuery(t *testing.T) {
	hello := doc(t, bson.D{{Key: "isMaster", Value: 1}})
	query := func(ns string, body []byte) []byte {
		b := make([]byte, HeaderLen)
		PutHeader(b, Header{RequestID: 3, OpCode: OpQuery})
		b = append(b, 0, 0, 0, 0)
		b = append(append(b, ns...), 0)
		b = append(b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
		b = append(b, body...)
		putLength(b, 0)
		return b
	}
	wrapped := doc(t, bson.D{{Key: "$query", Value: bson.Raw(hello)}, {Key: "$readPreference", Value: bson.D{}}})
	for _, body := range [][]byte{hello, wrapped} {
		q, err := ParseQuery(message(t, query("admin.$cmd", body)))
		db, isCommand := q.DB()
		if err != nil || db != "admin" || !isCommand || !bytes.Equal(q.Body, hello) {
			t.Errorf("got %v %q %v %v", err, db, isCommand, q.Body)
		}
	}
	whole := query("admin.$cmd", hello)
	for n := HeaderLen; n < len(whole); n++ {
		b := bytes.Clone(whole[:n])
		putLength(b, 0)
		var fatal *FatalError
		if _, err := ParseQuery(message(t, b)); !errors.As(err, &fatal) {
			t.Errorf("an OP_QUERY of %d bytes: %v", n, err)
		}
	}
	reply := message(t, AppendReply(nil, 8, 3, true, hello))
	p := reply.Payload()
	if reply.Header != (Header{int32(len(reply.Buf.B)), 8, 3, OpReply}) || p[0] != 10 || binary.LittleEndian.Uint32(p[16:]) != 1 || !bytes.Equal(p[20:], hello) {
		t.Errorf("got %v %v", reply.Header, p)
	}
}
