package backend_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/wire"
)

// taken is a Taker that says what it was told.
type taken chan end

type end struct {
	n   int
	err error
}

func (k taken) Take(r backend.Reply, err error) {
	e := end{err: err}
	if err == nil {
		e.n = int(r.Body.Lookup("n").AsInt64())
		r.Release()
	}
	k <- e
}

// wait returns what the taker is told, once.
func (k taken) wait(t *testing.T) end {
	t.Helper()
	return waits.For(t, "the end of a call that was given away", k)
}

// held answers finds of which n is 0 when release is called, everything else at once.
func held(s *backendtest.Server, t *testing.T) (release func()) {
	hold := make(chan struct{})
	open := true
	release = func() {
		if open {
			open = false
			close(hold)
		}
	}
	t.Cleanup(release)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		if c.Name == "find" && numberOf(c) == 0 {
			<-hold
		}
		return echo(c)
	})
	return release
}

// handed gives calls away.
func handed(t *testing.T, calls []*backend.Call) []taken {
	t.Helper()
	takers := make([]taken, len(calls))
	for i, k := range calls {
		takers[i] = make(taken, 2)
		if !k.Hand(takers[i]) {
			t.Fatalf("call %d of a shared connection was not taken", i)
		}
	}
	return takers
}

// Everybody is told of his own reply: by the pump, or by one who waits and reads.
func TestHandedReplies(t *testing.T) {
	for _, waits := range []int{-1, 0, 3, 5} {
		s := backendtest.New(t)
		release := held(s, t)
		b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
		all, _ := startShared(t, b, within(t), 6)
		given := slices.Clone(all)
		waited := make(chan struct{})
		if waits >= 0 {
			given = slices.Delete(given, waits, waits+1)
			go func() { defer close(waited); checkReply(t, all[waits], waits) }()
		} else {
			close(waited)
		}
		takers := handed(t, given)
		release()
		<-waited
		for i, k := range takers {
			want := i
			if waits >= 0 && i >= waits {
				want++
			}
			if e := k.wait(t); e.err != nil || e.n != want {
				t.Errorf("with %d waiting: request %d was told %d, %v", waits, want, e.n, e.err)
			}
		}
		// Nothing is left behind: the next request has the connection for itself.
		again, _ := startShared(t, b, within(t), 1)
		checkReply(t, again[0], 0)
		if st := b.Stats(); st.Open != 1 || st.Idle != 1 {
			t.Errorf("with %d waiting: %d connections are open, %d idle, want one", waits, st.Open, st.Idle)
		}
	}
}

// Who is alone on his connection waits himself.
func TestHandAlone(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(echo)
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, _ := startShared(t, b, within(t), 1)
	if all[0].Hand(make(taken, 1)) {
		t.Fatal("the only request was taken")
	}
	checkReply(t, all[0], 0)
}

// What ends the connection ends all calls on it, each with the error that Wait would have had, and the connection is replaced.
func TestHandedConnectionEnds(t *testing.T) {
	for name, last := range map[string]backendtest.Answer{
		"cut":     backendtest.Cut(),
		"garbage": {Raw: []byte("this is not a message of the protocol, nor its beginning")},
	} {
		sent := make(chan struct{})
		s := backendtest.New(t)
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if numberOf(c) == 2 {
				<-sent
				return last
			}
			return echo(c)
		})
		b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
		all, _ := startShared(t, b, within(t), 5)
		takers := handed(t, all[2:])
		close(sent)
		checkReply(t, all[0], 0)
		checkReply(t, all[1], 1)
		for _, k := range takers {
			var lost *backend.LostError
			if e := k.wait(t); !errors.As(e.err, &lost) || lost.Code != wire.HostUnreachable {
				t.Errorf("%s: got %v, want a LostError with code 6", name, e.err)
			}
		}
		again, _ := startShared(t, b, within(t), 1)
		checkReply(t, again[0], 0)
	}
}

// Bytes behind the last reply make it doubtful: it is not handed out.
func TestHandedGarbageBehind(t *testing.T) {
	s := backendtest.New(t)
	release := held(s, t)
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, _ := startShared(t, b, within(t), 2)
	takers := handed(t, all)
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		body, _ := bson.Marshal(bson.D{{Key: "n", Value: int64(1)}, {Key: "ok", Value: 1.0}})
		return backendtest.Answer{Raw: append(wire.AppendMsg(nil, 1, c.RequestID(), 0, body), 1, 2, 3)}
	})
	release()
	if e := takers[0].wait(t); e.err != nil {
		t.Errorf("the first: %v", e.err)
	}
	if e := takers[1].wait(t); wire.AsError(e.err) == nil || e.err == nil {
		t.Errorf("the last, with bytes behind it: %v", e.err)
	}
}

// A call that is interrupted ends at once, whoever reads, and holds up nobody; the last one's connection is closed.
func TestHandedInterrupt(t *testing.T) {
	s := backendtest.New(t)
	release := held(s, t)
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, cancels := startShared(t, b, within(t), 4)
	takers := handed(t, all)
	for _, i := range []int{2, 0} {
		cancels[i]()
		var lost *backend.LostError
		if e := takers[i].wait(t); !errors.As(e.err, &lost) || lost.Code != wire.ClientDisconnect {
			t.Fatalf("got %v, want a LostError with code 279", e.err)
		}
	}
	release()
	for _, i := range []int{1, 3} {
		if e := takers[i].wait(t); e.err != nil || e.n != i {
			t.Errorf("request %d was told %d, %v", i, e.n, e.err)
		}
	}
	for i, k := range takers {
		if len(k) != 0 {
			t.Errorf("request %d was told twice", i)
		}
	}
	again, _ := startShared(t, b, within(t), 1)
	checkReply(t, again[0], 0)
	if st := b.Stats(); st.Created != 1 || st.Idle != 1 {
		t.Errorf("%d connections were made, %d are idle, want one", st.Created, st.Idle)
	}

	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	last, cancels := startShared(t, b, within(t), 2)
	takers = handed(t, last)
	cancels[0]()
	takers[0].wait(t)
	cancels[1]()
	if e := takers[1].wait(t); wire.AsError(e.err) == nil || wire.AsError(e.err).Code != wire.ClientDisconnect {
		t.Errorf("got %v, want code 279", e.err)
	}
	if st := b.Stats(); st.Open != 0 {
		t.Errorf("%d connections are open after all of their requests were given up", st.Open)
	}
}

// A backend that is closed ends what was given away, and waits for it.
func TestCloseEndsHanded(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, _ := startShared(t, b, within(t), 3)
	takers := handed(t, all)
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, k := range takers {
		if len(k) != 1 {
			t.Fatal("Close did not wait for a taker to be told")
		}
		if e := k.wait(t); e.err == nil {
			t.Error("a call ended well after its backend was closed")
		}
	}
}

// A reply that says that the server is not primary any more is cloaked, and the backend hears of it.
func TestHandedStateChange(t *testing.T) {
	s := backendtest.New(t)
	release := held(s, t)
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, _ := startShared(t, b, within(t), 2)
	got := make(chan bson.Raw, 2)
	for _, k := range all {
		if !k.Hand(raw(got)) {
			t.Fatal("not taken")
		}
	}
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.Err(10107, "NotWritablePrimary", "not master", "RetryableWriteError")
	})
	release()
	<-got
	if e := wire.ErrorFromReply(<-got); e == nil || e.Code != wire.HostUnreachable {
		t.Errorf("got %v, want code 6", e)
	}
	if n := b.Stats().StateChanges; n == 0 {
		t.Error("nobody heard of the state change")
	}
}

type raw chan bson.Raw

func (k raw) Take(r backend.Reply, err error) {
	if err == nil {
		k <- append(bson.Raw(nil), r.Body...)
		r.Release()
	} else {
		k <- nil
	}
}

// A connection that ends when all that is left on it was given up is gone, not kept for ever.
func TestHandedAllGivenUp(t *testing.T) {
	s := backendtest.New(t)
	first, second := make(chan struct{}), make(chan struct{})
	s.SetScript(func(c backendtest.Command) backendtest.Answer {
		switch {
		case c.Name == "find" && numberOf(c) == 0:
			<-first
		case c.Name == "find" && numberOf(c) == 1:
			<-second
			return backendtest.Cut()
		}
		return echo(c)
	})
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, cancels := startShared(t, b, within(t), 2)
	takers := handed(t, all)
	cancels[1]()
	takers[1].wait(t)
	close(first)
	if e := takers[0].wait(t); e.err != nil {
		t.Error(e.err)
	}
	close(second)
	waits.Until(t, "the connection that was cut is not counted", func() bool { return b.Stats().Open == 0 })
	s.SetScript(echo)
	reply, err := b.Do(within(t), backend.Request{Message: numbered(t, 7)}) // one of its own
	if err != nil {
		t.Fatal(err)
	}
	reply.Release()
}

// Close ends also what is on its way to a host that has left the set.
func TestCloseEndsHandedOfAnOldHost(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Silent: true} })
	b := open(t, backend.Config{URI: s.URI(), MaxConns: 1})
	all, _ := startShared(t, b, within(t), 3)
	takers := handed(t, all)
	backend.ForgetForTest(b, s.Addr())
	closed := make(chan error, 1)
	go func() { closed <- b.Close(context.Background()) }()
	if err := waits.For(t, "the end of Close", closed); err != nil {
		t.Fatal(err)
	}
	for _, k := range takers {
		if e := k.wait(t); e.err == nil {
			t.Error("a call ended well after its backend was closed")
		}
	}
}
