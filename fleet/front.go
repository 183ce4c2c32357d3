package fleet

import (
	"context"
	"time"
)

// settleLimit is how long a kill waits for the outcome of writes that are on their way; see [Front].
const settleLimit = time.Second

// Front stands between a server and those who connect to it, and outlives the server's process.
type Front interface {
	// Addr is where clients connect.
	Addr() string
	// Hold stops what passes in both directions until Release.
	Hold()
	Release()
	// Settle waits until the front knows the outcome of what it has let through, or until ctx ends.
	Settle(ctx context.Context) error
	// Cut resets all connections.
	Cut()
	Close() error
}

// Program is the server's program.
func (s *Server) Program() Program { return s.program }

// Front is what stands before the server; nil for nothing.
func (s *Server) Front() Front { return s.front }

// makeFront puts a front before a server that has started.
func (s *Server) makeFront() error {
	if s.options.Front == nil {
		return nil
	}
	front, err := s.options.Front(s)
	if err != nil {
		return err
	}
	s.front = front
	return nil
}

// holdForEnd keeps the front from passing anything while the process ends. A front that remembers
// writes learns first how those that are on their way end: their clients get no reply and know
// nothing, as after any crash. A frozen process answers nothing more. The function that is returned
// is called when the process is gone.
func (s *Server) holdForEnd() func() {
	if s.front == nil {
		return func() {}
	}
	if s.setFrozen(false) { // held already
		return func() { s.front.Cut(); s.front.Release() }
	}
	s.front.Hold()
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	_ = s.front.Settle(ctx) // what has no outcome by now stays unknown
	return func() { s.front.Cut(); s.front.Release() }
}

// setFrozen notes whether the process is frozen, and returns whether it was.
func (s *Server) setFrozen(frozen bool) (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, s.frozen = s.frozen, frozen
	return was
}
