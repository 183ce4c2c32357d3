package integration

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

// closed reports whether the proxy ends the connection rather than answering.
func closed(c *rawconn.Conn) bool {
	c.SetTimeout(10 * time.Second)
	_, err := c.ReadMessage()
	return err != nil
}

// Case 29: a checksum is verified, and given when the request had one.
func TestCase29Checksum(t *testing.T) {
	c := dial(t, sharedProxy(t).Addr())
	ping := rawconn.Kind0(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	if err := c.Send(rawconn.Msg(c.NextID(), rawconn.ChecksumPresent, ping)); err != nil {
		t.Fatal(err)
	}
	m, err := c.ReadMessage()
	if err != nil || m.Flags()&rawconn.ChecksumPresent == 0 || !m.ChecksumHolds() {
		t.Errorf("the reply's flags are %b, its checksum holds: %v, %v", m.Flags(), m.ChecksumHolds(), err)
	}
	_, db := caseColl(t, "tenant")
	msg := rawconn.Msg(c.NextID(), rawconn.ChecksumPresent, rawconn.Kind0(bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: db}}), rawconn.Kind1("documents", bson.D{{Key: "_id", Value: int32(1)}}))
	if err := c.Send(msg); err != nil {
		t.Fatal(err)
	}
	if m, err = c.ReadMessage(); err != nil {
		t.Fatal(err)
	}
	if body, err := m.Body(); err != nil || body.Lookup("n").AsInt64() != 1 {
		t.Errorf("insert with a sequence and a checksum: %v, %v", body, err)
	}
	msg = rawconn.Msg(c.NextID(), rawconn.ChecksumPresent, rawconn.Kind0(append(insertCmd(bson.D{{Key: "_id", Value: int32(2)}}), bson.E{Key: "$db", Value: db})))
	msg[len(msg)-1] ^= 1
	if err := c.Send(msg); err != nil {
		t.Fatal(err)
	}
	if !closed(c) {
		t.Error("a wrong checksum is answered")
	}
	if n := must(t, dial(t, sharedProxy(t).Addr()), db, bson.D{{Key: "count", Value: "c"}}).Lookup("n").AsInt64(); n != 1 {
		t.Errorf("%d documents", n)
	}
}

// Case 30: sections in any order, and each wrong combination with its own code.
func TestCase30Sections(t *testing.T) {
	c, db := caseColl(t, "tenant")
	body := rawconn.Kind0(bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: db}})
	docs := func(ids ...int32) []byte {
		all := []any{}
		for _, id := range ids {
			all = append(all, bson.D{{Key: "_id", Value: id}})
		}
		return rawconn.Kind1("documents", all...)
	}
	for _, test := range []struct {
		name     string
		sections [][]byte
		code     int
	}{
		{"sequence first", [][]byte{docs(1), body}, 0},
		{"sequence last", [][]byte{body, docs(2)}, 0},
		{"no documents", [][]byte{body, docs()}, 16},
		{"two bodies", [][]byte{body, body}, 40430},
		{"no body", [][]byte{docs(3)}, 40587},
		{"no section", nil, 40587},
		{"a sequence that insert does not have", [][]byte{docs(3), body, rawconn.Kind1("more", bson.D{})}, 40415},
		{"a sequence that find does not have", [][]byte{docs(3), rawconn.Kind0(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: db}})}, 40415},
		{"a sequence of the explained command", [][]byte{rawconn.Kind1("deletes", bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: int32(1)}}),
			rawconn.Kind0(bson.D{{Key: "explain", Value: bson.D{{Key: "delete", Value: "c"}}}, {Key: "$db", Value: db}})}, 40415},
		{"a sequence and a field of one name", [][]byte{docs(3), rawconn.Kind0(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{}}, {Key: "$db", Value: db}})}, 40433},
		{"a sequence twice", [][]byte{docs(3), body, docs(4)}, 40431},
		{"kind 3", [][]byte{body, {3}}, 40432},
	} {
		reply, err := c.Exchange(c.NextID(), 0, test.sections...)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if code := rawconn.Code(reply); code != test.code {
			t.Errorf("%s: %v", test.name, reply)
		}
	}
	long := docs(4)
	binary.LittleEndian.PutUint32(long[1:], uint32(len(long)+100)) // overruns its message
	if err := c.Send(rawconn.Msg(c.NextID(), 0, body, long)); err != nil {
		t.Fatal(err)
	}
	if m, err := c.ReadMessage(); err == nil {
		if reply, err := m.Body(); err != nil || rawconn.OK(reply) {
			t.Errorf("a sequence that overruns: %v, %v", reply, err)
		}
	}
	if n := must(t, dial(t, sharedProxy(t).Addr()), db, bson.D{{Key: "count", Value: "c"}}).Lookup("n").AsInt64(); n != 2 {
		t.Errorf("%d documents", n)
	}
}

// Case 38: old handshakes are answered, other old requests refused without a crash.
func TestCase38LegacyOpcodes(t *testing.T) {
	query := func(ns string, doc bson.D) []byte {
		b := append(make([]byte, 4), ns...)
		b = append(b, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff) // skip 0, one document
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return append(b, raw...)
	}
	for _, test := range []struct {
		doc  bson.D
		code int
	}{
		{bson.D{{Key: "isMaster", Value: 1}, {Key: "helloOk", Value: true}}, 0},
		{bson.D{{Key: "ismaster", Value: 1}}, 0},
		{bson.D{{Key: "getLastError", Value: 1}}, 352},
	} {
		c := dial(t, sharedProxy(t).Addr())
		if err := c.Send(rawconn.Frame(1, 0, rawconn.OpQuery, query("admin.$cmd", test.doc))); err != nil {
			t.Fatal(err)
		}
		m, err := c.ReadMessage()
		if err != nil || m.Opcode != rawconn.OpReply || m.ResponseTo != 1 {
			t.Fatalf("%v: %+v, %v", test.doc, m, err)
		}
		if body, err := m.Body(); err != nil || rawconn.Code(body) != test.code {
			t.Errorf("%v: %v, %v", test.doc, body, err)
		}
	}
	find := dial(t, sharedProxy(t).Addr())
	if err := find.Send(rawconn.Frame(1, 0, rawconn.OpQuery, query("db.c", bson.D{}))); err != nil {
		t.Fatal(err)
	}
	m, err := find.ReadMessage()
	if err != nil || m.Opcode != rawconn.OpReply || m.Payload[0]&2 == 0 {
		t.Fatalf("OP_QUERY find: %+v, %v", m, err)
	}
	if body, err := m.Body(); err != nil || body.Lookup("code").AsInt64() != 5739101 {
		t.Errorf("OP_QUERY find: %v, %v", body, err)
	}
	for _, op := range []int32{rawconn.OpInsert, rawconn.OpGetMore, 2007} { // each an answer or the end of the connection
		old := dial(t, sharedProxy(t).Addr())
		if err := old.Send(rawconn.Frame(1, 0, op, append(make([]byte, 4), "db.c\x00\x05\x00\x00\x00\x00"...))); err != nil {
			t.Fatal(err)
		}
		old.SetTimeout(5 * time.Second)
		if m, err := old.ReadMessage(); err == nil {
			if body, err := m.Body(); err != nil || rawconn.OK(body) {
				t.Errorf("opcode %d: %v, %v", op, body, err)
			}
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("opcode %d: neither an answer nor an end", op)
		}
	}
	c := dial(t, sharedProxy(t).Addr())
	if err := c.Send(rawconn.Frame(1, 0, 9999, []byte("what is this?"))); err != nil {
		t.Fatal(err)
	}
	if !closed(c) {
		t.Error("an unknown opcode is answered")
	}
	must(t, dial(t, sharedProxy(t).Addr()), "admin", bson.D{{Key: "ping", Value: 1}})
}

// Case 41: a key named like the command binds nothing.
func TestCase41KeyNamedLikeTheCommand(t *testing.T) {
	c, db := caseColl(t, "count")
	for i := range int32(20) {
		must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: i}, {Key: "count", Value: i}}))
	}
	if n := must(t, c, db, bson.D{{Key: "count", Value: "c"}}).Lookup("n").AsInt64(); n != 20 {
		t.Errorf("%d of 20", n)
	}
}

// Case 42: a sort by a field that is projected away leaves nothing of it; empty documents survive.
func TestCase42SortKeyProjectedOut(t *testing.T) {
	c, db := caseColl(t, "tenant")
	for i := range int32(20) {
		must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: i}, {Key: "tenant", Value: i}, {Key: "v", Value: -i}}))
	}
	byID := bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: int32(-1)}}}
	var got []int64
	for _, d := range drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "projection", Value: bson.D{{Key: "v", Value: 1}, {Key: "_id", Value: 0}}}, byID, {Key: "limit", Value: int32(3)}}) {
		if elements, err := d.Elements(); err != nil || len(elements) != 1 {
			t.Errorf("%v, %v", d, err)
		}
		got = append(got, d.Lookup("v").AsInt64())
	}
	if !slices.Equal(got, []int64{-19, -18, -17}) {
		t.Errorf("got %v", got)
	}
	empty := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "projection", Value: bson.D{{Key: "nothing", Value: 1}, {Key: "_id", Value: 0}}}, byID})
	if len(empty) != 20 || len(empty[0]) != 5 {
		t.Errorf("%d empty documents", len(empty))
	}
}

// Case 45: no array on the key's path, ever; a query with an array is answered.
func TestCase45ArrayOnKeyPath(t *testing.T) {
	c, db := caseColl(t, "in.name")
	bad := bson.D{{Key: "_id", Value: int32(1)}, {Key: "in", Value: bson.A{bson.D{{Key: "name", Value: "a"}}}}}
	if code := ask(t, c, db, insertCmd(bad)).Lookup("writeErrors", "0", "code").AsInt64(); code != 61 {
		t.Errorf("insert: %d", code)
	}
	must(t, c, db, insertCmd(bson.D{{Key: "_id", Value: int32(2)}, {Key: "in", Value: bson.D{{Key: "name", Value: "a"}}}}))
	up := bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "in.name", Value: "a"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "in", Value: bson.A{}}}}}}}}}}
	if code := ask(t, c, db, up).Lookup("writeErrors", "0", "code").AsInt64(); code != 66 {
		t.Errorf("update: %d", code)
	}
	if got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "in.name", Value: bson.A{"a"}}}}}); len(got) != 0 {
		t.Errorf("a query with an array: %v", got)
	}
}

// Case 46: an upsert by a filter without equality makes one document, or none.
func TestCase46UpsertByRange(t *testing.T) {
	c, db := caseColl(t, "tenant")
	reply := ask(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: int32(3)}}}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "f", Value: int32(1)}}}}}, {Key: "upsert", Value: true}, {Key: "multi", Value: true}}}}})
	got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}})
	_, err := reply.LookupErr("upserted")
	if code, refused := reply.Lookup("writeErrors", "0", "code").AsInt64OK(); !(err == nil && len(got) == 1) && !(refused && code == 61 && len(got) == 0) {
		t.Errorf("%v made %v", reply, got)
	}
}

// Case 52: the proxy makes the _id, first, before it places the document.
func TestCase52GeneratedID(t *testing.T) {
	c, db := caseColl(t, "_id")
	docs := []any{}
	for i := range int32(30) {
		docs = append(docs, bson.D{{Key: "v", Value: i}})
	}
	must(t, c, db, insertCmd(docs...))
	all := drain(t, c, db, bson.D{{Key: "find", Value: "c"}})
	if len(all) != 30 {
		t.Errorf("%d of 30", len(all))
	}
	for _, d := range all {
		elements, err := d.Elements()
		if err != nil || elements[0].Key() != "_id" || elements[0].Value().Type != bson.TypeObjectID {
			t.Fatalf("%v, %v", d, err)
		}
		found := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: elements[0].Value()}}}})
		if len(found) != 1 {
			t.Errorf("%v is not found by its _id", d)
		}
	}
}
