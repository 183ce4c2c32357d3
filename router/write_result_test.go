package router

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
)

// merged is the reply to a batch of so many statements, each of which went to all backends that answer here: mongos-behaviour §3.11.
func merged(t *testing.T, ordered bool, statements int, answers ...bson.D) bson.Raw {
	t.Helper()
	w := &writeResult{}
	k := &chunk{group: group{}}
	for i := range statements {
		k.stmts = append(k.stmts, &statement{index: i})
	}
	for i, a := range answers {
		raw, err := bson.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		k.part = &partition.Part{Home: partition.Home{Backend: "b" + itoa(i)}}
		w.take(raw, k, ordered)
	}
	reply := w.reply(&Request{HasTxn: true, TxnNumber: 1}, true)
	if err := reply.Validate(); err != nil {
		t.Fatal(err)
	}
	return reply
}

func writeErr(index, code int, text string) bson.D {
	return d("index", int32(index), "code", int32(code), "errmsg", text)
}

func TestErrorsOfOneStatementAreJoined(t *testing.T) {
	fails := func(code int, text string) bson.D {
		return d("n", int32(0), "nModified", int32(0), "writeErrors", bson.A{writeErr(0, code, text)}, "ok", 1.0)
	}
	good := d("n", int32(3), "nModified", int32(2), "ok", 1.0)
	for _, c := range []struct {
		name    string
		answers []bson.D
		code    int64
		text    string
		causes  int
		n       int64
	}{
		{"one", []bson.D{fails(14, "x"), good, good}, 14, "x", 0, 6},
		{"twice the same", []bson.D{fails(14, "x"), good, fails(14, "x")}, 14, "x", 0, 3},
		{"one code", []bson.D{fails(14, "x"), fails(14, "y")}, 14, "x :: and :: y", 0, 0},
		{"different", []bson.D{fails(14, "x"), good, fails(2, "y")}, 65, "x :: and :: y", 2, 3},
		{"different, one twice", []bson.D{fails(14, "x"), fails(2, "y"), fails(14, "x")}, 65, "x :: and :: y", 2, 0},
	} {
		reply := merged(t, false, 1, c.answers...)
		errs, _ := reply.Lookup("writeErrors").Array().Values()
		if len(errs) != 1 || reply.Lookup("n").AsInt64() != c.n || reply.Lookup("ok").Double() != 1 {
			t.Errorf("%s: %v", c.name, reply)
			continue
		}
		e := errs[0].Document()
		if e.Lookup("code").AsInt64() != c.code || e.Lookup("errmsg").StringValue() != c.text {
			t.Errorf("%s: %v", c.name, e)
		}
		causes, _ := bsoncore.Document(e).Lookup("errInfo", "causedBy").ArrayOK()
		if all, _ := causes.Values(); len(all) != c.causes || c.causes > 0 && all[1].Document().Lookup("code").AsInt64() != 2 {
			t.Errorf("%s: caused by %v", c.name, causes)
		}
	}
}

// TestMuchErrorText checks that after a megabyte of text indexes and codes still come.
func TestMuchErrorText(t *testing.T) {
	const n = 40
	errs := bson.A{}
	for i := range n {
		errs = append(errs, writeErr(n-1-i, 11000, strings.Repeat("x", 50_000)))
	}
	reply := merged(t, false, n, d("n", int32(0), "writeErrors", errs, "ok", 1.0))
	got, _ := reply.Lookup("writeErrors").Array().Values()
	if len(got) != n || len(reply) > 1<<20+n*100 {
		t.Fatalf("%d errors in %d bytes", len(got), len(reply))
	}
	for i, v := range got {
		e := v.Document()
		if e.Lookup("index").AsInt64() != int64(i) || e.Lookup("code").AsInt64() != 11000 || (e.Lookup("errmsg").StringValue() == "") != (i >= 20) {
			t.Errorf("%d: index %v, %d bytes of text", i, e.Lookup("index"), len(e.Lookup("errmsg").StringValue()))
		}
	}
}

// TestWhenConcernErrorsAreTold: always, as a mongod does; several are one 64. Beside write errors too: without it, what was written before would seem confirmed.
func TestWhenConcernErrorsAreTold(t *testing.T) {
	concern := d("code", int32(100), "codeName", "UnsatisfiableWriteConcern", "errmsg", "no")
	ok := d("n", int32(1), "ok", 1.0, "writeConcernError", concern)
	bad := d("n", int32(0), "ok", 1.0, "writeErrors", bson.A{writeErr(0, 2, "x"), writeErr(1, 2, "x")}, "writeConcernError", concern)
	half := d("n", int32(1), "ok", 1.0, "writeErrors", bson.A{writeErr(1, 2, "x")}, "writeConcernError", concern)
	for _, c := range []struct {
		name    string
		ordered bool
		answers []bson.D
		code    int64 // 0: none
		text    string
	}{
		{"one", true, []bson.D{ok}, 100, "no at b0"},
		{"two", false, []bson.D{ok, ok}, 64, "no at b0 :: and :: no at b1"},
		{"none", true, []bson.D{d("n", int32(1), "ok", 1.0)}, 0, ""},
		{"all failed", false, []bson.D{bad}, 100, "no at b0"},
		{"half failed, unordered", false, []bson.D{half}, 100, "no at b0"},
		{"half failed, ordered", true, []bson.D{half}, 100, "no at b0"},
	} {
		reply := merged(t, c.ordered, 2, c.answers...)
		e, has := reply.Lookup("writeConcernError").DocumentOK()
		if has != (c.code != 0) || has && (e.Lookup("code").AsInt64() != c.code || e.Lookup("errmsg").StringValue() != c.text) {
			t.Errorf("%s: %v", c.name, reply)
		}
	}
}

// TestConcernErrorsOfManyMessages: what one backend says again and again, of each message of an ordered batch, is said once, and there is an end of what differs.
func TestConcernErrorsOfManyMessages(t *testing.T) {
	w := &writeResult{}
	for i := range 1000 {
		w.addConcern(concernError{"b0", mustMarshal(d("code", int32(91), "errmsg", "down"))})
		other := &writeResult{}
		other.addConcern(concernError{"b1", mustMarshal(d("code", int32(91), "errmsg", itoa(i%5)))})
		w.add(other)
	}
	if len(w.concerns) != 6 {
		t.Errorf("%d errors of six", len(w.concerns))
	}
	for i := range 1000 {
		w.addConcern(concernError{"b2", mustMarshal(d("code", int32(91), "errmsg", itoa(i)))})
	}
	if len(w.concerns) != maxConcerns {
		t.Errorf("%d errors, want %d", len(w.concerns), maxConcerns)
	}
}
