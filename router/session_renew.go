package router

import (
	"context"
	"time"

	"github.com/shardway/shardway/backend"
)

// renewSessionsEvery is how often the sessions of open cursors are renewed. A backend ends the
// cursors of a session that it has not seen for thirty minutes, and takes up to five minutes itself
// until what it has seen counts.
const renewSessionsEvery = 5 * time.Minute

// renewedSession is a client's session at a backend.
type renewedSession struct {
	backend string
	id      sessionKey
}

// renewSessions keeps, until ctx ends, the sessions of open cursors alive at every backend on which
// such a cursor may have a branch. A branch that is open but not read does not renew its session
// there: a merged cursor that reads one backend for half an hour would find the other's branch
// gone.
func (r *Router) renewSessions(ctx context.Context) {
	everyTick(ctx, renewSessionsEvery, func() { r.renewOpenCursors(ctx) })
}

func (r *Router) renewOpenCursors(ctx context.Context) {
	by := map[*backend.Backend][]sessionKey{}
	for s := range r.cursors.sessions(time.Now()) {
		if b := r.cfg.Backends.Get(s.backend); b != nil {
			by[b] = append(by[b], s.id)
		}
	}
	if err := r.tell(ctx, "refreshSessions", by); err != nil && ctx.Err() == nil {
		// There are five more attempts before the sessions end.
		r.log.Warn().Err(err).Int("backends", len(by)).Msg("sessions of open cursors could not be renewed at a backend")
	}
}

// everyTick calls f again and again until ctx ends.
func everyTick(ctx context.Context, every time.Duration, f func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// sessions returns the sessions of the cursors that their clients still use, each once for every
// backend that the cursor was opened on. A session whose cursor has not been used for thirty
// minutes ends as it would on a server, unless its client renews it. A transaction has a shorter
// life of its own.
func (cs *cursors) sessions(now time.Time) map[renewedSession]struct{} {
	found := map[renewedSession]struct{}{}
	cs.each(func(c *cursor) {
		if c.session == nil || c.txn != nil || c.killed || !c.busy && now.Sub(c.lastUsed) >= sessionTimeoutMinutes*time.Minute {
			return
		}
		var id sessionKey
		copy(id[:], sessionID(c.session))
		for _, p := range c.held {
			found[renewedSession{p.Backend, id}] = struct{}{}
		}
	})
	return found
}
