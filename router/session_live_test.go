package router

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// TestLiveSessions: only a further session beyond the budget is refused, and what was not used for
// a window counts no more after the next.
func TestLiveSessions(t *testing.T) {
	var l liveSessions
	began := time.Now()
	for i, step := range []struct {
		after   time.Duration
		session int
		want    bool
		count   int
	}{
		{0, 1, true, 1}, {0, 2, true, 2}, {time.Minute, 3, true, 3},
		{2 * time.Minute, 4, false, 3}, // one too many
		{2 * time.Minute, 1, true, 3},  // known
		{6 * time.Minute, 4, false, 3}, // the backend may still hold all three
		{6 * time.Minute, 1, true, 3},
		{12 * time.Minute, 4, true, 2}, // only 1 was used in the window before
		{12 * time.Minute, 2, true, 3},
		{12 * time.Minute, 3, false, 3},
		{time.Hour, 3, true, 1},
	} {
		if got := l.use(numbered(step.session), began.Add(step.after), 3); got != step.want || l.count() != step.count {
			t.Errorf("step %d: %v with %d sessions, want %v with %d", i, got, l.count(), step.want, step.count)
		}
	}
}

// TestSessionsOfManyClients measures what clients' sessions times partitions make of sessions at
// one backend: as many as their product, up to the budget.
func TestSessionsOfManyClients(t *testing.T) {
	for _, tt := range []struct{ clients, partitions, made, refused int }{
		{1000, 100, 100_000, 0},
		{5000, 200, maxLiveSessions, 800_000},
	} {
		var d derivedSessions
		refused := 0
		for c := range tt.clients {
			for p := range tt.partitions {
				id := derive(numbered(c), partition.Home{Backend: "b0", DB: "d", Physical: fmt.Sprint("c@1.0.", p)})
				if !d.use(numbered(c), derivedSession{Backend: "b0", ID: id}) {
					refused++
				}
			}
		}
		made := d.liveCounts()["b0"]
		t.Logf("%d clients' sessions, %d partitions: %d sessions at the backend, %d refused", tt.clients, tt.partitions, made, refused)
		if made != tt.made || refused != tt.refused {
			t.Errorf("%d clients, %d partitions: %d sessions and %d refused, want %d and %d", tt.clients, tt.partitions, made, refused, tt.made, tt.refused)
		}
	}
}

// TestTooManySessions: beyond the budget a write that needs one more session of a backend is
// refused, whatever its kind. Sessions that are known go on, and so do writes that need none.
func TestTooManySessions(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 6)
	e.router.derived.budget = 4 // for two clients' sessions, with two partitions on each backend
	in := func(client byte, cmd bson.D, txn int64) bson.D {
		return append(append(bson.D{}, cmd...), bson.E{Key: "lsid", Value: d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), client)})}, bson.E{Key: "txnNumber", Value: txn})
	}
	for client := range byte(2) {
		if r, err := e.raw(in(client+1, insertOf(60), 1)); err != nil || r["n"] != int32(60) {
			t.Fatal(r, err)
		}
	}
	for _, s := range servers {
		s.Forget()
	}
	for i, cmd := range []bson.D{
		insertOf(60),
		d("insert", "c", "documents", bson.A{d("_id", 1)}),
		d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("x", 1)))}),
		d("findAndModify", "c", "query", d("_id", 1), "update", d("$inc", d("n", 1))),
	} {
		_, err := e.raw(in(3, cmd, int64(i+1)))
		if we := wire.AsError(err); we == nil || we.Code != wire.TooManyLogicalSessions || we.HasLabel(retryableWrite) {
			t.Errorf("%v: %v", cmd[0], err)
		}
	}
	if n := len(writesOf(servers...)); n != 0 {
		t.Errorf("%d writes were sent", n)
	}
	if r, err := e.raw(in(1, insertOf(60), 2)); err != nil || r["n"] != int32(60) {
		t.Errorf("a session that is known: %v %v", r, err)
	}
	if r, err := e.raw(insertOf(60)); err != nil || r["n"] != int32(60) {
		t.Errorf("a write without a number: %v %v", r, err)
	}
	status, err := e.run(d("serverStatus", 1))
	if err != nil {
		t.Fatal(err)
	}
	shown := valueOf(status["shardway"], "retryableWrites")
	if got := fmt.Sprint(valueOf(shown, "sessions")); got != `{"b0":{"$numberLong":"4"},"b1":{"$numberLong":"4"},"b2":{"$numberLong":"4"}}` || valueOf(shown, "refusedTooManySessions").(int64) < 4 {
		t.Errorf("serverStatus shows %v", shown)
	}
}
