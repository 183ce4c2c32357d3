package router

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// inTxn makes a command a statement of transaction n of the test's session.
func inTxn(n int64, first bool, cmd bson.D, more ...bson.E) bson.D {
	cmd = append(slices.Clone(cmd), bson.E{Key: "lsid", Value: testSession}, bson.E{Key: "txnNumber", Value: n}, bson.E{Key: "autocommit", Value: false})
	if first {
		cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	}
	return append(cmd, more...)
}

// admin runs a command on the database admin.
func (e *writeEnv) admin(cmd bson.D) (bson.M, error) {
	e.t.Helper()
	db := e.db
	e.db = "admin"
	defer func() { e.db = db }()
	return e.raw(cmd)
}

func (e *writeEnv) end(name string, n int64, more ...bson.E) (bson.M, error) {
	e.t.Helper()
	return e.admin(inTxn(n, false, d(name, 1), more...))
}

func wantCode(t *testing.T, what string, err error, code wire.Code, labels ...string) {
	t.Helper()
	e := wire.AsError(err)
	if e == nil || e.Code != code || !slices.Equal(e.Labels, labels) && len(e.Labels)+len(labels) > 0 {
		t.Errorf("%s: %v (labels %v), want %d %v", what, err, labelsOf(e), code, labels)
	}
}

func labelsOf(e *wire.Error) []string {
	if e == nil {
		return nil
	}
	return e.Labels
}

// sent are the commands of a server that belong to a transaction.
func sent(s *backendtest.Server) (out []backendtest.Command) {
	for _, c := range s.Received() {
		if _, err := c.Body.LookupErr("autocommit"); err == nil {
			out = append(out, c)
		}
	}
	return out
}

func names(cmds []backendtest.Command) (out []string) {
	for _, c := range cmds {
		out = append(out, c.Name)
	}
	return out
}

// TestTransactionMessages checks field by field what a backend is sent: the client's own session and number, startTransaction and the read concern once.
func TestTransactionMessages(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 6)
	a := e.on("c", "b1", 0)
	concern := bson.E{Key: "readConcern", Value: d("level", "snapshot")}
	reply, err := e.raw(inTxn(5, true, d("find", "c", "filter", d("_id", a)), concern))
	if err != nil {
		t.Fatal(err)
	}
	if got := valueOf(reply["recoveryToken"], "recoveryShardId"); got != "b1" {
		t.Errorf("recoveryToken %v", reply["recoveryToken"])
	}
	other := a
	for e.partOf("c", other) == e.partOf("c", a) {
		other = e.on("c", "b1", other)
	}
	both := d("insert", "c", "documents", bson.A{d("_id", a), d("_id", other)}, "ordered", false)
	if reply, err = e.raw(inTxn(5, false, both)); err != nil || reply["n"] != int32(2) {
		t.Fatal(reply, err)
	}
	if _, err = e.end("commitTransaction", 5, bson.E{Key: "writeConcern", Value: d("w", "majority")}); err != nil {
		t.Fatal(err)
	}
	got := sent(servers[1])
	if fmt.Sprint(names(got)) != "[find insert insert commitTransaction]" || len(sent(servers[0]))+len(sent(servers[2])) > 0 {
		t.Fatalf("sent %v", names(got))
	}
	for i, c := range got {
		_, id := c.Body.Lookup("lsid", "id").Binary()
		_, starts := c.Body.LookupErr("startTransaction")
		_, concern := c.Body.LookupErr("readConcern")
		_, ids := c.Body.LookupErr("stmtIds")
		if string(id) != "fedcba9876543210" || c.Body.Lookup("txnNumber").Int64() != 5 || c.Body.Lookup("autocommit").Boolean() ||
			(starts == nil) != (i == 0) || (concern == nil) != (i == 0) || ids == nil {
			t.Errorf("%d: %v", i, c.Body)
		}
	}
	last := got[3]
	if last.DB != "admin" || last.Body.Lookup("writeConcern", "w").StringValue() != "majority" {
		t.Errorf("%v", last.Body)
	}
	e.settled()
	// A commit is repeated as it was.
	if _, err = e.end("commitTransaction", 5); err != nil || len(sent(servers[1])) != 5 {
		t.Errorf("repeated: %v, %d messages", err, len(sent(servers[1])))
	}
	_, err = e.raw(inTxn(5, false, both))
	wantCode(t, "a statement after the commit", err, wire.TransactionCommitted)
}

// TestTransactionFields refuses what mongos refuses, and leaves the transaction that is open alone.
func TestTransactionFields(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	a := e.on("c", "b0", 0)
	find := d("find", "c", "filter", d("_id", a))
	if _, err := e.raw(inTxn(5, true, find)); err != nil {
		t.Fatal(err)
	}
	with := func(key string, v any) bson.E { return bson.E{Key: key, Value: v} }
	for _, tt := range []struct {
		what  string
		cmd   bson.D
		code  wire.Code
		label string
	}{
		{"an older number", inTxn(4, false, find), wire.TransactionTooOld, ""},
		{"an older number that starts", inTxn(4, true, find), wire.TransactionTooOld, ""},
		{"the same number started again", inTxn(5, true, find), wire.ConflictingOperationInProgress, ""},
		{"a number that was not started", inTxn(6, false, find), wire.NoSuchTransaction, transientTransaction},
		{"count", inTxn(5, false, d("count", "c")), wire.OperationNotSupportedInTransaction, ""},
		{"createIndexes", inTxn(5, false, d("createIndexes", "c", "indexes", bson.A{})), wire.OperationNotSupportedInTransaction, ""},
		{"$out", inTxn(5, false, d("aggregate", "c", "cursor", d(), "pipeline", bson.A{d("$out", "x")})), wire.OperationNotSupportedInTransaction, ""},
		{"$currentOp", inTxn(5, false, d("aggregate", 1, "cursor", d(), "pipeline", bson.A{d("$currentOp", d())})), wire.OperationNotSupportedInTransaction, ""},
		{"a late readConcern", inTxn(5, false, find, with("readConcern", d("level", "local"))), wire.InvalidOptions, ""},
		{"a readConcern of another level", inTxn(6, true, find, with("readConcern", d("level", "available"))), wire.InvalidOptions, ""},
		{"a writeConcern", inTxn(5, false, insertOf(1), with("writeConcern", d("w", 1))), wire.InvalidOptions, ""},
		{"a read preference", inTxn(5, false, find, with("$readPreference", d("mode", "secondary"))), wire.InvalidOptions, ""},
		{"startTransaction: false", inTxn(5, false, find, with("startTransaction", false)), wire.InvalidOptions, ""},
		{"getMore first", inTxn(6, true, d("getMore", int64(1), "collection", "c")), wire.OperationNotSupportedInTransaction, ""},
		{"killCursors first", inTxn(6, true, d("killCursors", "c", "cursors", bson.A{})), wire.OperationNotSupportedInTransaction, ""},
		{"no number", append(slices.Clone(find), with("lsid", testSession), with("autocommit", false)), wire.InvalidOptions, ""},
		{"autocommit: true", append(retryable(find, 5), with("autocommit", true)), wire.InvalidOptions, ""},
		{"a number on a read", retryable(find, 5), 50768, ""},
	} {
		_, err := e.raw(tt.cmd)
		if tt.label != "" {
			wantCode(t, tt.what, err, tt.code, tt.label)
		} else {
			wantCode(t, tt.what, err, tt.code)
		}
	}
	_, err := e.raw(inTxn(5, false, d("commitTransaction", 1)))
	wantCode(t, "commit elsewhere than on admin", err, wire.Unauthorized)
	_, err = e.admin(inTxn(6, true, d("commitTransaction", 1)))
	wantCode(t, "commit first", err, wire.OperationNotSupportedInTransaction)
	_, err = e.admin(d("commitTransaction", 1))
	wantCode(t, "commit without a transaction", err, wire.CommandFailed)
	if _, err := e.raw(inTxn(5, false, find)); err != nil {
		t.Errorf("the transaction did not outlive that: %v", err)
	}
	if got := fmt.Sprint(names(sent(servers[0]))); got != "[find find]" {
		t.Errorf("sent %s", got)
	}
	// A newer number, of a transaction or of a retryable write, ends it.
	if _, err := e.raw(retryable(d("insert", "c", "documents", bson.A{d("_id", a)}), 7)); err != nil {
		t.Fatal(err)
	}
	e.settled()
	if got := fmt.Sprint(names(sent(servers[0]))); got != "[find find abortTransaction]" {
		t.Errorf("sent %s", got)
	}
	_, err = e.raw(inTxn(5, false, find))
	wantCode(t, "a statement after the abort", err, wire.NoSuchTransaction, transientTransaction)
	_, err = e.end("commitTransaction", 5)
	wantCode(t, "a commit after the abort", err, wire.NoSuchTransaction, transientTransaction)
	_, err = e.end("abortTransaction", 5)
	wantCode(t, "an abort after the abort", err, wire.NoSuchTransaction, transientTransaction)
}

// TestTransactionErrors: an error of a statement ends the transaction, with the label that asks for a repetition where a server gives it.
func TestTransactionErrors(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	a := e.on("c", "b0", 0)
	insert := d("insert", "c", "documents", bson.A{d("_id", a)})
	n := int64(0)
	for _, tt := range []struct {
		what   string
		answer backendtest.Answer
		code   wire.Code
		label  string
	}{
		{"a write conflict", backendtest.Err(112, "WriteConflict", "x", "TransientTransactionError"), 112, transientTransaction},
		{"an election", backendtest.Err(10107, "NotWritablePrimary", "not master"), wire.HostUnreachable, transientTransaction},
		{"a lost connection", backendtest.Cut(), wire.HostUnreachable, transientTransaction},
		{"no such transaction", backendtest.Err(251, "NoSuchTransaction", "x"), 251, transientTransaction},
		{"a bad value", backendtest.Err(2, "BadValue", "x"), 2, ""},
	} {
		n++
		servers[0].Forget()
		servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
			if c.Name == "insert" {
				return tt.answer
			}
			return writesDone(c)
		})
		_, err := e.raw(inTxn(n, true, insert))
		if tt.label == "" {
			wantCode(t, tt.what, err, tt.code)
		} else {
			wantCode(t, tt.what, err, tt.code, tt.label)
		}
		if got := fmt.Sprint(names(sent(servers[0]))); got != "[insert abortTransaction]" {
			t.Errorf("%s: sent %s", tt.what, got)
		}
		e.settled()
		_, err = e.end("commitTransaction", n)
		wantCode(t, tt.what+", commit", err, wire.NoSuchTransaction, transientTransaction)
	}
	// Write errors come as such, and end it too.
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "insert" {
			return backendtest.OK(bson.E{Key: "n", Value: 0}, bson.E{Key: "writeErrors", Value: bson.A{d("index", 0, "code", 11000, "errmsg", "E11000")}})
		}
		return writesDone(c)
	})
	reply, err := e.raw(inTxn(50, true, insert))
	if err != nil || e.writeCodes(reply)[0] != 11000 {
		t.Errorf("%v %v", reply, err)
	}
	_, err = e.end("commitTransaction", 50)
	wantCode(t, "commit after a write error", err, wire.NoSuchTransaction, transientTransaction)
}

// TestTransactionCutCommit: a commit whose reply is lost is undecided; its gates stay held until a repetition is answered.
func TestTransactionCutCommit(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	a := e.on("c", "b0", 0)
	gate := e.table.View().Collection(e.db + ".c").Parts[0].Gate()
	var down atomic.Bool
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "commitTransaction" && down.Load() {
			return backendtest.Cut()
		}
		return writesDone(c)
	})
	insert := d("insert", "c", "documents", bson.A{d("_id", a)})
	// One lost reply is made good by the proxy itself.
	if _, err := e.raw(inTxn(1, true, insert)); err != nil {
		t.Fatal(err)
	}
	if gate.Transactions() != 1 {
		t.Fatal("the gate is not held")
	}
	down.Store(true)
	_, err := e.end("commitTransaction", 1)
	wantCode(t, "cut", err, wire.HostUnreachable, retryableWrite)
	if n := len(sent(servers[0])); n < 1+endAttempts {
		t.Errorf("%d messages", n)
	}
	if gate.Transactions() != 1 || !e.router.TransactionsUndecided("b0") || e.router.TransactionsUndecided("b1") {
		t.Error("an undecided commit holds nothing")
	}
	if e.router.AbortTransactionsOn([]partition.Home{gate.Home()}, "x") != 0 {
		t.Error("an undecided commit was aborted")
	}
	_, err = e.end("abortTransaction", 1)
	wantCode(t, "abort after commit", err, wire.TransactionCommitted)
	down.Store(false)
	e.settled() // by the proxy, without its client
	if _, err := e.end("commitTransaction", 1); err != nil {
		t.Errorf("repeated: %v", err)
	}
	for _, c := range sent(servers[0]) {
		if c.Name == "abortTransaction" {
			t.Error("a cut commit was aborted")
		}
	}
}

// TestTransactionElsewhere commits through a proxy that does not know the transaction.
func TestTransactionElsewhere(t *testing.T) {
	e, servers := scriptEnv(t)
	token := bson.E{Key: "recoveryToken", Value: d("recoveryShardId", "b2")}
	reply, err := e.end("commitTransaction", 9, token)
	if err != nil || valueOf(reply["recoveryToken"], "recoveryShardId") != "b2" {
		t.Errorf("%v %v", reply, err)
	}
	got := sent(servers[2])
	if len(got) != 1 || got[0].Name != "commitTransaction" || got[0].Body.Lookup("txnNumber").Int64() != 9 {
		t.Errorf("sent %v", names(got))
	}
	servers[2].SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Err(251, "NoSuchTransaction", "x") })
	_, err = e.end("commitTransaction", 9, token)
	wantCode(t, "unknown there", err, wire.NoSuchTransaction, transientTransaction)
	_, err = e.end("commitTransaction", 9)
	wantCode(t, "no token", err, 50940)
	_, err = e.end("commitTransaction", 9, bson.E{Key: "recoveryToken", Value: d()})
	wantCode(t, "an empty token", err, wire.NoSuchTransaction, transientTransaction)
	_, err = e.end("abortTransaction", 9)
	wantCode(t, "abort", err, wire.NoSuchTransaction, transientTransaction)
}

// TestTransactionMeetsNoFlip: a statement passes a closed gate that its transaction holds, and waits at others; partitions born later are 246.
func TestTransactionMeetsNoFlip(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 6)
	a := e.on("c", "b0", 0)
	b := a
	for e.partOf("c", b) == e.partOf("c", a) {
		b = e.on("c", "b0", b)
	}
	find := func(id int) bson.D { return d("find", "c", "filter", d("_id", id)) }
	if _, err := e.raw(inTxn(1, true, find(a))); err != nil {
		t.Fatal(err)
	}
	ns := e.db + ".c"
	c := e.table.View().Collection(ns)
	home := func(id int) partition.Home {
		pos, _ := c.Key.Position(mustMarshal(d("_id", id)))
		return c.At(pos).Home
	}
	e.table.Close(ns, []partition.Home{home(a), home(b)}, 2, partition.ClosedAll)
	if _, err := e.raw(inTxn(1, false, find(a))); err != nil {
		t.Errorf("through the closed gate: %v", err)
	}
	waited := make(chan error, 1)
	go func() { _, err := e.raw(inTxn(1, false, find(b))); waited <- err }()
	select {
	case err := <-waited:
		t.Fatalf("a gate that it does not hold did not stop it: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	// The other partition is replaced: nothing of it may be seen by what began before.
	next := *c.Map
	next.V, next.Partitions = 2, slices.Clone(c.Map.Partitions)
	for i := range next.Partitions {
		if next.Partitions[i].Physical == home(b).Physical {
			next.Partitions[i].Physical = catalog.PhysicalName("db", "c", 77, 0, 0)
		}
	}
	e.apply(&next)
	wantCode(t, "a partition born later", <-waited, wire.SnapshotUnavailable, transientTransaction)
	e.settled()
	if got := fmt.Sprint(names(sent(servers[0]))); got != "[find find abortTransaction]" {
		t.Errorf("sent %s", got)
	}
	if _, err := e.raw(inTxn(2, true, find(b))); err != nil {
		t.Errorf("run again: %v", err)
	}
	// Whoever needs the home aborts it.
	if n := e.router.AbortTransactionsOn([]partition.Home{home(a)}, "a split has waited for it"); n != 0 {
		t.Errorf("%d aborted that never touched it", n)
	}
	if n := e.router.AbortTransactionsOn([]partition.Home{{Backend: "b0", DB: e.db, Physical: catalog.PhysicalName("db", "c", 77, 0, 0)}}, "a split has waited for it"); n != 1 {
		t.Errorf("%d aborted", n)
	}
	e.settled()
	_, err := e.end("commitTransaction", 2)
	wantCode(t, "commit of an aborted one", err, wire.NoSuchTransaction, transientTransaction)
	// So does a lost lease.
	if _, err := e.raw(inTxn(3, true, find(b))); err != nil {
		t.Fatal(err)
	}
	e.router.LeaseLost(e.ctx, "b1")
	if e.router.Transactions() != 1 {
		t.Error("another backend's lease")
	}
	e.router.LeaseLost(e.ctx, "b0")
	e.settled()
	_, err = e.raw(inTxn(3, false, find(b)))
	wantCode(t, "after a lost lease", err, wire.NoSuchTransaction, transientTransaction)
}

// apply makes m the newest map of its namespace.
func (e *writeEnv) apply(m *catalog.Map) {
	next := *e.snap
	next.Maps = map[string]*catalog.Map{}
	for k, v := range e.snap.Maps {
		next.Maps[k] = v
	}
	next.Maps[m.NS] = m
	e.snap = &next
	e.table.Apply(e.snap)
}

// TestTransactionEnds: a transaction is aborted when its client's connection, its session or its time is over, and while a statement runs too.
func TestTransactionEnds(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	a := e.on("c", "b0", 0)
	find := d("find", "c", "filter", d("_id", a))
	n := int64(0)
	begun := func() {
		t.Helper()
		n++
		servers[0].Forget()
		if _, err := e.raw(inTxn(n, true, find)); err != nil {
			t.Fatal(err)
		}
	}
	aborted := func(what string) {
		t.Helper()
		e.settled()
		if got := fmt.Sprint(names(sent(servers[0]))); got != "[find abortTransaction]" {
			t.Errorf("%s: sent %s", what, got)
		}
		_, err := e.raw(inTxn(n, false, find))
		wantCode(t, what, err, wire.NoSuchTransaction, transientTransaction)
	}
	begun()
	if _, err := e.raw(d("killSessions", bson.A{testSession})); err != nil {
		t.Fatal(err)
	}
	aborted("a killed session")
	begun()
	if _, err := e.raw(d("endSessions", bson.A{testSession})); err != nil {
		t.Fatal(err)
	}
	aborted("an ended session")
	e.router.cfg.TransactionLifetime = 20 * time.Millisecond
	begun()
	aborted("a transaction that is too old")
	e.router.cfg.TransactionLifetime = 0
	// While a statement runs.
	running := make(chan struct{})
	servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "find" {
			close(running)
			return backendtest.Answer{Silent: true}
		}
		return writesDone(c)
	})
	n++
	failed := make(chan error, 1)
	go func() { _, err := e.raw(inTxn(n, true, find)); failed <- err }()
	<-running
	home := e.table.View().Collection(e.db + ".c").Parts[0].Home
	if e.router.AbortTransactionsOn([]partition.Home{home}, "a split has waited for it") != 1 {
		t.Error("not aborted")
	}
	wantCode(t, "the statement that ran", <-failed, wire.NoSuchTransaction, transientTransaction)
	e.settled()
}

// TestTransactionOnStandalone is refused as a standalone refuses it.
func TestTransactionOnStandalone(t *testing.T) {
	s := backendtest.New(t)
	s.SetHello(backendtest.Standalone())
	e := newWriteEnv(t, map[string]string{"b0": s.URI()})
	_, err := e.raw(inTxn(1, true, d("find", "c", "filter", d("_id", 1))))
	wantCode(t, "find", err, wire.IllegalOperation)
	if len(sent(s)) > 0 {
		t.Errorf("sent %v", names(sent(s)))
	}
}
