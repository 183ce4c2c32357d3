package rules

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

const (
	// maxSessionsKept and maxWeight bound what is remembered: what has not been used for longest
	// goes first.
	maxSessionsKept = 50_000
	maxWeight       = 2_000_000
)

// sessionKey is a session: its id and the digest of whose it is.
type sessionKey struct {
	id  [16]byte
	uid [32]byte
}

// cursor is an open cursor that belongs to a session.
type cursor struct {
	session sessionKey
	life    int
}

// session is what is remembered of one.
type session struct {
	turn chan struct{} // holds one token: who has it may write

	// The State's mutex guards what follows.
	used time.Time
	life int // counts how often it has ended
	refs int // who has it in hand: such a session is kept

	active      int64 // the newest number that has begun; −1 for none
	transaction bool  // active is a transaction's
	open        bool  // which has neither been committed nor aborted
	wrote       bool  // the transaction has written
	record      *record
}

// authUser is the key under which a connection keeps whose it is.
type authUser struct{}

// noUser is whose sessions are without access control.
var noUser = sha256.Sum256(nil)

// authCommands may change whose a connection is.
func authCommand(r *Request) bool {
	return r.Is("saslstart", "saslcontinue", "authenticate", "logout") ||
		r.Is("hello", "ismaster") && !r.Lookup("speculativeAuthenticate").IsZero()
}

// userOf is the digest of the connection's user, which the server is asked for once after each login.
func userOf(r *Request) [32]byte {
	switch kept := r.Conn.Value(authUser{}).(type) {
	case nil:
		return noUser
	case [32]byte:
		return kept
	}
	uid := noUser
	if reply, err := r.Ask(marshal(bson.D{{Key: "connectionStatus", Value: 1}, {Key: "$db", Value: "admin"}})); err == nil {
		if first, ok := reply.Lookup("authInfo", "authenticatedUsers", "0").DocumentOK(); ok {
			user, _ := first.Lookup("user").StringValueOK()
			db, _ := first.Lookup("db").StringValueOK()
			uid = sha256.Sum256([]byte(user + "@" + db))
		}
	}
	r.Conn.SetValue(authUser{}, uid)
	return uid
}

// keyOf is the session of a request.
func keyOf(r *Request) (sessionKey, bool) {
	lsid, ok := r.Lookup("lsid").DocumentOK()
	if !ok {
		return sessionKey{}, false
	}
	return keyFrom(r, lsid)
}

func keyFrom(r *Request, lsid bson.Raw) (sessionKey, bool) {
	var key sessionKey
	_, id, ok := lsid.Lookup("id").BinaryOK()
	if !ok || len(id) != len(key.id) {
		return key, false
	}
	copy(key.id[:], id)
	if _, uid, ok := lsid.Lookup("uid").BinaryOK(); ok && len(uid) == len(key.uid) {
		copy(key.uid[:], uid)
	} else {
		key.uid = userOf(r)
	}
	return key, true
}

// String is a session as a mongod writes it in its errors.
func (k sessionKey) String() string {
	u := k.id
	return fmt.Sprintf("%x-%x-%x-%x-%x - %s -  - ", u[:4], u[4:6], u[6:8], u[8:10], u[10:], base64.StdEncoding.EncodeToString(k.uid[:]))
}

// sessionLimit counts the sessions in use, and forgets whose a connection is when that may change.
func (s *State) sessionLimit(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if authCommand(r) {
		r.Conn.SetValue(authUser{}, "unknown")
		return nil, nil
	}
	if r.Is("hello", "ismaster", "endsessions", "killsessions", "buildinfo", "ping") {
		return nil, nil
	}
	key, ok := keyOf(r)
	if !ok {
		return nil, nil
	}
	now := s.settings.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(now)
	if _, known := s.active[key]; !known {
		if len(s.active) >= s.settings.MaxSessions {
			return refuse(wire.TooManyLogicalSessions, "Unable to add session ID %s into the cache because the number of active sessions is too high", key), nil
		}
		s.active[key] = struct{}{}
	}
	if _, hasCursors := s.sessions[key]; hasCursors && !r.Is("getmore") {
		s.touch(key, now)
	}
	return nil, nil
}

// refresh forgets which sessions are in use, as a mongod does that has written them down.
func (s *State) refresh(now time.Time) {
	if now.Sub(s.refreshed) >= s.settings.SessionRefresh {
		s.refreshed = now
		clear(s.active)
	}
}

// touch returns a session that is used now. One that has not been used for too long has ended.
func (s *State) touch(key sessionKey, now time.Time) *session {
	se := s.sessions[key]
	switch {
	case se == nil:
		s.makeRoom()
		se = &session{turn: make(chan struct{}, 1), active: -1}
		se.turn <- struct{}{}
		s.sessions[key] = se
	case now.Sub(se.used) > s.settings.SessionTimeout && se.refs == 0:
		se.life++
		s.forget(se)
	}
	se.used = now
	return se
}

// forget drops a session's record.
func (s *State) forget(se *session) {
	se.active, se.transaction, se.open, se.wrote = -1, false, false, false
	s.replace(se, nil)
}

// makeRoom drops the sessions that have not been used for longest, a tenth at a time.
func (s *State) makeRoom() {
	if len(s.sessions) < maxSessionsKept && s.weight < maxWeight {
		return
	}
	oldest := make([]sessionKey, 0, len(s.sessions))
	for key, se := range s.sessions {
		if se.refs == 0 {
			oldest = append(oldest, key)
		}
	}
	sortByUse(oldest, s.sessions)
	for _, key := range oldest[:len(oldest)/10] {
		s.forget(s.sessions[key])
		delete(s.sessions, key)
	}
	for id, c := range s.cursors {
		if s.sessions[c.session] == nil {
			delete(s.cursors, id)
		}
	}
}

// sessionCursors keeps which cursors belong to which session, and ends those whose session has.
func (s *State) sessionCursors(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	switch {
	case r.Is("getmore"):
		return s.sessionGetMore(r)
	case r.Is("killcursors"):
		return nil, func(reply bson.Raw) bson.Raw { s.dropKilled(reply); return reply }
	case r.Is("endsessions", "killsessions"):
		s.endSessions(r)
		return nil, nil
	case r.Is("refreshsessions"):
		s.refreshSessions(r)
		return nil, nil
	}
	key, ok := keyOf(r)
	if !ok {
		return nil, nil
	}
	return nil, func(reply bson.Raw) bson.Raw {
		if id := cursorID(reply); id != 0 {
			now := s.settings.Now()
			s.mu.Lock()
			s.cursors[id] = cursor{key, s.touch(key, now).life}
			s.mu.Unlock()
		}
		return reply
	}
}

func cursorID(reply bson.Raw) int64 {
	d, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return 0
	}
	return intOf(d.Lookup("id"))
}

// sessionGetMore ends a cursor whose session has ended. Reading on counts as use of the session that
// the getMore names; an open cursor alone does not.
func (s *State) sessionGetMore(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	id := intOf(r.Lookup("getMore"))
	key, named := keyOf(r)
	now := s.settings.Now()
	s.mu.Lock()
	c, known := s.cursors[id]
	ended := false
	if known {
		se := s.sessions[c.session]
		ended = se == nil || se.life != c.life || now.Sub(se.used) > s.settings.SessionTimeout && se.refs == 0
	}
	if ended {
		delete(s.cursors, id)
	}
	if named {
		if _, kept := s.sessions[key]; kept {
			s.touch(key, now)
		}
	}
	s.mu.Unlock()
	if ended {
		name, _ := r.Lookup("collection").StringValueOK()
		if _, err := r.Ask(marshal(bson.D{{Key: "killCursors", Value: name}, {Key: "cursors", Value: bson.A{id}}, {Key: "$db", Value: r.DB}})); err != nil {
			r.Cut()
			return nil, nil
		}
		return refuse(wire.CursorNotFound, "cursor id %d not found", id), nil
	}
	if !known {
		return nil, nil
	}
	return nil, func(reply bson.Raw) bson.Raw {
		if cursorID(reply) == 0 {
			s.mu.Lock()
			delete(s.cursors, id)
			s.mu.Unlock()
		}
		return reply
	}
}

func (s *State) dropKilled(reply bson.Raw) {
	arr, ok := reply.Lookup("cursorsKilled").ArrayOK()
	if !ok {
		return
	}
	values, _ := arr.Values()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range values {
		delete(s.cursors, intOf(v))
	}
}

// namedSessions are the sessions that a command lists.
func namedSessions(r *Request) []sessionKey {
	var keys []sessionKey
	for _, d := range r.Docs(r.Name) {
		if key, ok := keyFrom(r, d); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// endSessions ends the sessions' cursors. What they have on record stays, as config.transactions does.
func (s *State) endSessions(r *Request) {
	keys := namedSessions(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.active, key)
		if se := s.sessions[key]; se != nil {
			se.life++
		}
	}
}

func (s *State) refreshSessions(r *Request) {
	keys := namedSessions(r)
	now := s.settings.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if s.sessions[key] != nil {
			s.touch(key, now)
		}
	}
}
