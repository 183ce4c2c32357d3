package differential

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/rawconn"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

// TestSame runs programs against two equal servers: whatever differs there is the harness' own fault, or open.
func TestSame(t *testing.T) {
	servers := fleettest.Shared(t, 2)
	for seed := range uint64(6) {
		p := New(seed, 400, Config{Repeats: true})
		d, err := Run(t.Context(), p, Side{Addr: servers[0].Addr()}, Side{Addr: servers[1].Addr()}, fmt.Sprintf("same%d", seed), nil)
		if err != nil {
			t.Fatal(err)
		}
		if d != nil {
			t.Errorf("seed %d: %s", seed, d.String(p))
		}
	}
}

// TestSeedDecides: the same seed is the same program, another is another.
func TestSeedDecides(t *testing.T) {
	a, b, c := New(1, 300, Config{}), New(1, 300, Config{}), New(2, 300, Config{})
	if a.Transcript() != b.Transcript() {
		t.Error("one seed makes two programs")
	}
	if a.Transcript() == c.Transcript() {
		t.Error("two seeds make one program")
	}
}

// TestMutantsAreCaught: a side that tells one small lie in a while must be found out, and the program shrunk.
func TestMutantsAreCaught(t *testing.T) {
	servers := fleettest.Shared(t, 2)
	for name, lie := range map[string]func(bson.D) bool{
		"a document lost":    func(d bson.D) bool { return onBatch(d, func(a bson.A) bson.A { return a[1:] }) },
		"a document twice":   func(d bson.D) bool { return onBatch(d, func(a bson.A) bson.A { return append(a, a[0]) }) },
		"two swapped":        func(d bson.D) bool { return onBatch(d, func(a bson.A) bson.A { a[0], a[1] = a[1], a[0]; return a }) },
		"n off by one":       func(d bson.D) bool { return onField(d, "n", func(v any) any { return v.(int32) + 1 }) },
		"an error forgotten": func(d bson.D) bool { return onField(d, "writeErrors", func(any) any { return bson.A{} }) },
		"an index off by one": func(d bson.D) bool {
			return onField(d, "writeErrors", func(v any) any {
				e := v.(bson.A)[0].(bson.D)
				return bson.A(append([]any{replaced(e, "index", func(v any) any { return v.(int32) + 1 })}, v.(bson.A)[1:]...))
			})
		},
		"another code":    func(d bson.D) bool { return onField(d, "code", func(v any) any { return v.(int32) + 1 }) },
		"a physical name": func(d bson.D) bool { return onField(d, "errmsg", func(any) any { return "in people@1f.2.0" }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := newLiar(t, servers[0].Addr(), lie)
			a, b := Side{Addr: liar}, Side{Addr: servers[1].Addr()}
			db := "liar_" + strings.ReplaceAll(name, " ", "_")
			var tries atomic.Int64
			fails := func(p Program) *Difference {
				d, err := Run(t.Context(), p, a, b, fmt.Sprintf("%s%d", db, tries.Add(1)), nil)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			p := New(3, 500, Config{})
			d := fails(p)
			if d == nil {
				t.Fatal("500 steps saw nothing")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			small := Shrink(ctx, p, d.Step, func(p Program) bool { return fails(p) != nil })
			if len(small.Steps) > 8 {
				t.Errorf("%d steps are left of %d", len(small.Steps), d.Step+1)
			}
			if fails(small) == nil {
				t.Error("the shrunk program does not fail")
			}
		})
	}
}

// onBatch changes a first batch of two documents or more.
func onBatch(d bson.D, change func(bson.A) bson.A) bool {
	return onField(d, "cursor", func(v any) any {
		return replaced(v.(bson.D), "firstBatch", func(v any) any {
			if a := v.(bson.A); len(a) > 1 {
				return change(a)
			}
			return v
		})
	})
}

func onField(d bson.D, name string, change func(any) any) bool {
	for i := range d {
		if d[i].Key == name {
			d[i].Value = change(d[i].Value)
			return true
		}
	}
	return false
}

func replaced(d bson.D, name string, change func(any) any) bson.D {
	onField(d, name, change)
	return d
}

// newLiar relays to a server and lets lie change replies; its address is returned.
func newLiar(t *testing.T, target string, lie func(bson.D) bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { relay(c, target, lie) })
		}
	})
	return l.Addr().String()
}

func relay(client net.Conn, target string, lie func(bson.D) bool) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, client) // ends with the client
		server.Close()
	}()
	defer server.Close()
	for {
		m, err := rawconn.ReadMessage(server)
		if err != nil {
			return
		}
		payload := m.Payload
		var d bson.D
		if body, err := m.Body(); err == nil && bson.Unmarshal(body, &d) == nil && lie(d) {
			if changed, err := bson.Marshal(d); err == nil {
				payload = append(bytes.Clone(m.Payload[:5]), changed...)
			}
		}
		if _, err := client.Write(rawconn.Frame(m.RequestID, m.ResponseTo, m.Opcode, payload)); err != nil {
			return
		}
	}
}

func TestPlainDecimal(t *testing.T) {
	for in, want := range map[string]string{"1.0": "1", "1.50": "1.5", "-0.10": "-0.1", "1E+3": "1000", "0.0": "0", "100": "100", "NaN": "NaN", "-2.50": "-2.5", "12.25": "12.25"} {
		if got := plainDecimal(decimal(in)); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
