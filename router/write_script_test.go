package router

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// scriptEnv is a writeEnv over three scripted servers that say n: 1 for each statement.
func scriptEnv(t *testing.T, change ...func(*backendtest.Server)) (*writeEnv, []*backendtest.Server) {
	t.Helper()
	uris := map[string]string{}
	var servers []*backendtest.Server
	for i := range 3 {
		s := backendtest.New(t)
		s.SetScript(writesDone)
		for _, f := range change {
			f(s)
		}
		servers = append(servers, s)
		uris["b"+itoa(i)] = s.URI()
	}
	return newWriteEnv(t, uris), servers
}

// writesDone answers writes as done and finds nothing.
func writesDone(c backendtest.Command) backendtest.Answer {
	for _, list := range []string{"documents", "updates", "deletes"} {
		if n := len(c.Docs(list)); n > 0 {
			return backendtest.OK(bson.E{Key: "n", Value: int32(n)}, bson.E{Key: "nModified", Value: int32(n)})
		}
	}
	if c.Name == "find" {
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{})})
	}
	return backendtest.OK()
}

// writesOf are the write commands that the servers received.
func writesOf(servers ...*backendtest.Server) []backendtest.Command {
	var out []backendtest.Command
	for _, s := range servers {
		for _, c := range s.Received() {
			if slices.Contains([]string{"insert", "update", "delete", "findAndModify"}, c.Name) {
				out = append(out, c)
			}
		}
	}
	return out
}

var testSession = d("id", bson.Binary{Subtype: 4, Data: []byte("fedcba9876543210")})

func retryable(cmd bson.D, txn int64) bson.D {
	return append(slices.Clone(cmd), bson.E{Key: "lsid", Value: testSession}, bson.E{Key: "txnNumber", Value: txn})
}

func insertOf(n int) bson.D {
	docs := bson.A{}
	for i := range n {
		docs = append(docs, d("_id", i))
	}
	return d("insert", "c", "documents", docs, "ordered", false, "comment", "why")
}

// TestRetryableMessages checks byte for byte what homes are told: sessions of their own, the client's number, the statements' places in the client's batch.
func TestRetryableMessages(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 5)
	if r, err := e.raw(retryable(insertOf(40), 7)); err != nil || r["n"] != int32(40) {
		t.Fatal(r, err)
	}
	sessions := map[string]string{}
	seen := map[int32]bool{}
	for _, c := range writesOf(servers...) {
		coll := c.Body.Lookup("insert").StringValue()
		if !catalog.IsPhysicalName(coll) || c.Flags&uint32(wire.MoreToCome) != 0 || c.Body.Lookup("comment").StringValue() != "why" || c.Body.Lookup("txnNumber").Int64() != 7 {
			t.Errorf("%v", c.Body)
		}
		_, id := c.Body.Lookup("lsid", "id").Binary()
		if string(id) == "fedcba9876543210" || len(id) != 16 || sessions[string(id)] != "" {
			t.Errorf("session %x of %s is the client's or another home's", id, coll)
		}
		sessions[string(id)] = coll
		ids, _ := c.Body.Lookup("stmtIds").Array().Values()
		for i, doc := range c.Docs("documents") {
			place := doc.Lookup("_id").Int32()
			if ids[i].Int32() != place {
				t.Errorf("document %d has statement id %v", place, ids[i])
			}
			seen[place] = true
		}
	}
	if len(sessions) != 5 || len(seen) != 40 {
		t.Errorf("%d homes, %d documents", len(sessions), len(seen))
	}
	for _, s := range servers {
		s.Forget()
	}
	if _, err := e.raw(append(insertOf(1), bson.E{Key: "lsid", Value: testSession}, bson.E{Key: "writeConcern", Value: d("w", 0)})); err != nil {
		t.Fatal(err)
	}
	c := writesOf(servers...)[0]
	if _, err := c.Body.LookupErr("txnNumber"); err == nil || c.Flags != 0 {
		t.Errorf("%v", c.Body)
	}
	if _, err := c.Body.LookupErr("writeConcern"); err == nil {
		t.Error("a backend was told w: 0")
	}
	if _, id := c.Body.Lookup("lsid", "id").Binary(); string(id) != "fedcba9876543210" {
		t.Errorf("without a transaction number the session is %x", id)
	}
}

// TestLostReply is case 24's last line: the backend applies the write and the connection dies.
func TestLostReply(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 1)
	var tries atomic.Int32
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "insert" && tries.Add(1) == 1 {
			return backendtest.Cut()
		}
		return writesDone(c)
	})
	if r, err := e.raw(retryable(insertOf(3), 1)); err != nil || r["n"] != int32(3) {
		t.Fatal(r, err)
	}
	got := writesOf(servers[0])
	if len(got) != 2 || string(got[0].Message[16:]) != string(got[1].Message[16:]) {
		t.Errorf("%d messages, or not the same", len(got))
	}
	tries.Store(0)
	servers[0].Forget()
	_, err := e.raw(insertOf(3))
	if we := wire.AsError(err); we == nil || !we.Code.Retriable() || we.HasLabel(retryableWrite) {
		t.Errorf("without a transaction number: %v", err)
	}
	if n := len(writesOf(servers[0])); n != 1 {
		t.Errorf("a write that is not retryable was sent %d times", n)
	}
}

// TestPartialFailure has one backend of three fail for good: its statements fail, the others' results stay.
func TestPartialFailure(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	servers[1].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "insert" {
			return backendtest.Err(10107, "NotWritablePrimary", "not master", retryableWrite)
		}
		return writesDone(c)
	})
	r, err := e.raw(retryable(insertOf(30), 1))
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for _, c := range writesOf(servers[1]) {
		bad = len(c.Docs("documents"))
	}
	codes := e.writeCodes(r)
	if len(codes) != bad || bad == 0 || r["n"] != int32(30-bad) || fmt.Sprint(r["errorLabels"]) != "[RetryableWriteError]" {
		t.Errorf("%d failed: %v", bad, r)
	}
	for i, code := range codes {
		if code != int32(wire.HostUnreachable) {
			t.Errorf("statement %d: %d", i, code)
		}
	}
	if n := len(writesOf(servers[1])); n != attempts {
		t.Errorf("sent %d times", n)
	}
	if text := fmt.Sprint(r); strings.Contains(text, "not master") {
		t.Errorf("not cloaked: %s", text)
	}
}

// TestWriteConcernErrors merges as mongos does.
func TestWriteConcernErrors(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 2)
	late := func(c backendtest.Command) backendtest.Answer {
		a := writesDone(c)
		if c.Name == "insert" {
			a.Body = append(a.Body.(bson.D), bson.E{Key: "writeConcernError", Value: d("code", 64, "codeName", "WriteConcernFailed", "errmsg", "waiting timed out", "errInfo", d("wtimeout", true))})
		}
		return a
	}
	servers[0].SetScript(late)
	r, err := e.raw(insertOf(20))
	if err != nil || r["writeConcernError"] == nil || valueOf(r["writeConcernError"], "errmsg") != "waiting timed out at b0" || valueOf(r["writeConcernError"], "errInfo") == nil {
		t.Errorf("%v %v", r, err)
	}
	servers[1].SetScript(late)
	r, err = e.raw(insertOf(20))
	if err != nil || valueOf(r["writeConcernError"], "errmsg") != "waiting timed out at b0 :: and :: waiting timed out at b1" {
		t.Errorf("%v %v", r, err)
	}
}

// TestStandaloneLedger repeats writes at a backend that takes no transaction numbers.
func TestStandaloneLedger(t *testing.T) {
	s := backendtest.New(t)
	s.SetHello(backendtest.Standalone())
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		if _, err := c.Body.LookupErr("txnNumber"); err == nil {
			return backendtest.Err(20, "IllegalOperation", "Transaction numbers are only allowed on a replica set member or mongos")
		}
		if c.Name == "findAndModify" {
			return backendtest.OK(bson.E{Key: "lastErrorObject", Value: d("n", 1, "updatedExisting", true)}, bson.E{Key: "value", Value: d("_id", 1)})
		}
		return writesDone(c)
	})
	e := newWriteEnv(t, map[string]string{"b0": s.URI()})
	update := d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1))), d("q", d("_id", 2), "u", d("$inc", d("n", 1)))})
	modify := d("findAndModify", "c", "query", d("_id", 1), "update", d("$inc", d("n", 1)))
	for i, cmd := range []bson.D{insertOf(3), update, modify} {
		s.Forget()
		first, err := e.raw(retryable(cmd, int64(10+i)))
		if err != nil {
			t.Fatal(cmd, err)
		}
		sent := len(writesOf(s))
		again, err := e.raw(retryable(cmd, int64(10+i)))
		if err != nil || first["n"] != again["n"] || again["retriedStmtIds"] == nil && again["retriedStmtId"] == nil {
			t.Errorf("%v, then %v %v", first, again, err)
		}
		if len(writesOf(s)) != sent || sent == 0 {
			t.Errorf("%v was sent again", cmd[0])
		}
	}
	if _, err := e.raw(retryable(modify, 3)); wire.AsError(err).Code != wire.TransactionTooOld {
		t.Errorf("an old transaction number: %v", err)
	}
	if _, err := e.raw(retryable(modify, 20)); err != nil || len(writesOf(s)) != 2 {
		t.Errorf("a new transaction number: %v", err)
	}
}

// flipped is a collection whose one old home was on b0 and whose two partitions are on b1 and b2.
func (e *writeEnv) flipped(marker bson.Timestamp) (old partition.Home) {
	p, _ := shardkey.ParsePattern(mustMarshal(d("_id", "hashed")))
	ns := e.db + ".c"
	m := &catalog.Map{NS: ns, V: 2, Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID()}
	for i, r := range shardkey.Even(2) {
		m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b" + itoa(i+1), Physical: catalog.PhysicalName("db", "c", 9, 0, i)})
	}
	m.Retired = []catalog.OldHome{{Backend: "b0", Physical: "c@1.0.0", Marker: marker, FlippedAt: time.Now()}}
	next := *e.snap
	next.Maps = map[string]*catalog.Map{ns: m}
	e.snap = &next
	e.table.Apply(e.snap)
	return partition.Home{Backend: "b0", DB: e.db, Physical: "c@1.0.0"}
}

func mustMarshal(doc any) bson.Raw {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return raw
}

// TestRetryAcrossFlip repeats a batch whose first half an old home executed before its last marker (reshape protocol, Retries).
func TestRetryAcrossFlip(t *testing.T) {
	e, servers := scriptEnv(t)
	marker := bson.Timestamp{T: 100, I: 5}
	old := e.flipped(marker)
	var client sessionKey
	copy(client[:], "fedcba9876543210")
	id := derive(client, old)
	// The chain: statements 3 (after the marker), 2 and 1 together, 0.
	chain := map[bson.Timestamp]bson.D{
		{T: 100, I: 6}: d("stmtId", int32(3), "prevOpTime", d("ts", bson.Timestamp{T: 100, I: 4}, "t", int64(1))),
		{T: 100, I: 4}: d("stmtId", bson.A{int32(1), int32(2)}, "prevOpTime", d("ts", bson.Timestamp{T: 100, I: 1}, "t", int64(1))),
		{T: 100, I: 1}: d("stmtId", int32(0), "prevOpTime", d("ts", bson.Timestamp{}, "t", int64(-1))),
	}
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		batch := bson.A{}
		switch c.DB {
		case "config":
			filter := c.Body.Lookup("filter", "_id", "$in", "0").Document()
			_, got := filter.Lookup("id").Binary()
			if level, _ := c.Body.Lookup("readConcern", "level").StringValueOK(); string(got) != string(id[:]) || level != "linearizable" || c.Body.Lookup("maxTimeMS").Int64() <= 0 {
				return backendtest.Err(2, "BadValue", "asked otherwise than the protocol says")
			}
			batch = append(batch, d("_id", filter, "txnNum", int64(7), "lastWriteOpTime", d("ts", bson.Timestamp{T: 100, I: 6}, "t", int64(1))))
		case "local":
			at, inc := c.Body.Lookup("filter", "ts").Timestamp()
			batch = append(batch, chain[bson.Timestamp{T: at, I: inc}])
		default:
			a := writesDone(c)
			ids, _ := c.Body.Lookup("stmtIds").ArrayOK()
			if c.Name == "insert" && ids != nil {
				a.Body = append(a.Body.(bson.D), bson.E{Key: "retriedStmtIds", Value: ids})
			}
			return a
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", batch)})
	})
	r, err := e.raw(retryable(insertOf(6), 7))
	if err != nil || r["n"] != int32(6) {
		t.Fatal(r, err)
	}
	place := map[int32]string{}
	for i, s := range servers {
		for _, c := range writesOf(s) {
			for _, doc := range c.Docs("documents") {
				place[doc.Lookup("_id").Int32()] = fmt.Sprintf("b%d", i)
			}
		}
	}
	for i := range int32(6) {
		if atOld := place[i] == "b0"; atOld != (i < 3) || place[i] == "" {
			t.Errorf("statement %d went to %s", i, place[i])
		}
	}
	if _, err := e.raw(retryable(insertOf(1), 6)); wire.AsError(err).Code != wire.TransactionTooOld {
		t.Errorf("a number below the one on record: %v", err)
	}
	asked := 0
	for _, c := range servers[0].Received() {
		if c.DB == "config" {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the old home was asked %d times", asked)
	}
	if r, err := e.raw(retryable(insertOf(6), 8)); err != nil || r["n"] != int32(6) {
		t.Errorf("a new number: %v %v", r, err)
	}
}

// TestOldHomeThatCannotBeAsked: no write is sent by a guess. A cause that passes is a retryable
// error, which says which home is not to be asked and until when; a server that refuses the
// question gives its own code. Only retryable writes are refused, and only those whose position the
// home held.
func TestOldHomeThatCannotBeAsked(t *testing.T) {
	for _, tt := range []struct {
		what      string
		answer    backendtest.Answer
		code      wire.Code
		retryable bool
	}{
		{"it cannot be reached", backendtest.Err(6, "HostUnreachable", "no"), wire.HostUnreachable, true},
		{"its majority does not confirm", backendtest.Err(50, "MaxTimeMSExpired", "operation exceeded time limit"), wire.HostUnreachable, true},
		{"it is not primary", backendtest.Err(10107, "NotWritablePrimary", "cannot satisfy linearizable read concern on non-primary node"), wire.HostUnreachable, true},
		{"it hangs up", backendtest.Cut(), wire.HostUnreachable, true},
		{"the user may not", backendtest.Err(13, "Unauthorized", "not authorized on config to execute command"), wire.Unauthorized, false},
		{"it knows no such read", backendtest.Err(5557800, "Location5557800", "not supported"), 5557800, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			e, servers := scriptEnv(t)
			e.flipped(bson.Timestamp{T: 1})
			servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
				if c.DB == "config" {
					return tt.answer
				}
				return writesDone(c)
			})
			_, err := e.raw(retryable(insertOf(6), 7))
			we := wire.AsError(err)
			if we == nil || we.Code != tt.code || we.HasLabel(retryableWrite) != tt.retryable {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(we.Message, "former home of "+e.db+".c on backend 'b0'") || !strings.Contains(we.Message, "until 20") || strings.Contains(we.Message, "c@1") {
				t.Errorf("the message is %q", we.Message)
			}
			if n := len(writesOf(servers...)); n != 0 {
				t.Errorf("%d writes were sent", n)
			}
			if r, err := e.raw(insertOf(6)); err != nil || r["n"] != int32(6) {
				t.Errorf("a write that is not retryable: %v %v", r, err)
			}
			status, err := e.run(d("serverStatus", 1))
			passing, refused := valueOf(valueOf(status["shardway"], "retryableWrites"), "refusedUnasked"), valueOf(valueOf(status["shardway"], "retryableWrites"), "refusedByBackend")
			if err != nil || fmt.Sprint(passing != int64(0), refused != int64(0)) != fmt.Sprint(tt.retryable, !tt.retryable) {
				t.Errorf("serverStatus counts %v and %v, %v", passing, refused, err)
			}
		})
	}
}

// TestKeylessRetryElsewhere repeats a write without the key at a proxy that did not choose its document: the home that has it on record answers.
func TestKeylessRetryElsewhere(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 3)
	home := e.table.View().Collection(e.db + ".c").Parts[2].Home
	var client sessionKey
	copy(client[:], "fedcba9876543210")
	id := derive(client, home)
	servers[2].SetScript(func(c backendtest.Command) backendtest.Answer {
		batch := bson.A{}
		switch {
		case c.DB == "config":
			values, _ := c.Body.Lookup("filter", "_id", "$in").Array().Values()
			for _, v := range values {
				if _, got := v.Document().Lookup("id").Binary(); string(got) == string(id[:]) {
					batch = append(batch, d("_id", v, "txnNum", int64(4), "lastWriteOpTime", d("ts", bson.Timestamp{T: 9}, "t", int64(1))))
				}
			}
		case c.DB == "local":
			batch = append(batch, d("stmtId", int32(0), "prevOpTime", d("ts", bson.Timestamp{}, "t", int64(-1))))
		default:
			return writesDone(c)
		}
		return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", batch)})
	})
	r, err := e.raw(retryable(d("update", "c", "updates", bson.A{d("q", d("x", 1), "u", d("$set", d("x", 2)))}), 4))
	if err != nil || r["n"] != int32(1) {
		t.Fatal(r, err)
	}
	if len(writesOf(servers[0], servers[1])) != 0 || len(writesOf(servers[2])) != 1 {
		t.Error("it did not go to the home that has it on record")
	}
}

// TestMessageLimit fills a client's message so that what the proxy adds would push it over the limit: it goes as two.
func TestMessageLimit(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 1)
	pad := strings.Repeat("x", 15_999_000)
	docs := wire.Sequence{Identifier: "documents"}
	for range 3 {
		docs.Docs = append(docs.Docs, mustMarshal(d("pad", pad))...)
	}
	r, err := e.raw(retryable(d("insert", "c"), 1), docs)
	if err != nil || r["n"] != int32(3) {
		t.Fatal(r, err)
	}
	var ids []string
	for _, c := range writesOf(servers[0]) {
		if len(c.Message) > maxMessageBytes {
			t.Errorf("a message of %d bytes", len(c.Message))
		}
		raw, err := c.Body.LookupErr("stmtIds")
		ids = append(ids, fmt.Sprint(len(c.Docs("documents")), " ", raw, " ", err != nil))
	}
	if len(ids) != 2 || !strings.HasPrefix(ids[0], "2 ") || !strings.HasSuffix(ids[0], "true") || !strings.HasPrefix(ids[1], "1 ") || !strings.Contains(ids[1], `"2"`) {
		t.Errorf("messages %v", ids)
	}
}
