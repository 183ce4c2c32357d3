package router

import (
	"sync/atomic"
	"time"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

const (
	// maxLiveSessions bounds the sessions of this proxy's that a backend must hold at one time. A
	// mongod holds a million, of all its clients, and refuses every new one beyond (261): four
	// proxies that have used up their share leave a fifth of them to everybody else, clients' own
	// sessions among them.
	maxLiveSessions = 200_000
	// liveWindow is how often a mongod writes the sessions that it has seen to a collection, and
	// forgets them. Ending a session does not lower their number before.
	liveWindow = 5 * time.Minute
)

// liveSessions are the sessions used at one backend in this window of time and in the one before.
// Whenever the backend's own window began, it holds none but those.
type liveSessions struct {
	began         time.Time // this window
	now, previous map[sessionKey]struct{}
	fresh         int // of now that are not in previous
}

// use counts a session as used; false if it would be one more than budget.
func (l *liveSessions) use(id sessionKey, at time.Time, budget int) bool {
	l.turn(at)
	if _, ok := l.now[id]; ok {
		return true
	}
	if _, ok := l.previous[id]; !ok {
		if l.count() >= budget {
			return false
		}
		l.fresh++
	}
	l.now[id] = struct{}{}
	return true
}

// turn begins another window when it is time to.
func (l *liveSessions) turn(at time.Time) {
	passed := at.Sub(l.began)
	if l.now != nil && passed < liveWindow {
		return
	}
	l.previous = l.now
	if passed >= 2*liveWindow {
		l.previous = nil // nothing was used in the window before
	}
	l.began, l.now, l.fresh = at, make(map[sessionKey]struct{}), 0
}

func (l *liveSessions) count() int { return len(l.previous) + l.fresh }

// liveCounts returns how many sessions each backend may hold.
func (d *derivedSessions) liveCounts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[string]int{}
	for id, l := range d.live {
		l.turn(time.Now())
		counts[id] = l.count()
	}
	return counts
}

// crowdedBackends counts the writes that were refused because a backend holds too many sessions.
type crowdedBackends struct {
	refused atomic.Int64
	said    limitedLog
}

// derivedFor returns the session under which the request's retryable write goes to a home. A
// backend that holds as many sessions of this proxy's as it may gets no further one (261): a server
// that is full refuses those of everybody.
func (r *Router) derivedFor(q *Request, h partition.Home) (sessionKey, error) {
	client := q.clientSession()
	id := derive(client, h)
	if r.derived.use(client, derivedSession{Backend: h.Backend, ID: id}) {
		return id, nil
	}
	r.crowded.refused.Add(1)
	if r.crowded.said.may(h.Backend) {
		r.log.Error().Str("backend", h.Backend).Int("sessions", maxLiveSessions).
			Msg("clients' sessions times the backend's partitions are more sessions than the backend may be given; retryable writes that need another one are refused")
	}
	return id, wire.Errorf(wire.TooManyLogicalSessions,
		"Unable to add session into the cache because the number of active sessions is too high: backend '%s' holds %d of this proxy, one for each client session and partition written to within some minutes",
		h.Backend, maxLiveSessions)
}
