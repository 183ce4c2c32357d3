package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// startLimit bounds a start: recovery after kill -9 and a slow shared machine included.
const startLimit = 60 * time.Second

// ErrNotRunning means that the server's process has ended.
var ErrNotRunning = errors.New("server is not running")

// Server is one database server process on a port and a directory that stay its own over restarts.
// Its methods may be called from several goroutines; starts and stops exclude each other.
type Server struct {
	program Program
	options Options
	dir     string
	setName string // empty on a standalone
	port    *Port
	front   Front // nil for none

	lifecycle sync.Mutex // held over a start or a stop

	mu     sync.Mutex // guards what follows
	run    *run       // the newest process, running or not
	frozen bool
}

// run is one life of a server's process.
type run struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been reaped
}

// Addr is the host and port that clients connect to, the same over restarts: the front's, where there is one.
func (s *Server) Addr() string {
	if s.front != nil {
		return s.front.Addr()
	}
	return s.Direct()
}

// Direct is the server's own host and port, for who must see what it does itself.
func (s *Server) Direct() string { return loopback(s.port.number) }

// Dir is the directory with the server's data and its log, server.log.
func (s *Server) Dir() string { return s.dir }

// SetName is the replica set's name; empty on a standalone.
func (s *Server) SetName() string { return s.setName }

// URI is a connection string for the server; for a replica set it names the set.
func (s *Server) URI() string {
	if s.setName == "" {
		return "mongodb://" + s.Addr() + "/"
	}
	return "mongodb://" + s.Addr() + "/?replicaSet=" + s.setName
}

// PID is the process id of the newest process, which may have ended.
func (s *Server) PID() int { return s.current().cmd.Process.Pid }

// Exited returns a channel that is closed when the present process has ended. After a restart there
// is a new one.
func (s *Server) Exited() <-chan struct{} { return s.current().exited }

// Running reports whether the process has not ended; a frozen one is running.
func (s *Server) Running() bool {
	select {
	case <-s.Exited():
		return false
	default:
		return true
	}
}

// Kill ends the server with SIGKILL and waits until it is gone. Killing a dead server does nothing.
func (s *Server) Kill() error {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	r := s.current()
	if s.Running() {
		defer s.holdForEnd()()
	}
	if err := r.signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	<-r.exited
	return nil
}

// Stop ends the server with SIGTERM and waits for it; when ctx ends first it is killed and ctx's
// error returned. Stopping a dead server does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	r := s.current()
	if s.Running() {
		defer s.holdForEnd()()
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} { // a frozen process gets neither before CONT
		if err := r.signal(sig); errors.Is(err, ErrNotRunning) {
			return nil
		} else if err != nil {
			return err
		}
	}
	select {
	case <-r.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), s.kill())
	}
}

// Restart starts the server again on the same port and directory, after killing it if it still
// runs, and returns when it answers (and, in a replica set, takes writes).
func (s *Server) Restart(ctx context.Context) error {
	s.lifecycle.Lock()
	defer s.lifecycle.Unlock()
	if err := s.kill(); err != nil {
		return err
	}
	return s.start(ctx)
}

// Freeze stops the process in its tracks (SIGSTOP): connections stay open and nothing answers. On Linux
// it returns when every thread has stopped, which a moment after the signal they have not.
func (s *Server) Freeze() error {
	r := s.current()
	if err := r.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if was := s.setFrozen(true); !was && s.front != nil {
		s.front.Hold()
	}
	return awaitStopped(r)
}

// Thaw lets a frozen process go on.
func (s *Server) Thaw() error {
	err := s.current().signal(syscall.SIGCONT)
	if was := s.setFrozen(false); was && s.front != nil {
		s.front.Release()
	}
	return err
}

// Command runs one command (with its "$db") on the server over a connection of its own; the error
// carries the server's errmsg where ok is not 1, and the reply is returned with it.
func (s *Server) Command(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	return Command(ctx, s.Addr(), cmd)
}

func (s *Server) current() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

func (r *run) signal(sig syscall.Signal) error {
	select {
	case <-r.exited:
		return ErrNotRunning
	default:
	}
	err := r.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return ErrNotRunning
	}
	return err
}

// start runs the program and waits until it is ready. On an error nothing is left running.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	if err := s.makeKey(); err != nil {
		return err
	}
	cmd := exec.Command(s.program.Path, s.arguments()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	if err := StartChild(cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.program.Path, err)
	}
	r := &run{cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log; that it ended is what counts
		close(r.exited)
	}()
	s.mu.Lock()
	s.run = r
	s.mu.Unlock()
	if err := s.awaitReady(ctx, r); err != nil {
		return errors.Join(fmt.Errorf("%s on %s: %w; the end of its log:\n%s", s.program.Kind, s.Direct(), err, s.logTail()), s.kill())
	}
	return nil
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "server.log") }

func (s *Server) logTail() string {
	const keep = 2000
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-keep):]))
}
