package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/rawconn"
	"github.com/shardway/shardway/integration/running"
)

// pairs is a sharded collection of pairs of documents, over two proxies; a transaction changes both of a pair or neither.
type pairs struct {
	proxies []*running.Proxy
	clients []*mongo.Client
	server  *fleet.Server
	coll    *mongo.Collection
}

func newPairs(t *testing.T, lifetime time.Duration) *pairs {
	t.Helper()
	f := fleettest.Start(t, 1)
	fleettest.Need(t, f, fleet.ReplicaSet, fleet.TransactionLifetimeLimit)
	limitTransactions(t, f.Servers[0], lifetime)
	w := &pairs{server: f.Servers[0]}
	for range 2 {
		p := running.Test(t, f.Servers, append([]string{"--transactions-lifetime", lifetime.String()}, faultSettings...)...)
		w.proxies, w.clients = append(w.proxies, p), append(w.clients, connect(t, p.URI()))
	}
	command(t, w.clients[0], "admin", shardCmd("pairs.c", "k"))
	w.coll = w.clients[1].Database("pairs").Collection("c")
	for i := range 20 { // the pair, and others, so that there is something to split
		if _, err := w.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: max(1, i)}, {Key: "n", Value: 0}}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// openTxn is a transaction over a connection of its own, whose fields are all in sight.
type openTxn struct {
	t     *testing.T
	c     *rawconn.Conn
	lsid  bson.D
	token bson.Raw
}

func (w *pairs) begin(t *testing.T, proxy int) *openTxn {
	t.Helper()
	x := &openTxn{t: t, c: dial(t, w.proxies[proxy].Addr()), lsid: bson.D{{Key: "id", Value: sessionID()}}}
	for i := range 2 {
		reply := must(t, x.c, "pairs", x.statement(i == 0, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: i}, {Key: "k", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}}}}}))
		x.token = reply.Lookup("recoveryToken").Document()
	}
	return x
}

func sessionID() bson.Binary {
	id := bson.NewObjectID()
	return bson.Binary{Subtype: 4, Data: append(id[:], 1, 2, 3, 4)}
}

// statement makes a command a statement of the transaction.
func (x *openTxn) statement(first bool, cmd bson.D) bson.D {
	cmd = append(cmd, bson.E{Key: "lsid", Value: x.lsid}, bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "autocommit", Value: false})
	if first {
		cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	}
	return cmd
}

func (x *openTxn) commit() bson.D {
	return x.statement(false, bson.D{{Key: "commitTransaction", Value: 1}, {Key: "recoveryToken", Value: x.token}})
}

// refused checks that a reply is an error that has the client run the transaction again.
func (x *openTxn) refused(what string, reply bson.Raw) {
	x.t.Helper()
	labels, _ := reply.Lookup("errorLabels").ArrayOK()
	if first, err := labels.IndexErr(0); rawconn.OK(reply) || err != nil || first.StringValue() != "TransientTransactionError" {
		x.t.Errorf("%s: %v, want an error with TransientTransactionError", what, reply)
	}
}

// both checks that both documents of the pair have n.
func (w *pairs) both(t *testing.T, what string, n int) {
	t.Helper()
	cur, err := w.coll.Find(t.Context(), bson.D{{Key: "k", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct{ N int }
	if err := cur.All(t.Context(), &docs); err != nil || len(docs) != 2 || docs[0].N != n || docs[1].N != n {
		t.Errorf("%s: %v, %v; want %d in both", what, docs, err, n)
	}
}

// free waits until both documents can be written: nothing of a transaction is left on them.
func (w *pairs) free(t *testing.T, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "the documents are free", func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		res, err := w.coll.UpdateMany(ctx, bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "free", Value: true}}}})
		return err == nil && res.MatchedCount == 2
	})
}

// TestProxyKilledInTransaction kills a proxy that has a transaction open. Its client commits it through another proxy by the recoveryToken, once or twice; or nobody does, and the backend
// aborts it when its time is over. A split of what it touched goes on then.
func TestProxyKilledInTransaction(t *testing.T) {
	w := newPairs(t, faultLifetime)
	other := dial(t, w.proxies[1].Addr())
	x := w.begin(t, 0)
	if err := w.proxies[0].Kill(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if reply := ask(t, other, "admin", x.commit()); !rawconn.OK(reply) {
			t.Errorf("commit %d through another proxy: %v", i, reply)
		}
	}
	w.both(t, "committed elsewhere", 1)
	if err := w.proxies[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	x = w.begin(t, 0)
	if err := w.proxies[0].Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	w.both(t, "open", 1)
	command(t, w.clients[1], "admin", bson.D{{Key: "split", Value: "pairs.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: 1}}}})
	// A lease and a margin, the transaction's lifetime and a pass of the reaper, and what the attempts between them take on a busy machine.
	if took, limit := time.Since(killed), faultLease+faultLifetime+time.Second+time.Minute; took > limit {
		t.Errorf("the split took %s, want at most %s", took, limit)
	}
	x.refused("a commit that comes too late", ask(t, other, "admin", x.commit()))
	w.free(t, 10*time.Second)
	w.both(t, "not committed", 1)
}

// stop stops a process, and returns when it stands still: until then some of its threads may go on for a while.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the process stands still", func(context.Context) bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if len(threads) == 0 {
			time.Sleep(100 * time.Millisecond) // a system that does not tell
		}
		for _, name := range threads {
			text, _ := os.ReadFile(name)
			if _, rest, _ := strings.Cut(string(text), ") "); !strings.HasPrefix(rest, "T") {
				return false
			}
		}
		return true
	})
}

// TestTransactionOutlivesLease stops a proxy that has a transaction open for longer than its lease. What its client has sent meanwhile, and what it sends when the proxy goes on, is refused
// with the label that has it begin anew, and nothing of it is there, though the backend would have gone on with it.
func TestTransactionOutlivesLease(t *testing.T) {
	w := newPairs(t, time.Minute)
	for i, between := range []func(x *openTxn) bson.D{
		(*openTxn).commit,
		func(x *openTxn) bson.D {
			return x.statement(false, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "$db", Value: "pairs"}})
		},
	} {
		what := fmt.Sprintf("round %d", i)
		x := w.begin(t, 0)
		pid := w.proxies[0].PID()
		stop(t, pid)
		cmd := between(x)
		if cmd[0].Key == "commitTransaction" {
			cmd = append(cmd, bson.E{Key: "$db", Value: "admin"})
		}
		err := x.c.Send(rawconn.Msg(x.c.NextID(), 0, rawconn.Kind0(cmd)))
		time.Sleep(faultLease + 500*time.Millisecond)
		if cont := syscall.Kill(pid, syscall.SIGCONT); err != nil || cont != nil {
			t.Fatal(err, cont)
		}
		m, err := x.c.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		reply, err := m.Body()
		if err != nil {
			t.Fatal(err)
		}
		x.refused(what+", what was sent meanwhile", reply)
		x.refused(what+", afterwards", ask(t, x.c, "admin", x.commit()))
		w.free(t, 10*time.Second)
		w.both(t, what, 0)
		if reply := ask(t, dial(t, w.proxies[1].Addr()), "admin", x.commit()); rawconn.Code(reply) != 251 {
			t.Errorf("%s, through another proxy: %v, want 251", what, reply)
		}
		eventually(t, killSettle, "the proxy has joined again", func(ctx context.Context) bool {
			return w.clients[0].Database("pairs").Collection("c").FindOne(ctx, bson.D{{Key: "k", Value: 1}}).Err() == nil
		})
	}
}
