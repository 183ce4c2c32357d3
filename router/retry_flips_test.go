package router

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// recorded is what a home has on record of the test's session: statements with the times at which they were executed.
type recorded struct {
	home partition.Home
	txn  int64
	// at has, by statement, the increment of its oplog entry's time.
	at map[int32]uint32
}

// answer is a script of a server that has records: it answers questions about them, and repeated statements as mongod does.
func (rec recorded) answer(c backendtest.Command) backendtest.Answer {
	id := derive(clientOf("fedcba9876543210"), rec.home)
	batch := bson.A{}
	stmts := make([]int32, 0, len(rec.at))
	for s := range rec.at {
		stmts = append(stmts, s)
	}
	slices.SortFunc(stmts, func(a, b int32) int { return int(rec.at[b]) - int(rec.at[a]) }) // the newest first
	switch c.DB {
	case "config":
		values, _ := c.Body.Lookup("filter", "_id", "$in").Array().Values()
		for _, v := range values {
			if _, got := v.Document().Lookup("id").Binary(); string(got) == string(id[:]) && len(stmts) > 0 {
				batch = append(batch, d("_id", v, "txnNum", rec.txn, "lastWriteOpTime", d("ts", bson.Timestamp{T: 100, I: rec.at[stmts[0]]}, "t", int64(1))))
			}
		}
	case "local":
		_, inc := c.Body.Lookup("filter", "ts").Timestamp()
		for i, s := range stmts {
			if rec.at[s] != inc {
				continue
			}
			prev := d("ts", bson.Timestamp{}, "t", int64(-1))
			if i+1 < len(stmts) {
				prev = d("ts", bson.Timestamp{T: 100, I: rec.at[stmts[i+1]]}, "t", int64(1))
			}
			batch = append(batch, d("stmtId", s, "prevOpTime", prev))
		}
	default:
		if c.Name == "findAndModify" {
			return backendtest.OK(bson.E{Key: "lastErrorObject", Value: d("n", 1, "updatedExisting", true)}, bson.E{Key: "value", Value: d("_id", 1)})
		}
		return writesDone(c)
	}
	return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", batch)})
}

func clientOf(id string) (k sessionKey) {
	copy(k[:], id)
	return k
}

// flippedTwice is a collection that was on b0, then on b1 and is on b2.
func (e *writeEnv) flippedTwice(key string, first, second bson.Timestamp) (homes [2]partition.Home) {
	p, _ := shardkey.ParsePattern(mustMarshal(d(key, "hashed")))
	whole := shardkey.Even(1)[0]
	m := &catalog.Map{NS: e.db + ".c", V: 3, Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID(),
		Partitions: []catalog.Partition{{Range: whole, Backend: "b2", Physical: "c@3.0.0"}},
		Retired: []catalog.OldHome{
			{Range: whole, Backend: "b1", Physical: "c@2.0.0", Marker: second, FlippedAt: time.Now()},
			{Range: whole, Backend: "b0", Physical: "c@1.0.0", Marker: first, FlippedAt: time.Now().Add(-time.Minute)},
		}}
	e.apply(m)
	return [2]partition.Home{{Backend: "b0", DB: e.db, Physical: "c@1.0.0"}, {Backend: "b1", DB: e.db, Physical: "c@2.0.0"}}
}

// TestRetryOverTwoFlips repeats a batch at a proxy that saw nothing of it. Each statement is answered by the home that executed it before its last marker, and applied
// at the newest home where none did, were it on record after a marker (reshape protocol, Retries).
func TestRetryOverTwoFlips(t *testing.T) {
	e, servers := scriptEnv(t)
	homes := e.flippedTwice("_id", bson.Timestamp{T: 100, I: 5}, bson.Timestamp{T: 100, I: 15})
	servers[0].SetScript(recorded{homes[0], 7, map[int32]uint32{0: 1, 1: 5, 2: 6}}.answer)    // 2 came after the marker,
	servers[1].SetScript(recorded{homes[1], 7, map[int32]uint32{2: 11, 3: 15, 4: 16}}.answer) // and was applied here; 4 came after this one's
	want := map[int32]string{0: "b0", 1: "b0", 2: "b1", 3: "b1", 4: "b2", 5: "b2"}
	update := d("update", "c", "updates", func() (a bson.A) {
		for i := range 6 {
			a = append(a, d("q", d("_id", i), "u", d("$inc", d("n", 1))))
		}
		return a
	}(), "ordered", false)
	for _, cmd := range []bson.D{insertOf(6), update} {
		for _, s := range servers {
			s.Forget()
		}
		r, err := e.raw(retryable(cmd, 7))
		if err != nil || r["n"] != int32(6) {
			t.Fatal(r, err)
		}
		got := map[int32]string{}
		for i, s := range servers {
			for _, c := range writesOf(s) {
				_, id := c.Body.Lookup("lsid", "id").Binary()
				home := e.table.View().Collection(e.db + ".c").Parts[0].Home
				if i < 2 {
					home = homes[i]
				}
				if derived := derive(clientOf("fedcba9876543210"), home); string(id) != string(derived[:]) || c.Body.Lookup(c.Name).StringValue() != home.Physical {
					t.Errorf("b%d was sent %v", i, c.Body)
				}
				ids, _ := c.Body.Lookup("stmtIds").ArrayOK()
				values, _ := ids.Values()
				for j := range c.Docs(cmd[1].Key) {
					stmt := int32(j)
					if len(values) > 0 {
						stmt = values[j].Int32()
					}
					if got[stmt] != "" {
						t.Errorf("statement %d went to %s and b%d", stmt, got[stmt], i)
					}
					got[stmt] = fmt.Sprintf("b%d", i)
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", cmd[0].Key, got, want)
		}
	}
	for _, n := range []int64{6, 3} {
		_, err := e.raw(retryable(insertOf(1), n))
		wantCode(t, "an older number", err, wire.TransactionTooOld)
	}
	for _, s := range servers {
		s.Forget()
	}
	if _, err := e.raw(retryable(insertOf(3), 8)); err != nil || len(writesOf(servers[0], servers[1])) > 0 || len(writesOf(servers[2])) != 1 {
		t.Errorf("a newer number: %v", err)
	}
	for i, s := range servers[:2] {
		if n := len(s.Received()); n != 0 {
			t.Errorf("b%d was asked again: %d messages", i, n)
		}
	}
}

// TestModifyOverTwoFlips does the same with findAndModify, by the key and without it, executed by either old home, too late, or never.
func TestModifyOverTwoFlips(t *testing.T) {
	for _, tt := range []struct {
		what       string
		home       int
		inc        uint32
		want       string
		wantByScan string // without the key the document is found first, and there is none
	}{
		{"before the first flip", 0, 5, "b0", "b0"},
		{"too late for the first flip", 0, 6, "b2", ""},
		{"between the flips", 1, 15, "b1", "b1"},
		{"too late for the second flip", 1, 16, "b2", ""},
		{"never", 0, 0, "b2", ""},
	} {
		for _, query := range []bson.D{d("k", 1), d("x", 1)} {
			e, servers := scriptEnv(t)
			homes := e.flippedTwice("k", bson.Timestamp{T: 100, I: 5}, bson.Timestamp{T: 100, I: 15})
			for i := range 2 {
				rec := recorded{home: homes[i], txn: 4}
				if i == tt.home && tt.inc > 0 {
					rec.at = map[int32]uint32{0: tt.inc}
				}
				servers[i].SetScript(rec.answer)
			}
			servers[2].SetScript(recorded{home: e.table.View().Collection(e.db + ".c").Parts[0].Home}.answer)
			if _, err := e.raw(retryable(d("findAndModify", "c", "query", query, "update", d("$inc", d("n", 1))), 4)); err != nil {
				t.Fatal(tt.what, err)
			}
			got := ""
			for i, s := range servers {
				for range writesOf(s) {
					got += fmt.Sprintf("b%d", i)
				}
			}
			want := tt.want
			if query[0].Key == "x" && tt.wantByScan == "" {
				want = "b2" // the search's update is judged there
			}
			if got != want {
				t.Errorf("%s, by %s: went to %q, want %q", tt.what, query[0].Key, got, want)
			}
		}
	}
}

// TestOldHomesThatCannotAnswer: an old home whose oplog has lost what its session did refuses the repetition of that alone, and one that has left the fleet, which it may after the
// retry window, nothing.
func TestOldHomesThatCannotAnswer(t *testing.T) {
	e, servers := scriptEnv(t)
	homes := e.flippedTwice("_id", bson.Timestamp{T: 100, I: 5}, bson.Timestamp{T: 100, I: 15})
	lost := recorded{homes[0], 7, map[int32]uint32{0: 1}}
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.DB == "local" {
			return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{})})
		}
		return lost.answer(c)
	})
	servers[1].SetScript(recorded{homes[1], -1, nil}.answer)
	_, err := e.raw(retryable(insertOf(1), 7))
	wantCode(t, "the number that is on record", err, wire.IncompleteTransactionHistory)
	if _, err := e.raw(retryable(insertOf(1), 8)); err != nil {
		t.Errorf("a newer number: %v", err)
	}
	b := e.router.cfg.Backends.Get("b0")
	e.router.cfg.Backends.Remove("b0")
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	if _, err := e.raw(retryable(insertOf(1), 7)); err != nil {
		t.Errorf("the old home has left: %v", err)
	}
}

// TestRetryAfterManyReplaced: of a collection that was dropped with many partitions, and made anew, all old homes are asked with one query, once while the session goes on, and the one that executed
// a repeated write answers it.
func TestRetryAfterManyReplaced(t *testing.T) {
	e, servers := scriptEnv(t)
	p, _ := shardkey.ParsePattern(mustMarshal(d("_id", "hashed")))
	m := &catalog.Map{NS: e.db + ".c", V: 3, Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID(),
		Partitions: []catalog.Partition{{Range: shardkey.Even(1)[0], Backend: "b2", Physical: "c@3.0.0"}}}
	for i := range 2 * fewHomes {
		m.Retired = append(m.Retired, catalog.OldHome{Backend: "b0", Physical: catalog.PhysicalName("db", "c", 1, 0, i), Marker: bson.Timestamp{T: 100, I: 5}, FlippedAt: time.Now()})
	}
	e.apply(m)
	executedAt := partition.Home{Backend: "b0", DB: e.db, Physical: m.Retired[fewHomes].Physical}
	servers[0].SetScript(recorded{executedAt, 7, map[int32]uint32{0: 1}}.answer)
	asked := func() (n int) {
		for _, c := range servers[0].Received() {
			if c.DB != "config" {
				continue
			}
			n++
			if ids, _ := c.Body.Lookup("filter", "_id", "$in").Array().Values(); len(ids) != len(m.Retired) {
				t.Errorf("%d homes were asked with one query, want %d", len(ids), len(m.Retired))
			}
		}
		return n
	}
	if _, err := e.raw(retryable(insertOf(1), 8)); err != nil || asked() != 1 || len(writesOf(servers[2])) != 1 {
		t.Fatalf("a new number: %v, asked %d times", err, asked())
	}
	for n := int64(9); n < 12; n++ {
		if _, err := e.raw(retryable(insertOf(1), n)); err != nil || asked() != 1 {
			t.Errorf("number %d: %v, asked %d times", n, err, asked())
		}
	}
	servers[2].Forget()
	if _, err := e.raw(retryable(insertOf(1), 7)); err != nil || asked() != 2 {
		t.Fatalf("repeated: %v, asked %d times", err, asked())
	}
	at := writesOf(servers[0])
	if len(at) != 1 || at[0].Body.Lookup("insert").StringValue() != executedAt.Physical || len(writesOf(servers[2])) != 0 {
		t.Errorf("repeated: %v went to the old homes, %v to the new one", at, writesOf(servers[2]))
	}
	_, err := e.raw(retryable(insertOf(1), 6))
	wantCode(t, "an older number", err, wire.TransactionTooOld)
}
