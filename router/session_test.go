package router

import (
	"testing"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

func numbered(n int) sessionKey {
	return sessionKey{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}
}

func TestDerivedSessionsAreBounded(t *testing.T) {
	d := derivedSessions{budget: 2 * maxDerived}
	for i := range maxDerived + 1000 {
		d.use(numbered(i/10), derivedSession{ID: numbered(i)})
		d.use(numbered(i/10), derivedSession{ID: numbered(i)})
	}
	count := 0
	for _, list := range d.by {
		count += len(list)
	}
	if count != d.sum || count > maxDerived || count < maxDerived-1000 {
		t.Errorf("%d remembered, %d counted", count, d.sum)
	}
}

func TestDeriveIsPerHome(t *testing.T) {
	seen := map[sessionKey]bool{}
	for _, client := range []sessionKey{numbered(1), numbered(2)} {
		for _, h := range []partition.Home{{DB: "a", Physical: "b.c"}, {DB: "a.b", Physical: "c"}, {DB: "a", Physical: "b@1.0.0"}} {
			id := derive(client, h)
			if seen[id] || derive(client, h) != id || id[6]>>4 != 8 || id[8]>>6 != 2 {
				t.Errorf("%x for %v of %x", id, h, client)
			}
			seen[id] = true
		}
	}
}

func TestRetryMemory(t *testing.T) {
	var m retryMemory
	rec, err := m.record(numbered(1), 5)
	if err != nil {
		t.Fatal(err)
	}
	m.setResult(rec, 5, 2, ledgerEntry{n: 3, reply: make([]byte, 1000)})
	if e, ok := m.result(rec, 5, 2); !ok || e.n != 3 || m.bytes < 1000 {
		t.Errorf("%+v %v, %d bytes", e, ok, m.bytes)
	}
	if _, err := m.record(numbered(1), 4); wire.AsError(err).Code != wire.TransactionTooOld {
		t.Errorf("an older number: %v", err)
	}
	if _, err := m.record(numbered(1), 6); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.result(rec, 6, 2); ok || m.bytes != 0 {
		t.Errorf("a newer number keeps the old one's results, %d bytes", m.bytes)
	}
	for i := range 100 {
		rec, err := m.record(numbered(100+i), 1)
		if err != nil {
			t.Fatal(err)
		}
		m.setResult(rec, 1, 0, ledgerEntry{reply: make([]byte, 1<<20)})
	}
	if m.bytes > maxRetryBytes+1<<21 {
		t.Errorf("%d bytes are kept", m.bytes)
	}
}

// TestEndDerived ends at the backends what was derived from a client's session.
func TestEndDerived(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "_id", 3)
	if _, err := e.raw(retryable(insertOf(30), 1)); err != nil {
		t.Fatal(err)
	}
	var client sessionKey
	copy(client[:], "fedcba9876543210")
	if err := e.router.tell(e.ctx, "endSessions", e.router.withDerived([]sessionKey{client}, true)); err != nil {
		t.Error(err)
	}
	for i, s := range servers {
		used, ended := "", map[string]bool{}
		for _, c := range s.Received() {
			switch c.Name {
			case "insert":
				_, id := c.Body.Lookup("lsid", "id").Binary()
				used = string(id)
			case "endSessions":
				values, _ := c.Body.Lookup("endSessions").Array().Values()
				for _, v := range values {
					_, id := v.Document().Lookup("id").Binary()
					ended[string(id)] = true
				}
			}
		}
		if used == "" || !ended[used] || !ended[string(client[:])] {
			t.Errorf("server %d: used %x, ended %v", i, used, ended)
		}
	}
}
