package backend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/shardway/shardway/wire"
)

// UnsentError says that a request provably did not leave: no server could be selected, or no
// connection made. Sending it again is safe, whatever it is.
type UnsentError struct {
	// Backend is the backend's id.
	Backend string
	// Host is the server that was tried; empty when none was found.
	Host string
	// Code is what a client is told: 6 HostUnreachable, or 133 FailedToSatisfyReadPreference when
	// servers answer but none suits, or 50 when the request's deadline passed meanwhile.
	Code wire.Code
	// Err is the cause.
	Err error
}

// Error names the backend, never its connection string.
func (e *UnsentError) Error() string {
	if e.Host == "" {
		return fmt.Sprintf("no usable server on backend %s: %v", e.Backend, e.Err)
	}
	return fmt.Sprintf("could not reach %s of backend %s: %v", e.Host, e.Backend, e.Err)
}

// Unwrap returns the cause.
func (e *UnsentError) Unwrap() error { return e.Err }

// WireError is the error as a client sees it (used by wire.AsError).
func (e *UnsentError) WireError() *wire.Error { return &wire.Error{Code: e.Code, Message: e.Error()} }

// LostError says that the connection ended after bytes of the request had left: the server may have
// run it, or may yet.
type LostError struct {
	// Backend is the backend's id.
	Backend string
	// Host is the server whose connection was lost.
	Host string
	// Code is what a client is told: 6 HostUnreachable, 89 NetworkTimeout, or 50 when the request's
	// own deadline passed.
	Code wire.Code
	// Err is the cause.
	Err error
}

// Error names the backend.
func (e *LostError) Error() string {
	return fmt.Sprintf("lost the connection to %s of backend %s: %v", e.Host, e.Backend, e.Err)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// WireError is the error as a client sees it (used by wire.AsError).
func (e *LostError) WireError() *wire.Error { return &wire.Error{Code: e.Code, Message: e.Error()} }

// errGarbage is the class of replies that break the protocol; the connection cannot be trusted again.
var errGarbage = errors.New("it sent what is not a valid reply")

// ErrLapsed is the cause of an UnsentError for a request whose validity (Request.While) ended while it waited for a server.
var ErrLapsed = errors.New("what it was to be sent under has ended meanwhile")

// errClosed says that the Backend was closed, or removed from the fleet.
var errClosed = errors.New("the backend is being closed")

// isTimeout reports whether err is a passed deadline of a socket or a context.
func isTimeout(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
