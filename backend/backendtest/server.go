// Package backendtest imitates a MongoDB server for tests: it speaks hello and OP_MSG, records byte for
// byte what it is sent, and answers what the test says, be it wrong, late or never. What a real server
// does is not imitated: only what a test scripts is answered.
package backendtest

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Script answers one command. It is called on the connection's goroutine, so for one connection at a
// time but for several connections at once.
type Script func(Command) Answer

// Server is a scripted server on a free port of the loopback. Close it with the test.
type Server struct {
	tb   testing.TB
	addr string
	tls  *tls.Config

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	hello    Hello
	script   Script
	received []Command
	hellos   int
	dialled  int
	deaf     bool
	identity *Answer
	clock    bson.Timestamp

	running sync.WaitGroup
}

// New starts a server that is a replica set of one, called "rs", and answers {ok: 1} to every command
// until SetScript. It stops with the test.
func New(tb testing.TB) *Server { return NewTLS(tb, nil) }

// NewTLS is New with connections under TLS; a nil config is none.
func NewTLS(tb testing.TB, config *tls.Config) *Server {
	tb.Helper()
	s := &Server{tb: tb, tls: config, conns: make(map[net.Conn]struct{}), hello: ReplicaSet("rs")}
	s.script = func(Command) Answer { return OK() }
	if err := s.listen("127.0.0.1:0"); err != nil {
		tb.Fatalf("backendtest: %v", err)
	}
	s.addr = s.listener.Addr().String()
	tb.Cleanup(s.Stop)
	return s
}

// Addr is "127.0.0.1:port", the same after Restart.
func (s *Server) Addr() string { return s.addr }

// URI is a connection string for the server.
func (s *Server) URI() string { return "mongodb://" + s.addr + "/" }

// SetScript changes what commands are answered with. nil answers {ok: 1}.
func (s *Server) SetScript(script Script) {
	if script == nil {
		script = func(Command) Answer { return OK() }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// SetIdentity changes what connectionStatus is answered with, which otherwise says that nobody is
// logged in. With showPrivileges the script answers it.
func (s *Server) SetIdentity(a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = &a
}

// Users is the answer to connectionStatus of a server at which these users are logged in; each is a
// name and a database.
func Users(users ...[2]string) Answer {
	list := bson.A{}
	for _, u := range users {
		list = append(list, bson.D{{Key: "user", Value: u[0]}, {Key: "db", Value: u[1]}})
	}
	return OK(bson.E{Key: "authInfo", Value: bson.D{{Key: "authenticatedUsers", Value: list}, {Key: "authenticatedUserRoles", Value: bson.A{}}}})
}

// SetClock gives the server a cluster time: a later afterClusterTime is refused, as a mongod does,
// unless a $clusterTime of at least that time comes along, which advances the clock. Without a
// clock every time is taken.
func (s *Server) SetClock(at bson.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = at
}

// SetHello changes what the server says of itself from the next hello on.
func (s *Server) SetHello(h Hello) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hello = h
}

// SetDeaf makes the server a black hole: it accepts connections and reads, and never answers, hello
// included; with false it answers again, but only on new connections.
func (s *Server) SetDeaf(deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = deaf
}

// Received returns the commands received so far, in order of arrival, without hellos and
// connectionStatus (with showPrivileges it is there).
func (s *Server) Received() []Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Command(nil), s.received...)
}

// Forget drops what Received would return.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = nil
}

// Dialled counts the connections accepted so far, the monitors' included.
func (s *Server) Dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialled
}

// Cut closes every connection and goes on listening.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// stopWithin is how long Stop waits for scripts that are answering.
const stopWithin = time.Minute

// Stop stops listening, closes every connection and waits for its goroutines. Commands received stay. A script that does not end fails
// the test, which would otherwise wait for it until the whole run's time is over.
func (s *Server) Stop() {
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	s.mu.Unlock()
	s.Cut()
	ended := make(chan struct{})
	go func() { defer close(ended); s.running.Wait() }()
	select {
	case <-ended:
	case <-time.After(stopWithin):
		s.tb.Errorf("backendtest: a script has not ended %s after the server was stopped", stopWithin)
	}
}

// Restart listens on the same address again after Stop.
func (s *Server) Restart() {
	s.tb.Helper()
	var err error
	for range 50 { // the port may be in use for a moment
		if err = s.listen(s.addr); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.tb.Fatalf("backendtest: restart: %v", err)
}

func (s *Server) listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		for {
			nc, err := l.Accept()
			if err != nil {
				return // the listener was closed
			}
			s.mu.Lock()
			if s.listener != l {
				s.mu.Unlock()
				_ = nc.Close()
				return
			}
			s.conns[nc] = struct{}{}
			s.dialled++
			n := s.dialled
			s.running.Add(1)
			s.mu.Unlock()
			go s.serve(nc, n)
		}
	}()
	return nil
}

func (s *Server) serve(nc net.Conn, number int) {
	defer s.running.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, nc)
		s.mu.Unlock()
		_ = nc.Close()
	}()
	for {
		msg, err := readMessage(nc)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && errors.Is(err, errBadMessage) {
				s.tb.Errorf("backendtest: connection %d: %v", number, err)
			}
			return
		}
		if !s.answer(nc, number, msg) {
			return
		}
	}
}

// answer handles one message; false ends the connection.
func (s *Server) answer(nc net.Conn, number int, msg []byte) bool {
	cmd, err := parse(msg)
	if err != nil {
		s.tb.Errorf("backendtest: connection %d: %v", number, err)
		return false
	}
	cmd.Conn = number
	s.mu.Lock()
	deaf, script, hello := s.deaf, s.script, s.hello
	identity := s.identity
	switch {
	case cmd.isHello():
		s.hellos++
	case cmd.asksWho():
	default:
		s.received = append(s.received, cmd)
	}
	refused := s.refusal(cmd)
	s.mu.Unlock()
	switch {
	case deaf:
		return true
	case cmd.isHello():
		return write(nc, cmd, encode(hello.reply(s.addr, cmd)))
	}
	var a Answer
	switch {
	case refused != nil:
		a = *refused
	case cmd.asksWho() && identity != nil:
		a = *identity
	case cmd.asksWho():
		a = Users()
	default:
		a = script(cmd)
	}
	if a.Delay > 0 {
		time.Sleep(a.Delay)
	}
	switch {
	case a.Cut:
		return false
	case a.Silent:
		return true
	case a.Raw != nil:
		_, err := nc.Write(a.Raw)
		return err == nil && !a.CutAfter
	}
	return write(nc, cmd, encode(a.Body)) && !a.CutAfter
}

// Answer is what a Script wants done with a command.
type Answer struct {
	// Body is the reply: a bson.D, bson.Raw or anything that marshals to a document.
	Body any
	// Raw, if not nil, is written as it is instead of Body, header and all.
	Raw []byte
	// Delay is waited before anything else.
	Delay time.Duration
	// Cut closes the connection without a reply; CutAfter closes it after the reply.
	Cut, CutAfter bool
	// Silent never answers.
	Silent bool
}

// OK answers {…fields, ok: 1}.
func OK(fields ...bson.E) Answer {
	return Answer{Body: append(append(bson.D{}, fields...), bson.E{Key: "ok", Value: 1.0})}
}

// Err answers {ok: 0, errmsg, code, codeName}, with error labels if any are given.
func Err(code int32, name, msg string, labels ...string) Answer {
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: msg}, {Key: "code", Value: code}, {Key: "codeName", Value: name}}
	if len(labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: labels})
	}
	return Answer{Body: d}
}

// Cut closes the connection instead of answering.
func Cut() Answer { return Answer{Cut: true} }
