package router

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// A message for a partition is sent under this process's lease at the backend, and its reply counts only if the same lease still holds when it comes. A lease is
// lost when its backend could not confirm a renewal for longer than an election takes; this process then registers anew as soon as the backend has a
// primary. What a client sees of that is latency, wherever something may be sent (again) without doubt:
//
//   - A message that was not sent waits for the new registration, for as long as a request waits for a server. It waits outside of gates (joined, and the
//     repetitions of pass and answerPoint), since a gate that a request holds while it waits keeps closings at other backends from being answered.
//   - A read is run again from its beginning: nothing of it has been passed on, and it changes nothing.
//   - A retryable write is sent again with the same session, number and statement ids, which is what a driver would do. It goes to the same home, where the
//     session's record answers for what was executed. It waits in its gate (target.Wait) and is sent under the new lease only if that admits it
//     (member.Lease.Admits): then no closing of the home can have been answered without this request. Where the map has changed, the old home may
//     have executed it, which is asked when the write is planned again: by the client's own repetition, or from answerPoint.
//   - Any other write whose reply came too late may have been executed and is not repeated: the client is told that its outcome is unknown.
//   - A getMore needs no lease (target.Cursor).

// leaseError says that a lease did not vouch for a message.
type leaseError struct {
	backend string
	// unsent says that nothing of the message was sent.
	unsent bool
}

func (e *leaseError) Error() string { return e.WireError().Message }

// WireError is the error as a client sees it (used by wire.AsError).
func (e *leaseError) WireError() *wire.Error {
	message := "this proxy's lease at backend '" + e.backend + "' has ended; the outcome of the operation is unknown, retry it"
	if e.unsent {
		message = "this proxy's lease at backend '" + e.backend + "' did not hold when the operation was to be sent, so nothing was sent; retry it"
	}
	return &wire.Error{Code: wire.HostUnreachable, Message: message}
}

// lease returns a valid lease at a backend. Where there is none it waits for this process to be registered anew, until ctx ends or for as long as a request
// waits for a server. There are never more waiting than connections of clients, since each waits with its one request.
func (r *Router) lease(ctx context.Context, b *backend.Backend) (*member.Lease, error) {
	if l := r.cfg.Member.Lease(b.ID()); l.Valid() {
		return l, nil
	}
	wait, cancel := context.WithTimeout(ctx, b.SelectionTimeout())
	defer cancel()
	for {
		if r.cfg.Member.WaitJoined(wait, b.ID()) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &leaseError{backend: b.ID(), unsent: true}
		}
		if l := r.cfg.Member.Lease(b.ID()); l.Valid() {
			return l, nil
		}
	}
}

// joined waits, before gates are passed, for a lease at the backend of each part.
func (r *Router) joined(ctx context.Context, parts []*partition.Part) error {
	if r.cfg.Member == nil {
		return nil
	}
	now := time.Now()
	for i, p := range parts {
		if i > 0 && p.Backend == parts[i-1].Backend || r.cfg.Member.Lease(p.Backend).ValidAt(now) {
			continue
		}
		b := r.cfg.Backends.Get(p.Backend)
		if b == nil {
			continue // send waits for it to become known
		}
		if _, err := r.lease(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// attempts is how often a read, or a retryable write, is sent when a backend answers with an error after which that may help, or not at all.
const attempts = 3

// mayRepeat reports whether what has failed with err may succeed when it is sent again at once. What no server was found for has waited for one as long as it may, and is not
// repeated. Whether a repetition is safe is the caller's to know.
func mayRepeat(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || isA[*backend.UnsentError](err) {
		return false
	}
	if isA[*leaseError](err) {
		return !mustReplan(err)
	}
	return helpsToRetry(err)
}

// mustReplan reports whether a message was not sent since there was no lease, or the lease did not admit it: its gates are to be left and passed anew.
func mustReplan(err error) bool {
	if err == nil {
		return false
	}
	var lease *leaseError // here, since it is on the heap
	return errors.As(err, &lease) && lease.unsent
}

// isA reports whether err, or what it wraps, is an E.
func isA[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
