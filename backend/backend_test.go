package backend_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/wire"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

// within is a context for a whole test, generous because machines are slow.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open opens a backend that looks at its servers as often as the driver allows.
func open(t testing.TB, cfg backend.Config) *backend.Backend {
	t.Helper()
	if cfg.ID == "" {
		cfg.ID = "P0"
	}
	cfg.HeartbeatInterval = 500 * time.Millisecond
	b, err := backend.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// message makes an OP_MSG of a command.
func message(t testing.TB, cmd bson.D) []byte {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendMsg(nil, 0, 0, 0, body)
}

var find = bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}}

func TestDoSendsTheBytesAndReturnsTheBody(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.OK(bson.E{Key: "n", Value: int32(7)})
	})
	b := open(t, backend.Config{URI: s.URI()})
	msg := message(t, find)
	reply, err := b.Do(within(t), backend.Request{Message: msg})
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Release()
	if n := reply.Body.Lookup("n").AsInt64(); n != 7 || reply.Host != s.Addr() {
		t.Errorf("got %v from %s, want n 7 from %s", reply.Body, reply.Host, s.Addr())
	}
	got := s.Received()
	if len(got) != 1 {
		t.Fatalf("the server received %d commands, want 1", len(got))
	}
	if !bytes.Equal(got[0].Message[8:], msg[8:]) || got[0].RequestID() == 0 {
		t.Errorf("sent % x, received % x", msg, got[0].Message)
	}
}

func TestIdentity(t *testing.T) {
	cases := []struct {
		name  string
		hello backendtest.Hello
		kind  backend.Kind
		host  func(addr string) string
		wire  int32
	}{
		{"replica set", backendtest.ReplicaSet("rs"), backend.KindReplicaSet, func(a string) string { return "rs/" + a }, 21},
		{"standalone", backendtest.Hello{MaxWireVersion: 17}, backend.KindStandalone, func(a string) string { return a }, 17},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := backendtest.New(t)
			s.SetHello(c.hello)
			b := open(t, backend.Config{URI: s.URI()})
			if err := b.Ready(within(t)); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return b.Kind() == c.kind })
			if got, want := b.HostString(), c.host(s.Addr()); got != want {
				t.Errorf("HostString is %q, want %q", got, want)
			}
			if got := b.MaxWireVersion(); got != c.wire {
				t.Errorf("MaxWireVersion is %d, want %d", got, c.wire)
			}
			s.Stop()
			if _, err := b.Run(short(t, time.Second), "d", bson.D{{Key: "ping", Value: 1}}); err == nil {
				t.Error("a stopped server answered")
			}
			if b.Kind() != c.kind {
				t.Errorf("Kind is %v while the server is down, want %v still", b.Kind(), c.kind)
			}
		})
	}
}

// eventually waits for what another goroutine is about to make true.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	waits.Until(t, "what the test waits for", ok)
}

func short(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestScatterWritesToAllThenReadsAll(t *testing.T) {
	const n = 3
	var backends [n]*backend.Backend
	var arrived sync.WaitGroup
	arrived.Add(n)
	for i := range n {
		s := backendtest.New(t)
		s.SetScript(func(backendtest.Command) backendtest.Answer {
			arrived.Done()
			arrived.Wait() // answered only when all have been asked
			return backendtest.OK(bson.E{Key: "i", Value: int32(i)})
		})
		backends[i] = open(t, backend.Config{URI: s.URI()})
	}
	ctx := within(t)
	var calls [n]*backend.Call
	for i, b := range backends {
		var err error
		if calls[i], err = b.Start(ctx, backend.Request{Message: message(t, find)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, call := range calls {
		reply, err := call.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Body.Lookup("i").AsInt64(); got != int64(i) {
			t.Errorf("backend %d answered as %d", i, got)
		}
		reply.Release()
	}
}

func TestConnectionIsReused(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	for range 20 {
		if _, err := b.Run(within(t), "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if st := b.Stats(); st.Created != 1 || st.Open != 1 || st.Idle != 1 {
		t.Errorf("20 commands in turn made %+v, want one connection, idle again", st)
	}
}

func TestLargeReply(t *testing.T) {
	s := backendtest.New(t)
	big := bytes.Repeat([]byte("x"), 5<<20)
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.OK(bson.E{Key: "v", Value: big}) })
	b := open(t, backend.Config{URI: s.URI()})
	for range 2 {
		reply, err := b.Do(within(t), backend.Request{Message: message(t, find)})
		if err != nil {
			t.Fatal(err)
		}
		if _, v, ok := reply.Body.Lookup("v").BinaryOK(); !ok || !bytes.Equal(v, big) {
			t.Error("the reply did not arrive whole")
		}
		reply.Release()
	}
}

// TestGarbage: whatever a server answers, the request fails, the connection goes, the next one is fine.
func TestGarbage(t *testing.T) {
	type spoil func(good []byte, cmd backendtest.Command) []byte
	put := func(at int, v uint32) spoil {
		return func(good []byte, _ backendtest.Command) []byte {
			binary.LittleEndian.PutUint32(good[at:], v)
			return good
		}
	}
	cases := map[string]spoil{
		"another request's reply": put(8, 99999),
		"length 0":                put(0, 0),
		"length 15":               put(0, 15),
		"negative length":         put(0, 0x80000000),
		"oversize":                put(0, 48_000_001),
		"opcode of a reply":       put(12, 1),
		"compressed":              put(12, 2012),
		"moreToCome":              put(16, 2),
		"unknown flag":            put(16, 4),
		"section kind 1":          put(20, 1),
		"document too long":       put(21, 500),
		"document too short":      put(21, 7),
		"document length 0":       put(21, 0),
		"not terminated": func(good []byte, _ backendtest.Command) []byte {
			good[len(good)-1] = 1
			return good
		},
		"header only": func(good []byte, _ backendtest.Command) []byte {
			binary.LittleEndian.PutUint32(good, 16)
			return good[:16]
		},
		"two replies": func(good []byte, _ backendtest.Command) []byte { return append(good, good...) },
	}
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			s.SetScript(func(c backendtest.Command) backendtest.Answer {
				return backendtest.Answer{Raw: spoil(backendtest.ReplyTo(c, bson.D{{Key: "ok", Value: 1.0}}), c)}
			})
			_, err := b.Do(within(t), backend.Request{Message: message(t, find)})
			var lost *backend.LostError
			if !errors.As(err, &lost) || lost.Code != wire.HostUnreachable || lost.Backend != "P0" {
				t.Fatalf("got %v, want a LostError of P0 with code 6", err)
			}
			s.SetScript(nil)
			if _, err := b.Run(within(t), "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
				t.Errorf("the next command: %v", err)
			}
		})
	}
	if st := b.Stats(); st.Open != st.Idle || st.Open != 1 {
		t.Errorf("connections left over: %+v", st)
	}
}

func TestCuts(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	ctx := within(t)
	ping := bson.D{{Key: "ping", Value: 1}}
	t.Run("before the reply", func(t *testing.T) {
		s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Cut() })
		s.Forget()
		_, err := b.Run(ctx, "d", ping)
		var lost *backend.LostError
		if !errors.As(err, &lost) || lost.Code != wire.HostUnreachable {
			t.Fatalf("got %v, want a LostError with code 6", err)
		}
		if n := len(s.Received()); n != 1 {
			t.Errorf("a request that may have run was sent %d times", n)
		}
	})
	t.Run("recovers", func(t *testing.T) {
		s.SetScript(nil)
		if _, err := b.Run(ctx, "d", ping); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("within the reply", func(t *testing.T) {
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			return backendtest.Answer{Raw: backendtest.ReplyTo(c, bson.D{{Key: "ok", Value: 1.0}})[:30], CutAfter: true}
		})
		var lost *backend.LostError
		if _, err := b.Run(ctx, "d", ping); !errors.As(err, &lost) {
			t.Fatalf("got %v, want a LostError", err)
		}
	})
	t.Run("after the reply", func(t *testing.T) {
		s.SetScript(func(backendtest.Command) backendtest.Answer { a := backendtest.OK(); a.CutAfter = true; return a })
		if _, err := b.Run(ctx, "d", ping); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRestartedServerCostsNoRequest: an idle connection that a restart ended is noticed before use.
func TestRestartedServerCostsNoRequest(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	ctx := within(t)
	for range 3 {
		if _, err := b.Run(ctx, "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		before := b.Stats().Created
		s.Stop()
		s.Restart()
		eventually(t, func() bool { return b.Stats().Idle == 0 }) // the monitor saw it end
		if _, err := b.Run(ctx, "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		if after := b.Stats().Created; after != before+1 {
			t.Errorf("%d connections made, want 1", after-before)
		}
	}
}

func TestDownBackend(t *testing.T) {
	s := backendtest.New(t)
	s.Stop()
	b := open(t, backend.Config{URI: s.URI(), SelectionTimeout: 700 * time.Millisecond})
	t.Run("selection timeout", func(t *testing.T) {
		began := time.Now()
		_, err := b.Do(within(t), backend.Request{Message: message(t, find)})
		var unsent *backend.UnsentError
		if !errors.As(err, &unsent) || unsent.Code != wire.HostUnreachable || unsent.Backend != "P0" {
			t.Fatalf("got %v, want an UnsentError of P0 with code 6", err)
		}
		if d := time.Since(began); d < 600*time.Millisecond || d > 10*time.Second {
			t.Errorf("it took %v", d)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		_, err := b.Do(within(t), backend.Request{Message: message(t, find), Deadline: time.Now().Add(50 * time.Millisecond)})
		var unsent *backend.UnsentError
		if !errors.As(err, &unsent) || unsent.Code != wire.MaxTimeMSExpired {
			t.Fatalf("got %v, want an UnsentError with code 50", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		_, err := b.Do(short(t, 50*time.Millisecond), backend.Request{Message: message(t, find)})
		var unsent *backend.UnsentError
		if !errors.As(err, &unsent) || unsent.Code != wire.MaxTimeMSExpired {
			t.Fatalf("got %v, want an UnsentError with code 50", err)
		}
	})
	t.Run("recovers by itself", func(t *testing.T) {
		s.Restart()
		eventually(t, func() bool {
			_, err := b.Do(short(t, 5*time.Second), backend.Request{Message: message(t, find)})
			return err == nil
		})
	})
}

func TestSlowReplyAndDeadline(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	if err := b.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	const enough = 300 * time.Millisecond
	cases := []struct {
		name     string
		timeout  time.Duration
		deadline time.Duration
		cancel   bool
		code     wire.Code
	}{
		{"deadline", time.Minute, enough, false, wire.MaxTimeMSExpired},
		{"context", enough, 0, false, wire.MaxTimeMSExpired},
		{"cancelled", time.Minute, 0, true, wire.ClientDisconnect},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
			defer cancel()
			req := backend.Request{Message: message(t, find)}
			if c.deadline > 0 {
				req.Deadline = time.Now().Add(c.deadline)
			}
			call, err := b.Start(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			if c.cancel {
				cancel()
			}
			_, err = call.Wait()
			var lost *backend.LostError
			if !errors.As(err, &lost) || lost.Code != c.code {
				t.Fatalf("got %v, want a LostError with code %d", err, c.code)
			}
		})
	}
	s.SetScript(nil)
	if _, err := b.Run(within(t), "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if st := b.Stats(); st.Cleared != 0 {
		t.Errorf("slow replies were taken for a lost host: %+v", st)
	}
}

// TestBlackHole: a server that accepts and never answers costs those who need it their time only, and
// is given up by its monitor, so that requests without a deadline end too.
func TestBlackHole(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI(), ConnectTimeout: time.Second, SelectionTimeout: 2 * time.Second})
	if _, err := b.Run(within(t), "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	s.SetDeaf(true)
	_, err := b.Do(within(t), backend.Request{Message: message(t, find)}) // no deadline but the test's
	var lost *backend.LostError
	if !errors.As(err, &lost) || lost.Code != wire.NetworkTimeout {
		t.Fatalf("got %v, want a LostError with code 89", err)
	}
	began := time.Now()
	_, err = b.Do(context.Background(), backend.Request{Message: message(t, find), Deadline: time.Now().Add(200 * time.Millisecond)})
	var unsent *backend.UnsentError
	if !errors.As(err, &unsent) || unsent.Code != wire.MaxTimeMSExpired {
		t.Fatalf("got %v, want an UnsentError with code 50", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("a deadline of 200 ms took %v", d)
	}
	s.SetDeaf(false)
	eventually(t, func() bool {
		_, err := b.Run(short(t, 5*time.Second), "d", bson.D{{Key: "ping", Value: 1}})
		return err == nil
	})
}

func TestAbandonClosesTheConnection(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI()})
	call, err := b.Start(within(t), backend.Request{Message: message(t, find)})
	if err != nil {
		t.Fatal(err)
	}
	call.Abandon()
	if st := b.Stats(); st.Open != 0 {
		t.Errorf("%d connections open after Abandon", st.Open)
	}
}

func TestPoolIsBounded(t *testing.T) {
	s := backendtest.New(t)
	free := make(chan struct{})
	s.SetScript(func(backendtest.Command) backendtest.Answer { <-free; return backendtest.OK() })
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 2, MaxWaiters: 1})
	ctx := within(t)
	var calls [2]*backend.Call
	for i := range calls {
		var err error
		if calls[i], err = b.Start(ctx, backend.Request{Message: message(t, find)}); err != nil {
			t.Fatal(err)
		}
	}
	third := make(chan error, 1)
	go func() {
		reply, err := b.Do(ctx, backend.Request{Message: message(t, find)})
		reply.Release()
		third <- err
	}()
	eventually(t, func() bool { return b.Stats().Waiting == 1 })
	_, err := b.Do(ctx, backend.Request{Message: message(t, find)})
	var unsent *backend.UnsentError
	if !errors.As(err, &unsent) || unsent.Code != wire.HostUnreachable {
		t.Errorf("one waiter too many got %v, want an UnsentError", err)
	}
	close(free)
	for _, call := range calls {
		reply, err := call.Wait()
		if err != nil {
			t.Error(err)
		}
		reply.Release()
	}
	if err := <-third; err != nil {
		t.Errorf("the waiter: %v", err)
	}
	if st := b.Stats(); st.Created != 2 || st.Waited != 1 || st.WaitTime <= 0 {
		t.Errorf("got %+v, want 2 connections and one wait", st)
	}
}

// TestWaiterThatGivesUp: a waiter's deadline passes; what was to be its connection serves the next.
func TestWaiterThatGivesUp(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	ctx := within(t)
	var work sync.WaitGroup
	for range 40 {
		work.Add(1)
		go func() {
			defer work.Done()
			for i := range 25 {
				d := time.Now().Add(time.Duration(i%4) * 300 * time.Microsecond)
				if reply, err := b.Do(ctx, backend.Request{Message: message(t, find), Deadline: d}); err == nil {
					reply.Release()
				}
			}
		}()
	}
	work.Wait()
	if _, err := b.Run(ctx, "d", bson.D{{Key: "ping", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if st := b.Stats(); st.Open != 1 || st.Idle != 1 || st.Waiting != 0 {
		t.Errorf("something leaked: %+v", st)
	}
}

func TestRunReturnsTheServersError(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.Err(26, "NamespaceNotFound", "ns not found")
	})
	b := open(t, backend.Config{URI: s.URI()})
	_, err := b.Run(within(t), "d", bson.D{{Key: "drop", Value: "c"}})
	var we *wire.Error
	if !errors.As(err, &we) || we.Code != 26 {
		t.Errorf("got %v, want code 26", err)
	}
	if got := s.Received()[0]; got.Name != "drop" || got.DB != "d" {
		t.Errorf("received %s on %s", got.Name, got.DB)
	}
}

// TestFailover: the reply says not primary; the client's reply is cloaked, and the next request goes to the new primary.
func TestFailover(t *testing.T) {
	one, two := backendtest.New(t), backendtest.New(t)
	hosts := []string{one.Addr(), two.Addr()}
	reign := func(primary, secondary *backendtest.Server, term byte) {
		secondary.SetHello(backendtest.Hello{SetName: "rs", Hosts: hosts, Secondary: true, Primary: primary.Addr()})
		primary.SetHello(backendtest.Hello{SetName: "rs", Hosts: hosts, ElectionID: bson.ObjectID{11: term}})
	}
	reign(one, two, 1)
	who := func(s *backendtest.Server) func(backendtest.Command) backendtest.Answer {
		return func(backendtest.Command) backendtest.Answer {
			return backendtest.OK(bson.E{Key: "me", Value: s.Addr()})
		}
	}
	one.SetScript(who(one))
	two.SetScript(who(two))
	b := open(t, backend.Config{URI: "mongodb://" + hosts[0] + "," + hosts[1] + "/?replicaSet=rs"})
	ctx := within(t)

	askFor := func(rp *readpref.ReadPref) string {
		t.Helper()
		raw, err := b.RunOn(ctx, backend.Target{ReadPref: rp}, "d", bson.D{{Key: "whoareyou", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return raw.Lookup("me").StringValue()
	}
	if got := askFor(nil); got != one.Addr() {
		t.Fatalf("the primary is %s, want %s", got, one.Addr())
	}
	if got := askFor(readpref.Secondary()); got != two.Addr() {
		t.Fatalf("the secondary is %s, want %s", got, two.Addr())
	}
	if got := two.Received()[0].Body.Lookup("$readPreference", "mode").StringValue(); got != "secondary" {
		t.Errorf("$readPreference.mode is %q", got)
	}

	one.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.Err(10107, "NotWritablePrimary", "not master", "RetryableWriteError")
	})
	reign(two, one, 2)
	reply, err := b.Do(ctx, backend.Request{Message: message(t, find)})
	if err != nil {
		t.Fatal(err)
	}
	if code := reply.Body.Lookup("code").AsInt64(); code != 6 {
		t.Errorf("the client would see code %d, want 6", code)
	}
	reply.Release()
	if got := askFor(nil); got != two.Addr() {
		t.Errorf("after the election the primary is %s, want %s", got, two.Addr())
	}
	if got := b.Stats().StateChanges; got != 1 {
		t.Errorf("StateChanges is %d, want 1", got)
	}

	pinned, err := b.Do(ctx, backend.Request{Message: message(t, find), Host: one.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	if pinned.Host != one.Addr() {
		t.Errorf("a request pinned to %s went to %s", one.Addr(), pinned.Host)
	}
	pinned.Release()
}

func TestNoServerForTheReadPreference(t *testing.T) {
	s := backendtest.New(t)
	b := open(t, backend.Config{URI: s.URI(), SelectionTimeout: 300 * time.Millisecond})
	if err := b.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	_, err := b.RunOn(within(t), backend.Target{ReadPref: readpref.Secondary()}, "d", bson.D{{Key: "ping", Value: 1}})
	var unsent *backend.UnsentError
	if !errors.As(err, &unsent) || unsent.Code != wire.FailedToSatisfyReadPreference {
		t.Errorf("got %v, want an UnsentError with code 133", err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	b := open(t, backend.Config{URI: s.URI()})
	call, err := b.Start(context.Background(), backend.Request{Message: message(t, find)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Wait(); err == nil {
		t.Error("a reply after Close")
	}
	if _, err := b.Do(within(t), backend.Request{Message: message(t, find)}); err == nil {
		t.Error("a request after Close")
	}
	if st := b.Stats(); st.Open != 0 {
		t.Errorf("%d connections open after Close", st.Open)
	}
}

func TestConfigErrorsHideTheURI(t *testing.T) {
	for _, cfg := range []backend.Config{
		{URI: "mongodb://h:1/"},
		{ID: "P0", URI: "http://root:hunter2@h:1/"},
		{ID: "P0", URI: "mongodb://root:hunter2@h:1/?loadBalanced=true"},
		{ID: "P0", URI: "mongodb://root:hunter2@h:1/?authMechanism=NONE-SUCH"},
	} {
		b, err := backend.Open(context.Background(), cfg)
		if err == nil {
			_ = b.Close(context.Background())
			t.Errorf("%s was accepted", cfg.URI)
			continue
		}
		if bytes.Contains([]byte(err.Error()), []byte("hunter2")) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestSet(t *testing.T) {
	var set backend.Set
	if set.Get("a") != nil || len(set.All()) != 0 || set.Remove("a") != nil {
		t.Error("the zero Set is not empty")
	}
	s := backendtest.New(t)
	a, b := open(t, backend.Config{ID: "a", URI: s.URI()}), open(t, backend.Config{ID: "b", URI: s.URI()})
	if err := errors.Join(set.Add(b), set.Add(a)); err != nil {
		t.Fatal(err)
	}
	if err := set.Add(a); err == nil {
		t.Error("one id twice")
	}
	if all := set.All(); len(all) != 2 || all[0] != a || all[1] != b {
		t.Errorf("All is %v", all)
	}
	if set.Remove("a") != a || set.Get("a") != nil || set.Get("b") != b {
		t.Error("Remove removed the wrong one")
	}
}

// TestDoAllocates asserts what the forward path costs: nothing per request when the deadline is the
// request's own.
func TestDoAllocates(t *testing.T) {
	if raceDetector {
		t.Skip("allocations cannot be counted under the race detector")
	}
	s := backendtest.New(t) // greets only: what it allocates would count, so an echo answers
	b := open(t, backend.Config{URI: s.URI()})
	msg := message(t, find)
	restore := backend.EchoForTest(t, b, s.Addr())
	defer restore()
	ctx := context.Background()
	allocs := testing.AllocsPerRun(200, func() {
		reply, err := b.Do(ctx, backend.Request{Message: msg, Deadline: time.Now().Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		reply.Release()
	})
	if allocs != 0 {
		t.Errorf("a request costs %v allocations, want 0", allocs)
	}
}
