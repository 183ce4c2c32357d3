package router

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

// sessionKey identifies a session: the UUID of an lsid.
type sessionKey = records.SessionID

// clientSession returns the id of the request's session. The request must have one.
func (q *Request) clientSession() sessionKey {
	var id sessionKey
	v, _ := element.Lookup(q.Session, "id")
	_, data, _ := v.BinaryOK()
	copy(id[:], data)
	return id
}

// derive returns the id of the session under which a client's retryable writes go to one home. Parts of one batch do not shadow one another's transaction
// number there, and what an input of a reshape has on record never answers for an output.
func derive(client sessionKey, h partition.Home) sessionKey {
	var room [512]byte // all of it, but for the longest names
	text := append(room[:0], "shardway retryable write\x00"...)
	text = append(append(append(append(text, client[:]...), h.DB...), 0), h.Physical...)
	sum := sha256.Sum256(text)
	var id sessionKey
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80 // version 8: made by a rule of its own
	id[8] = id[8]&0x3f | 0x80
	return id
}

// appendSession appends an lsid element.
func appendSession(dst []byte, id sessionKey) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "lsid")
	dst = bsoncore.AppendBinaryElement(dst, "id", bson.TypeBinaryUUID, id[:])
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// derivedSession is a session that this proxy made at a backend.
type derivedSession struct {
	Backend string
	ID      sessionKey
}

// maxDerived bounds the derived sessions that are remembered; others end by themselves after thirty minutes.
const maxDerived = 500_000

// derivedSessions remembers which sessions were derived from a client's, so that endSessions ends
// them too, and bounds those that a backend must hold. Its zero value is ready for use.
type derivedSessions struct {
	mu  sync.Mutex
	by  map[sessionKey]map[derivedSession]struct{}
	sum int // of all entries
	// live counts, by backend, those in use; budget bounds each, 0 being maxLiveSessions.
	live   map[string]*liveSessions
	budget int
}

// use remembers that a session is used in the name of client; false if the backend holds as many
// sessions of this proxy's as it may, and this one would be one more.
func (d *derivedSessions) use(client sessionKey, s derivedSession) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	live := d.live[s.Backend]
	if live == nil {
		if d.live == nil {
			d.live = map[string]*liveSessions{}
		}
		live = &liveSessions{}
		d.live[s.Backend] = live
	}
	if !live.use(s.ID, time.Now(), cmp.Or(d.budget, maxLiveSessions)) {
		return false
	}
	if _, known := d.by[client][s]; known {
		return true
	}
	if d.by == nil {
		d.by = map[sessionKey]map[derivedSession]struct{}{}
	}
	for old, list := range d.by {
		if d.sum < maxDerived {
			break
		}
		d.sum -= len(list)
		delete(d.by, old)
	}
	if d.by[client] == nil {
		d.by[client] = map[derivedSession]struct{}{}
	}
	d.by[client][s] = struct{}{}
	d.sum++
	return true
}

// take forgets a client's session and returns what was derived from it.
func (d *derivedSessions) take(client sessionKey) map[derivedSession]struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.by[client]
	d.sum -= len(list)
	delete(d.by, client)
	return list
}

// get returns what was derived from a client's session.
func (d *derivedSessions) get(client sessionKey) map[derivedSession]struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.by[client])
}

// clients returns the clients' sessions from which any was derived.
func (d *derivedSessions) clients() []sessionKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := make([]sessionKey, 0, len(d.by))
	for id := range d.by {
		ids = append(ids, id)
	}
	return ids
}

// standalone reports whether a backend is one, and so takes no txnNumber. It waits for a backend that has not answered yet.
func (r *Router) standalone(ctx context.Context, backendID string) (bool, error) {
	b := r.cfg.Backends.Get(backendID)
	if b == nil {
		return false, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", backendID)
	}
	if b.Kind() == backend.KindUnknown {
		if err := b.Ready(ctx); err != nil {
			return false, err
		}
	}
	return b.Kind() == backend.KindStandalone, nil
}
