package router

import (
	"fmt"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/wire"
)

// greeted returns a connection of its own that says whose it is.
func (e *writeEnv) greeted(app string, loadBalanced bool) *peer {
	e.t.Helper()
	nc, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	p := &peer{t: e.t, nc: nc, r: wire.NewReader(nc)}
	p.ok(d("hello", 1, "loadBalanced", loadBalanced, "client", d("application", d("name", app), "driver", d("name", "x", "version", "1"), "os", d("type", "y"))))
	return p
}

// TestTransactionOverConnections: a transaction belongs to its session. Its statements come over any connection, and it outlives the one that began it while its client has another;
// with its client, or with its one connection behind a load balancer, it ends.
func TestTransactionOverConnections(t *testing.T) {
	b := backendtest.New(t)
	b.SetScript(writesDone)
	e := newWriteEnv(t, map[string]string{"b0": b.URI()})
	find := d("find", "c", "filter", d("_id", 1), "$db", e.db)
	n := int64(0)
	begin := func(p *peer) {
		t.Helper()
		n++
		b.Forget()
		p.ok(inTxn(n, true, find))
	}
	for _, c := range []struct {
		what         string
		loadBalanced bool
		end          bson.D
		want         string
	}{
		{"a pool that closes what is idle", false, d("commitTransaction", 1), "[find find commitTransaction]"},
		{"a client that goes", false, nil, "[find find abortTransaction]"},
		{"a connection of a load balancer", true, nil, "[find abortTransaction]"},
	} {
		first, second := e.greeted(c.what, c.loadBalanced), e.greeted(c.what, c.loadBalanced)
		other := e.greeted("another", false) // keeps nothing of theirs
		begin(first)
		_ = first.nc.Close()
		gone := func() bool {
			left := 0
			e.router.eachConn(func(c *Conn) {
				if c.nc.RemoteAddr().String() == first.nc.LocalAddr().String() {
					left++
				}
			})
			return left == 0
		}
		waits.Until(t, "the connection is gone", gone)
		if !c.loadBalanced {
			second.ok(inTxn(n, false, find))
		}
		if c.end != nil {
			second.ok(inTxn(n, false, c.end))
		} else {
			_ = second.nc.Close()
		}
		e.settled()
		if got := fmt.Sprint(names(sent(b))); got != c.want {
			t.Errorf("%s: sent %s, want %s", c.what, got, c.want)
		}
		_ = other.nc.Close()
	}
}
