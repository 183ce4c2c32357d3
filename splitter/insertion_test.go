package splitter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// scripted is a reshape of so many inputs into one home on a scripted server.
func scripted(t *testing.T, inputs int, hello backendtest.Hello, script backendtest.Script) (*reshape, *backendtest.Server) {
	t.Helper()
	server := backendtest.New(t)
	server.SetHello(hello)
	server.SetScript(script)
	b, err := backend.Open(t.Context(), backend.Config{ID: "b", URI: server.URI(), Log: zerolog.Nop(), HeartbeatInterval: time.Minute})
	if err == nil {
		err = b.Ready(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	s := &Splitter{cfg: Config{Backends: &backend.Set{}}}
	if err := s.cfg.Backends.Add(b); err != nil {
		t.Fatal(err)
	}
	r := &reshape{s: s, outputs: []output{{Home: partition.Home{Backend: "b", DB: "db", Physical: "c@1.2.0"}}}}
	for range inputs {
		r.inputs = append(r.inputs, &partition.Part{})
	}
	return r, server
}

func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func named(server *backendtest.Server, name string) (all []backendtest.Command) {
	for _, c := range server.Received() {
		if c.Name == name {
			all = append(all, c)
		}
	}
	return all
}

func writeErrors(errs ...bson.D) backendtest.Answer {
	return backendtest.OK(bson.E{Key: "n", Value: int32(0)}, bson.E{Key: "writeErrors", Value: errs})
}

func writeError(index, code int32, field string) bson.D {
	return bson.D{{Key: "index", Value: index}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}, {Key: "keyPattern", Value: bson.D{{Key: field, Value: 1}}}}
}

func TestInsertion(t *testing.T) {
	set := backendtest.ReplicaSet("rs")
	done := backendtest.OK(bson.E{Key: "n", Value: int32(3)})
	majority := backendtest.OK(bson.E{Key: "n", Value: int32(3)}, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(64)}, {Key: "errmsg", Value: "waiting"}}})
	for name, c := range map[string]struct {
		inputs  int
		hello   backendtest.Hello
		answers []backendtest.Answer
		sent    int
		again   bool // another attempt may do better
		dup     bool
		ids     []int32
	}{
		"done":                          {1, set, []backendtest.Answer{done}, 1, false, false, nil},
		"a lost reply":                  {1, set, []backendtest.Answer{backendtest.Cut(), done}, 2, false, false, nil},
		"two lost replies":              {1, set, []backendtest.Answer{backendtest.Cut(), backendtest.Cut()}, 2, true, false, nil},
		"a step-down":                   {1, set, []backendtest.Answer{backendtest.Err(11602, "InterruptedDueToReplStateChange", "x"), done}, 2, false, false, nil},
		"a standalone's lost reply":     {1, backendtest.Standalone(), []backendtest.Answer{backendtest.Cut()}, 1, true, false, nil},
		"refused":                       {1, set, []backendtest.Answer{backendtest.Err(13, "Unauthorized", "x")}, 1, true, false, nil},
		"no majority":                   {1, set, []backendtest.Answer{majority}, 1, true, false, nil},
		"equal _ids":                    {1, set, []backendtest.Answer{writeErrors(writeError(1, 11000, "_id"))}, 1, false, true, nil},
		"equal _ids in a merge":         {2, set, []backendtest.Answer{writeErrors(writeError(0, 11000, "_id"), writeError(2, 11000, "_id"))}, 1, false, true, []int32{0, 2}},
		"equal entries in a merge":      {2, set, []backendtest.Answer{writeErrors(writeError(1, 11000, "mail"))}, 1, false, true, nil},
		"an index that is out of range": {2, set, []backendtest.Answer{writeErrors(writeError(3, 11000, "_id"), writeError(-1, 11000, "_id"))}, 1, false, true, nil},
		"another error among them":      {1, set, []backendtest.Answer{writeErrors(writeError(0, 11000, "_id"), writeError(1, 121, "_id"))}, 1, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			left := make(chan backendtest.Answer, len(c.answers))
			for _, a := range c.answers {
				left <- a
			}
			r, server := scripted(t, c.inputs, c.hello, func(cmd backendtest.Command) backendtest.Answer {
				if cmd.Name != "insert" {
					return backendtest.OK()
				}
				select {
				case a := <-left:
					return a
				default:
					return backendtest.Err(1, "InternalError", "asked once more")
				}
			})
			var docs []bson.Raw
			for i := range int32(3) {
				docs = append(docs, raw(t, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: "x"}}))
			}
			err := r.insert(t.Context(), 0, docs)
			var again retryable
			var dup duplicateError
			if errors.As(err, &again) != c.again || errors.As(err, &dup) != c.dup || (err != nil) != (c.again || c.dup) {
				t.Errorf("%v", err)
			}
			var ids []int32
			for _, id := range dup.ids {
				ids = append(ids, id.Int32())
			}
			if len(ids) != len(c.ids) || len(ids) > 0 && (ids[0] != c.ids[0] || ids[1] != c.ids[1]) {
				t.Errorf("met twice: %v, want %v", ids, c.ids)
			}
			sent := named(server, "insert")
			if len(sent) != c.sent {
				t.Fatalf("sent %d times, want %d", len(sent), c.sent)
			}
			for _, cmd := range sent {
				got := cmd.Docs("documents")
				if len(got) != 3 || string(got[2]) != string(docs[2]) {
					t.Errorf("documents %v", got)
				}
				if string(cmd.Message[wire.HeaderLen:]) != string(sent[0].Message[wire.HeaderLen:]) {
					t.Error("another message the second time")
				}
				_, noSession := cmd.Body.LookupErr("txnNumber")
				if standalone := c.hello.SetName == ""; standalone != (noSession != nil) {
					t.Errorf("%v", cmd.Body)
				}
			}
		})
	}
}

// A session is used again with the next number once what it did is known, and never after that is in doubt.
func TestInsertionsShareSessions(t *testing.T) {
	cut := false
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		if cmd.Name == "insert" && cut {
			return backendtest.Cut()
		}
		return backendtest.OK()
	})
	doc := []bson.Raw{raw(t, bson.D{{Key: "_id", Value: 1}})}
	for i := range 4 {
		server.Forget()
		cut = i == 2
		if err := r.insert(t.Context(), 0, doc); (err != nil) != cut {
			t.Fatal(err)
		}
		cmd := named(server, "insert")[0].Body
		want := int64(i + 1)
		if i == 3 {
			want = 1 // another session
		}
		if n := cmd.Lookup("txnNumber").Int64(); n != want {
			t.Errorf("insert %d has the number %d, want %d", i, n, want)
		}
	}
}

func TestScan(t *testing.T) {
	cursor := func(id int64, field string, docs ...bson.D) backendtest.Answer {
		all := bson.A{}
		for _, d := range docs {
			all = append(all, d)
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: id}, {Key: "ns", Value: "db.c"}, {Key: field, Value: all}}})
	}
	one := bson.D{{Key: "_id", Value: 1}}
	lost := false
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
		switch cmd.Name {
		case "find":
			if lost {
				lost = false
				return backendtest.Cut()
			}
			return cursor(7, "firstBatch", one)
		case "getMore":
			if cmd.Body.Lookup("batchSize").Int32() == 1 {
				return backendtest.Err(43, "CursorNotFound", "gone")
			}
			return cursor(0, "nextBatch", one, one)
		}
		return backendtest.OK()
	})
	read := func(batch int, n int, code wire.Code) {
		t.Helper()
		server.Forget()
		c, err := r.s.scan(t.Context(), r.outputs[0].Home, batch, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for c.next(t.Context()) {
			if id := bsoncore.Document(c.doc).Lookup("_id"); id.Int32() != 1 {
				t.Errorf("%v", c.doc)
			}
			got++
		}
		if got != n || (c.err != nil) != (code != 0) || code != 0 && wire.AsError(c.err).Code != code {
			t.Errorf("read %d documents, %v", got, c.err)
		}
		c.close(t.Context())
		lsid := named(server, "find")[0].Body.Lookup("lsid")
		for _, name := range []string{"getMore", "killCursors"} {
			for _, cmd := range named(server, name) {
				if !cmd.Body.Lookup("lsid").Equal(lsid) {
					t.Errorf("%s has another session", name)
				}
			}
		}
	}
	read(100, 3, 0)
	if len(named(server, "killCursors")) != 0 {
		t.Error("a cursor that had ended is killed")
	}
	read(1, 1, wire.CursorNotFound)
	if len(named(server, "killCursors")) != 1 {
		t.Error("a cursor that may be there is left")
	}
	lost = true
	read(100, 3, 0)
}

func passingAgain(err error) bool {
	var again retryable
	return errors.As(err, &again)
}
