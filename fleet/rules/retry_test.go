package rules_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/wire"
)

func rulesServer(t *testing.T, options ...fleettest.Option) *fleet.Server {
	t.Helper()
	s := fleettest.Start(t, 1, append([]fleettest.Option{fleettest.Version(0), fleettest.Durable}, options...)...).Servers[0]
	return s
}

func inc(db string, lsid bson.D, txn int64, ids ...int) []any {
	var updates bson.A
	for _, id := range ids {
		updates = append(updates, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}})
	}
	return []any{"update", "c", "updates", updates, "lsid", lsid, "txnNumber", txn, "$db", db}
}

func counter(c *client, db string, id int) int64 {
	c.t.Helper()
	d, ok := c.must("find", "c", "filter", bson.D{{Key: "_id", Value: id}}, "$db", db).Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok {
		return -1
	}
	n, _ := d.Lookup("n").AsInt64OK()
	return n
}

func retried(reply bson.Raw) string {
	if v, err := reply.LookupErr("retriedStmtId"); err == nil {
		return fmt.Sprint(v.AsInt64())
	}
	arr, ok := reply.Lookup("retriedStmtIds").ArrayOK()
	if !ok {
		return ""
	}
	values, _ := arr.Values()
	var ids []int64
	for _, v := range values {
		ids = append(ids, v.AsInt64())
	}
	return fmt.Sprint(ids)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func restart(t *testing.T, s *fleet.Server) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestARepetitionIsAnsweredFromTheRecord(t *testing.T) {
	s := rulesServer(t)
	c := dialServer(t, s.Addr())
	c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}, "lsid", sessionID(1), "txnNumber", int64(1), "$db", "r")
	writes := []struct {
		name    string
		command []any
		want    string
		n       int64
	}{
		{"insert", []any{"insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 11}}, bson.D{{Key: "_id", Value: 12}}}, "lsid", sessionID(2), "txnNumber", int64(1), "stmtIds", bson.A{int32(4), int32(7)}, "$db", "r"}, "[4 7]", 2},
		{"update", inc("r", sessionID(2), 2, 1, 2), "[0 1]", 2},
		{"update that finds one of two", inc("r", sessionID(2), 3, 99, 1), "[1]", 1},
		{"upsert", []any{"update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 50}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "upsert", Value: true}}},
			"lsid", sessionID(2), "txnNumber", int64(4), "$db", "r"}, "[0]", 1},
		{"delete", []any{"delete", "c", "deletes", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 11}}}, {Key: "limit", Value: 1}}}, "lsid", sessionID(2), "txnNumber", int64(5), "$db", "r"}, "[0]", 1},
		{"findAndModify", []any{"findAndModify", "c", "query", bson.D{{Key: "_id", Value: 1}}, "update", bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, "new", true, "lsid", sessionID(2), "txnNumber", int64(6), "$db", "r"}, "0", -1},
	}
	for _, w := range writes {
		t.Run(w.name, func(t *testing.T) {
			c := dialServer(t, s.Addr())
			first := c.must(w.command...)
			counts := []int64{counter(c, "r", 1), counter(c, "r", 2), counter(c, "r", 50)}
			restart(t, s)
			c = dialServer(t, s.Addr())
			for _, other := range []*client{c, dialServer(t, s.Addr())} {
				again := other.must(w.command...)
				if got := retried(again); got != w.want {
					t.Errorf("repeated statements %q, want %q: %v", got, w.want, again)
				}
				if w.n >= 0 && (again.Lookup("n").AsInt64() != w.n || first.Lookup("n").AsInt64() != w.n) {
					t.Errorf("n is %v and then %v, want %d", first.Lookup("n"), again.Lookup("n"), w.n)
				}
				if w.n < 0 && !again.Lookup("value").Equal(first.Lookup("value")) {
					t.Errorf("the value is %v and then %v", first.Lookup("value"), again.Lookup("value"))
				}
				if a, b := first.Lookup("upserted"), again.Lookup("upserted"); a.String() != b.String() {
					t.Errorf("upserted is %v and then %v", a, b)
				}
			}
			for i, id := range []int{1, 2, 50} {
				if n := counter(c, "r", id); n != counts[i] {
					t.Errorf("document %d has %d after two repetitions, %d before", id, n, counts[i])
				}
			}
		})
	}
}

func TestAnErrorWithinARepeatedBatch(t *testing.T) {
	c := dialServer(t, rulesServer(t).Addr())
	c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 2}}}, "$db", "r")
	batch := func(ordered bool, txn int64) bson.Raw {
		return c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: int(txn) * 10}}, bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: int(txn)*10 + 1}}},
			"ordered", ordered, "lsid", sessionID(1), "txnNumber", txn, "$db", "r")
	}
	for txn, ordered := range []bool{true, false} {
		for try := range 2 {
			reply := batch(ordered, int64(txn+1))
			n, want := int64(1), ""
			if !ordered {
				n = 2
			}
			if try == 1 {
				if want = "[0]"; !ordered {
					want = "[0 2]"
				}
			}
			if reply.Lookup("n").AsInt64() != n || reply.Lookup("writeErrors", "0", "index").AsInt64() != 1 || retried(reply) != want {
				t.Errorf("ordered %v, try %d: %v", ordered, try, reply)
			}
		}
	}
}

func TestARepetitionWaitsForTheFirstTry(t *testing.T) {
	s := rulesServer(t)
	setup := dialServer(t, s.Addr())
	setup.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "$db", "r")
	var wg sync.WaitGroup
	for range 8 {
		c := dialServer(t, s.Addr())
		wg.Go(func() {
			for txn := range int64(30) {
				// Two connections try the same; later numbers may have begun already.
				if _, err := c.try(doc(t, inc("r", sessionID(1), txn, 1)...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := counter(setup, "r", 1); n != 30 {
		t.Errorf("8 clients tried 30 writes each, %d were applied, want 30", n)
	}
}

func TestANewerWriteAbortsTheTransaction(t *testing.T) {
	c := dialServer(t, rulesServer(t).Addr())
	c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "$db", "r")
	c.must(append(inc("r", sessionID(1), 1, 1), "autocommit", false, "startTransaction", true)...)
	c.must(append(inc("r", sessionID(1), 2, 1), "maxTimeMS", 20_000)...) // would wait for the transaction
	if n := counter(c, "r", 1); n != 1 {
		t.Errorf("the document has %d, want 1", n)
	}
	commit := c.run("commitTransaction", 1, "lsid", sessionID(1), "txnNumber", int64(1), "autocommit", false, "$db", "admin")
	if wire.ReplyOK(commit) {
		t.Errorf("the transaction was committed: %v", commit)
	}
}

func TestAChainIsThereAfterANewerWrite(t *testing.T) {
	c := dialServer(t, rulesServer(t).Addr())
	c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "$db", "r")
	c.must(inc("r", sessionID(1), 1, 1)...)
	at := c.must("find", "transactions", "$db", "config").Lookup("cursor", "firstBatch", "0", "lastWriteOpTime", "ts")
	c.must(inc("r", sessionID(1), 2, 1)...)
	entry, ok := c.must("find", "oplog.rs", "filter", bson.D{{Key: "ts", Value: at}}, "$db", "local").Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok || entry.Lookup("txnNumber").AsInt64() != 1 {
		t.Errorf("the log has %v at the time of the first write", entry)
	}
}

// TestKillsCountOnce kills the server and cuts connections while clients with retries of their own
// count: each write is applied once.
func TestKillsCountOnce(t *testing.T) {
	s := rulesServer(t)
	front := fleettest.FrontOf(s)
	if front == nil {
		t.Skip("no rules stand before a mongod")
	}
	c := dialServer(t, s.Addr())
	const clients, rounds = 6, 8
	for id := range clients {
		c.must("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: id}}}, "$db", "r")
	}
	ctx, stop := context.WithCancel(within(t))
	var wg sync.WaitGroup
	acknowledged := make([]int64, clients)
	for id := range clients {
		wg.Go(func() {
			for txn := int64(1); ctx.Err() == nil; txn++ {
				if !retry(within(t), t, s, inc("r", sessionID(byte(id)), txn, id)) {
					return
				}
				acknowledged[id]++
			}
		})
	}
	for round := range rounds {
		time.Sleep(30 * time.Millisecond) // load, not a wait for something
		if round%2 == 0 {
			front.Cut()
			continue
		}
		restart(t, s)
	}
	stop()
	wg.Wait()
	c = dialServer(t, s.Addr())
	for id, want := range acknowledged {
		if n := counter(c, "r", id); n != want || want == 0 {
			t.Errorf("client %d: %d writes acknowledged, %d applied", id, want, n)
		}
	}
}

// retry sends a command until it is answered.
func retry(ctx context.Context, t *testing.T, s *fleet.Server, command []any) bool {
	for ctx.Err() == nil {
		c, err := redial(s)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		reply, err := c.try(doc(t, command...))
		c.conn.Close()
		if err != nil {
			continue
		}
		if !wire.ReplyOK(reply) || reply.Lookup("n").AsInt64() != 1 {
			t.Errorf("answered %v", reply)
			return false
		}
		return true
	}
	t.Error(ctx.Err())
	return false
}

func TestATransactionsEndSurvivesARestart(t *testing.T) {
	s := rulesServer(t)
	c := dialServer(t, s.Addr())
	c.must("create", "c", "$db", "r")
	begin := []any{"insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "lsid", sessionID(1), "txnNumber", int64(3), "autocommit", false, "startTransaction", true, "$db", "r"}
	commit := []any{"commitTransaction", 1, "lsid", sessionID(1), "txnNumber", int64(3), "autocommit", false, "$db", "admin"}
	c.must(begin...)
	c.must(commit...)
	restart(t, s)
	c = dialServer(t, s.Addr())
	c.must(commit...)
	d := c.must("find", "transactions", "filter", bson.D{}, "$db", "config").Lookup("cursor", "firstBatch", "0").Document()
	if state, _ := d.Lookup("state").StringValueOK(); state != "committed" || d.Lookup("txnNum").AsInt64() != 3 {
		t.Errorf("the record is %v", d)
	}
	if reply := c.run(inc("r", sessionID(1), 2, 1)...); reply.Lookup("code").AsInt64() != 225 {
		t.Errorf("a write with an older number than the transaction's: %v", reply)
	}
}

// TestChainsTellTheExactTime compares the times of the records with the server's own log while many
// clients write at once.
func TestChainsTellTheExactTime(t *testing.T) {
	s := rulesServer(t)
	const clients, each = 8, 20
	setup := dialServer(t, s.Addr())
	stream := setup.must("aggregate", 1, "pipeline", bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}, "cursor", bson.D{}, "$db", "admin")
	var wg sync.WaitGroup
	for id := range clients {
		c := dialServer(t, s.Addr())
		wg.Go(func() {
			for txn := range each {
				for part := range 2 {
					body := doc(t, "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: id*1000 + txn*10 + part}}}, "lsid", sessionID(byte(id)),
						"txnNumber", int64(txn), "stmtId", int32(part), "$db", "r")
					if reply, err := c.try(body); err != nil || !wire.ReplyOK(reply) {
						t.Error(reply, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	logged := map[int64]bson.RawValue{}
	next := stream.Lookup("cursor", "id").AsInt64()
	for len(logged) < clients*each*2 {
		batch, _ := setup.must("getMore", next, "collection", "$cmd.aggregate", "$db", "admin").Lookup("cursor", "nextBatch").Array().Values()
		for _, e := range batch {
			logged[e.Document().Lookup("documentKey", "_id").AsInt64()] = e.Document().Lookup("clusterTime")
		}
	}
	records, _ := setup.must("find", "transactions", "filter", bson.D{}, "$db", "config").Lookup("cursor", "firstBatch").Array().Values()
	if len(records) != clients {
		t.Fatalf("%d records, want %d", len(records), clients)
	}
	for _, r := range records {
		_, id, _ := r.Document().Lookup("_id", "id").BinaryOK()
		at := r.Document().Lookup("lastWriteOpTime", "ts")
		for part := int64(1); part >= 0; part-- {
			if want := logged[int64(id[0])*1000+(each-1)*10+part]; !at.Equal(want) {
				t.Errorf("session %d: statement %d was logged at %v, the record says %v", id[0], part, want, at)
			}
			entry, ok := setup.must("find", "oplog.rs", "filter", bson.D{{Key: "ts", Value: at}}, "limit", 1, "singleBatch", true, "$db", "local").Lookup("cursor", "firstBatch", "0").DocumentOK()
			if !ok || entry.Lookup("stmtId").AsInt64() != part || entry.Lookup("txnNumber").AsInt64() != each-1 {
				t.Fatalf("session %d: the log has %v at %v", id[0], entry, at)
			}
			at = entry.Lookup("prevOpTime", "ts")
		}
		if sec, _ := at.Timestamp(); sec != 0 {
			t.Errorf("the chain goes on at %v", at)
		}
	}
}

func redial(s *fleet.Server) (*client, error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), limit)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, from: wire.NewReader(conn)}, nil
}
