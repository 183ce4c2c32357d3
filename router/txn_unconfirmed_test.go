package router

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// noneByMajority is a mongod's answer to a commit of a transaction that it does not know, where it cannot have that confirmed as it was asked to. It has no label.
func noneByMajority() backendtest.Answer {
	return backendtest.Answer{Body: d("ok", 0.0, "errmsg", "Transaction with { txnNumber: 1 } has been aborted.", "code", int32(251), "codeName", "NoSuchTransaction",
		"writeConcernError", d("code", int32(100), "codeName", "UnsatisfiableWriteConcern", "errmsg", "Not enough data-bearing nodes",
			"errInfo", d("writeConcern", d("w", "majority", "wtimeout", int32(0), "provenance", "clientSupplied"))))}
}

// concernOf is the write concern of a command that a backend got.
func concernOf(c backendtest.Command) string {
	w, _ := c.Body.Lookup("writeConcern", "w").StringValueOK()
	return w
}

// TestUnknownTransactionWithoutMajority: "no such transaction" from a primary that cannot have it confirmed is no proof that the transaction is not committed. Its client must not run the
// transaction again, and its gates stay held until a majority says the same.
func TestUnknownTransactionWithoutMajority(t *testing.T) {
	for _, final := range []string{"no such transaction", "committed"} {
		t.Run(final, func(t *testing.T) {
			e, servers := scriptEnv(t)
			e.shard("c", "_id", 3)
			a := e.on("c", "b0", 0)
			gate := e.table.View().Collection(e.db + ".c").Parts[0].Gate()
			var healed atomic.Bool
			servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
				switch {
				case c.Name != "commitTransaction" && c.Name != "abortTransaction":
					return writesDone(c)
				case !healed.Load():
					return noneByMajority()
				case final == "committed" && c.Name == "commitTransaction":
					return backendtest.OK()
				}
				return backendtest.Err(251, "NoSuchTransaction", "x", transientTransaction)
			})
			insert := d("insert", "c", "documents", bson.A{d("_id", a)})
			if _, err := e.raw(inTxn(1, true, insert)); err != nil {
				t.Fatal(err)
			}
			majority := bson.E{Key: "writeConcern", Value: d("w", "majority")}
			for range 2 {
				_, err := e.end("commitTransaction", 1, majority)
				wantCode(t, "commit", err, wire.NoSuchTransaction)
				if code, ok := wire.AsError(err).WriteConcernCode(); !ok || code != wire.UnsatisfiableWriteConcern {
					t.Errorf("the client is not told of the write concern: %v", err)
				}
				if gate.Transactions() != 1 || !e.router.TransactionsUndecided("b0") {
					t.Error("the commit is undecided, and its gate was left")
				}
			}
			_, err := e.end("abortTransaction", 1)
			wantCode(t, "abort after commit", err, wire.TransactionCommitted)
			healed.Store(true)
			e.settled()
			_, err = e.end("commitTransaction", 1, majority)
			if final == "committed" {
				if err != nil {
					t.Errorf("the commit, once it is known: %v", err)
				}
			} else {
				wantCode(t, "the commit, once it is known to have failed", err, wire.NoSuchTransaction, transientTransaction)
			}
			for _, c := range sent(servers[0]) {
				if c.Name == "abortTransaction" {
					t.Error("a commit that may have succeeded was aborted")
				}
				if c.Name == "commitTransaction" && concernOf(c) != "majority" {
					t.Errorf("a commit with write concern %q", concernOf(c))
				}
			}
		})
	}
}

// TestUnknownTransactionByWeakerConcern: without a majority asked for, "no such transaction" is what one server knows. The client is told so as by a server, and the
// gates stay held until a majority has confirmed it.
func TestUnknownTransactionByWeakerConcern(t *testing.T) {
	for _, name := range []string{"commitTransaction", "abortTransaction"} {
		t.Run(name, func(t *testing.T) {
			e, servers := scriptEnv(t)
			e.shard("c", "_id", 3)
			a := e.on("c", "b0", 0)
			gate := e.table.View().Collection(e.db + ".c").Parts[0].Gate()
			var healed atomic.Bool
			servers[0].SetScript(func(c backendtest.Command) backendtest.Answer {
				switch {
				case c.Name != "commitTransaction" && c.Name != "abortTransaction":
					return writesDone(c)
				case concernOf(c) == "majority" && !healed.Load():
					return noneByMajority()
				}
				return backendtest.Err(251, "NoSuchTransaction", "x", transientTransaction)
			})
			if _, err := e.raw(inTxn(1, true, d("insert", "c", "documents", bson.A{d("_id", a)}))); err != nil {
				t.Fatal(err)
			}
			_, err := e.end(name, 1, bson.E{Key: "writeConcern", Value: d("w", int32(1))})
			wantCode(t, "told", err, wire.NoSuchTransaction, transientTransaction)
			if gate.Transactions() != 1 {
				t.Error("the gate was left")
			}
			healed.Store(true)
			e.settled()
		})
	}
}

// TestRepeatedCommitAsksForMajority: what the first attempt did may be known to a server only that is not the primary any more, as drivers know, too, when they repeat a commit.
func TestRepeatedCommitAsksForMajority(t *testing.T) {
	e, servers := scriptEnv(t)
	var tries atomic.Int32
	servers[2].SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "commitTransaction" && tries.Add(1) == 1 {
			return backendtest.Cut()
		}
		return writesDone(c)
	})
	token := bson.E{Key: "recoveryToken", Value: d("recoveryShardId", "b2")}
	for _, concern := range []bson.D{nil, d("w", int32(1), "wtimeout", int32(77)), d("w", "majority")} {
		tries.Store(0)
		servers[2].Forget()
		more := []bson.E{token}
		if concern != nil {
			more = append(more, bson.E{Key: "writeConcern", Value: concern})
		}
		if _, err := e.end("commitTransaction", 9, more...); err != nil {
			t.Fatal(err)
		}
		got := sent(servers[2])
		if len(got) != 2 {
			t.Fatalf("sent %v", names(got))
		}
		first, _ := got[0].Body.LookupErr("writeConcern")
		if want := fmt.Sprint(bson.RawValue{}); concern == nil && fmt.Sprint(first) != want || concern != nil && first.String() != mustMarshal(concern).String() {
			t.Errorf("%v: first sent with %v", concern, first)
		}
		wait, _ := got[1].Body.Lookup("writeConcern", "wtimeout").AsInt64OK()
		if want := map[bool]int64{true: 77, false: repeatTimeout}[slices.ContainsFunc(concern, func(f bson.E) bool { return f.Key == "wtimeout" })]; concernOf(got[1]) != "majority" || wait != want {
			t.Errorf("%v: repeated with %v", concern, got[1].Body.Lookup("writeConcern"))
		}
	}
	// Through another proxy the same is said as through that which began the transaction.
	servers[2].SetScript(func(backendtest.Command) backendtest.Answer { return noneByMajority() })
	_, err := e.end("commitTransaction", 9, token)
	wantCode(t, "unknown there, unconfirmed", err, wire.NoSuchTransaction)
}
