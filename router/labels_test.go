package router

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// beside is an error with a writeConcernError of that code beside it, as a server tells it.
func beside(code wire.Code, concern int, labels ...string) error {
	raw := mustMarshal(d("errorLabels", labels, "ok", 0.0, "errmsg", "x", "code", int32(code),
		"writeConcernError", d("code", int32(concern), "errmsg", "y")))
	return wire.ErrorFromReply(raw)
}

// TestLabelsFollowWhatMayBeRepeated has the rule for the labels of errors: whether a driver may repeat follows from the request first and from the error second.
func TestLabelsFollowWhatMayBeRepeated(t *testing.T) {
	insert, find, commit := &Command{Name: "insert"}, &Command{Name: "find"}, &Command{Name: "commitTransaction"}
	var (
		write     = &Request{Command: insert}
		retried   = &Request{Command: insert, HasTxn: true}
		read      = &Request{Command: find}
		statement = &Request{Command: insert, HasTxn: true, InTxn: true}
		ends      = &Request{Command: commit, HasTxn: true, InTxn: true}
	)
	coded := func(c wire.Code, labels ...string) error { return &wire.Error{Code: c, Labels: labels} }
	for _, c := range []struct {
		what string
		q    *Request
		err  error
		want string
	}{
		{"a lease that ended, in a write without a number", write, coded(wire.HostUnreachable), ""},
		{"a lease that ended, in a read", read, coded(wire.HostUnreachable), ""},
		{"a lease that ended, in a retryable write", retried, coded(wire.HostUnreachable), retryableWrite},
		{"a lease that ended, in a transaction", statement, coded(wire.HostUnreachable), transientTransaction},
		{"a lease that ended, in a commit", ends, coded(wire.HostUnreachable), retryableWrite},
		{"a server's label on a read", read, coded(6, retryableWrite), ""},
		{"a server's label on a write without a number", write, coded(6, retryableWrite), ""},
		{"a server's label on a code that is unknown here", retried, coded(462, retryableWrite, noWritesPerformed), retryableWrite},
		{"a refusal", retried, coded(wire.BadValue), ""},
		{"a lost connection at a standalone", retried, unremembered{coded(6)}, ""},
		{"the same, further up", retried, fmt.Errorf("up: %w", unremembered{coded(6, retryableWrite)}), ""},
		{"a write concern that a step-down interrupted", retried, beside(wire.Interrupted, 11602), retryableWrite},
		{"a write concern that timed out", retried, beside(wire.Interrupted, 64), ""},
		{"another label", retried, coded(6, "Label"), "Label " + retryableWrite},
		{"a write conflict", statement, coded(wire.WriteConflict), transientTransaction},
		{"an unknown transaction in a statement", statement, coded(wire.NoSuchTransaction), transientTransaction},
		{"a commit of an unknown transaction", ends, coded(wire.NoSuchTransaction), transientTransaction},
		{"the same without the majority that was asked for", ends, beside(wire.NoSuchTransaction, 100), ""},
		{"the same in a step-down", ends, beside(wire.NoSuchTransaction, 91), retryableWrite},
		{"a commit in a step-down", ends, coded(wire.NotWritablePrimary), retryableWrite},
		{"a snapshot that is gone, in a commit", ends, coded(wire.SnapshotUnavailable), transientTransaction},
	} {
		err := c.q.labelled(c.err)
		var e *wire.Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", c.what, err)
		}
		text := ""
		for i, l := range e.Labels {
			if i > 0 {
				text += " "
			}
			text += l
		}
		if text != c.want || e.Code != wire.AsError(c.err).Code {
			t.Errorf("%s: %d with labels %q, want %q", c.what, e.Code, text, c.want)
		}
	}
	if retried.labelled(nil) != nil {
		t.Error("an error came of none")
	}
}

// unconfirmed answers each write as a mongod does whose write concern failed with that code: it labels what has a transaction number, if the code is retriable.
func unconfirmed(code int32) backendtest.Script {
	return func(c backendtest.Command) backendtest.Answer {
		if !isWrite(c) && c.Name != "findAndModify" {
			return writesDone(c)
		}
		fields := bson.D{{Key: "n", Value: len(c.Docs("documents")) + len(c.Docs("updates")) + len(c.Docs("deletes"))}}
		if c.Name == "findAndModify" {
			fields = bson.D{{Key: "lastErrorObject", Value: d("n", 1, "updatedExisting", true)}, {Key: "value", Value: d("_id", 1)}}
		}
		fields = append(fields, bson.E{Key: "writeConcernError", Value: d("code", code, "codeName", wire.Code(code).Name(), "errmsg", "no")})
		if _, err := c.Body.LookupErr("txnNumber"); err == nil && wire.Code(code).Retriable() {
			fields = append(fields, bson.E{Key: "errorLabels", Value: bson.A{retryableWrite}})
		}
		return backendtest.OK(fields...)
	}
}

// TestUnconfirmedWritesKeepTheirLabel: a write that a step-down keeps from being confirmed is repeated by every driver, since the server labels the reply. The proxy's reply says the same,
// whichever way the write took. What a writeConcernError says of a state change has code 6, as at a mongos: a driver that saw the code would take this proxy for what has stepped down.
func TestUnconfirmedWritesKeepTheirLabel(t *testing.T) {
	many := bson.A{}
	for i := range 40 {
		many = append(many, d("_id", i, "k", i))
	}
	one := d("insert", "c", "documents", bson.A{d("_id", 1, "k", 1)})
	set := d("$set", d("x", 1))
	every := []bson.D{
		one,
		d("update", "c", "updates", bson.A{d("q", d("k", 1), "u", set)}),
		d("delete", "c", "deletes", bson.A{d("q", d("k", 1), "limit", 1)}),
		d("insert", "c", "documents", many),
		d("insert", "c", "documents", many, "ordered", false),
		d("insert", "plain", "documents", many),
		d("findAndModify", "c", "query", d("k", 1), "update", set),
		d("findAndModify", "plain", "query", d("k", 1), "update", set),
	}
	for _, code := range []int32{91, 189, 11600, 11602, 10107, 13435, 13436, 6, 7, 89, 262, 9001, 64, 100} {
		writes := every
		if code != 6 && code != 64 {
			writes = []bson.D{every[0], every[4], every[6]}
		}
		if c := wire.Code(code); code != 91 && (c.NotPrimary() || c.Shutdown()) {
			writes = every[:1] // after a state change the server must be found again, which takes a moment
		}
		t.Run(wire.Code(code).Name(), func(t *testing.T) {
			t.Parallel()
			checkUnconfirmed(t, code, writes)
		})
	}
}

func checkUnconfirmed(t *testing.T, code int32, writes []bson.D) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 6)
	for _, s := range servers {
		s.SetScript(unconfirmed(code))
	}
	want := int64(code)
	if c := wire.Code(code); c.NotPrimary() || c.Shutdown() {
		want = int64(wire.HostUnreachable)
	}
	for i, cmd := range writes {
		docs, _ := cmd[1].Value.(bson.A)
		for _, numbered := range []bool{true, false} {
			what := fmt.Sprint(cmd[0], ", with a number ", numbered)
			sent := cmd
			if numbered {
				sent = retryable(cmd, int64(i))
			}
			reply := e.exchange(wireMessage(t, append(slices.Clone(sent), bson.E{Key: "$db", Value: e.db})))
			concern, _ := reply.Lookup("writeConcernError").DocumentOK()
			got, _ := concern.Lookup("code").AsInt64OK()
			if several := got == int64(wire.WriteConcernFailed) && len(docs) > 1; got != want && !several {
				t.Errorf("%s: the write concern's code is %d, want %d: %v", what, got, want, reply)
			}
			has := false
			if arr, ok := reply.Lookup("errorLabels").ArrayOK(); ok {
				values, _ := arr.Values()
				has = len(values) == 1 && values[0].StringValue() == retryableWrite
			}
			if want := numbered && code != 64 && code != 100; has != want {
				t.Errorf("%s: labelled %v, want %v: %v", what, has, want, reply)
			}
		}
	}
}

// TestOnePartOfABatchIsUnconfirmed: the label is the whole command's if one part has it, since each part knows its statements by their ids; beside an error of another part too.
func TestOnePartOfABatchIsUnconfirmed(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	servers[1].SetScript(unconfirmed(91))
	r, err := e.raw(retryable(insertOf(30), 1))
	if err != nil || r["n"] != int32(30) || fmt.Sprint(r["errorLabels"]) != "[RetryableWriteError]" {
		t.Errorf("%v %v", r, err)
	}
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name != "insert" {
			return writesDone(c)
		}
		return backendtest.OK(bson.E{Key: "n", Value: 0}, bson.E{Key: "writeErrors", Value: bson.A{d("index", 0, "code", 11000, "errmsg", "E11000")}})
	})
	r, err = e.raw(retryable(insertOf(30), 2))
	if err != nil || r["writeConcernError"] == nil || fmt.Sprint(r["errorLabels"]) != "[RetryableWriteError]" {
		t.Errorf("beside a write error: %v %v", r, err)
	}
}

// TestNoLabelWithoutANumber: what nothing remembers may not be repeated, and what only reads is no write.
func TestNoLabelWithoutANumber(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 3)
	for what, answer := range map[string]backendtest.Answer{
		"not primary": backendtest.Err(10107, "NotWritablePrimary", "not master", retryableWrite),
		"cut":         backendtest.Cut(),
	} {
		for _, cmd := range []bson.D{
			d("update", "c", "updates", bson.A{d("q", d(), "u", d("$inc", d("m", 1)), "multi", true)}),
			d("delete", "c", "deletes", bson.A{d("q", d(), "limit", 0)}),
			d("insert", "c", "documents", bson.A{d("_id", 1, "k", 1)}),
			d("find", "c", "filter", d("k", 1)),
			d("find", "c"),
			d("aggregate", "c", "pipeline", bson.A{}, "cursor", d()),
			d("count", "c", "query", d()),
		} {
			for i, s := range servers {
				s.SetScript(func(c backendtest.Command) backendtest.Answer {
					if c.Name == cmd[0].Key && (i > 0 || cmd[0].Key != "update" && cmd[0].Key != "delete") {
						return answer
					}
					return writesDone(c)
				})
			}
			reply := e.exchange(wireMessage(t, append(slices.Clone(cmd), bson.E{Key: "$db", Value: e.db})))
			if v, err := reply.LookupErr("errorLabels"); err == nil {
				t.Errorf("%s, %v: labels %v in %v", what, cmd[0], v, reply)
			}
			_, written := reply.LookupErr("writeErrors")
			if reply.Lookup("ok").Double() == 1 && written != nil {
				t.Errorf("%s, %v: no error: %v", what, cmd[0], reply)
			}
		}
	}
}
