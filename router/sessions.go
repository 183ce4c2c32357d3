package router

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "startSession", API1: true, Help: "makes a session", Run: r.startSession},
		{Name: "endSessions", API1: true, Help: "ends sessions", Run: r.endSessions},
		{Name: "refreshSessions", API1: true, Help: "keeps sessions from ending", Run: r.refreshSessions},
		{Name: "killSessions", API1: true, Writes: true, Help: "ends sessions with what they are doing", Run: r.killSessions},
		{Name: "killAllSessions", Writes: true, Help: "ends all sessions with what they are doing", Run: r.killAllSessions},
		{Name: "killAllSessionsByPattern", Writes: true, Help: "ends the sessions that match with what they are doing", Run: r.killSessionsByPattern},
	}
})

const (
	// maxSessionsGiven is how many sessions one command may name.
	maxSessionsGiven = 10_000
	// sessionNewsTimeout is how long a backend may take to hear of sessions.
	sessionNewsTimeout = 10 * time.Second
	// maxSessionNews bounds the news to backends that are under way; more are dropped, since sessions end by themselves.
	maxSessionNews = 32
)

func (r *Router) startSession(context.Context, *Request) (Reply, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return docReply(bson.D{
		{Key: "id", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}}}},
		{Key: "timeoutMinutes", Value: int32(sessionTimeoutMinutes)},
	})
}

// sessionsGiven reads the array of session ids that is a command's first value.
func sessionsGiven(q *Request) ([]sessionKey, error) {
	arr, ok := q.First.ArrayOK()
	if !ok {
		return nil, typeMismatch(q.Name, q.First, "array")
	}
	values, err := arr.Values()
	if err != nil {
		return nil, wire.Errorf(wire.InvalidBSON, "'%s' is not a valid array", q.Name)
	}
	if len(values) > maxSessionsGiven {
		return nil, wire.Errorf(wire.BadValue, "%s takes at most %d sessions at once, got %d", q.Name, maxSessionsGiven, len(values))
	}
	keys := make([]sessionKey, 0, len(values))
	for _, v := range values {
		key, err := sessionOf(q.Name, v)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func sessionOf(field string, v bsoncore.Value) (key sessionKey, err error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return key, typeMismatch(field, v, "object")
	}
	id, err := doc.LookupErr("id")
	if err != nil {
		return key, wire.Errorf(40414, "BSON field '%s.id' is missing but a required field", field)
	}
	sub, data, ok := id.BinaryOK()
	if !ok || sub != bson.TypeBinaryUUID || len(data) != len(key) {
		return key, typeMismatch(field+".id", id, "UUID")
	}
	copy(key[:], data)
	return key, nil
}

// endSessions tells the backends, in the background, that sessions are over: those given and those that were derived from them.
func (r *Router) endSessions(_ context.Context, q *Request) (Reply, error) {
	keys, err := sessionsGiven(q)
	if err != nil {
		return Reply{}, err
	}
	r.abortWhere("its session was ended", func(t *transaction) bool { return slices.Contains(keys, t.session) })
	r.tellInBackground("endSessions", r.withDerived(keys, true))
	return Reply{Body: okBody}, nil
}

func (r *Router) refreshSessions(_ context.Context, q *Request) (Reply, error) {
	keys, err := sessionsGiven(q)
	if err != nil {
		return Reply{}, err
	}
	r.tellInBackground("refreshSessions", r.withDerived(keys, false))
	return Reply{Body: okBody}, nil
}

// killSessions ends what the sessions given are doing here and on all backends; none given is all of them.
func (r *Router) killSessions(ctx context.Context, q *Request) (Reply, error) {
	keys, err := sessionsGiven(q)
	if err != nil {
		return Reply{}, err
	}
	if len(keys) == 0 {
		return r.killEverySession(ctx, q)
	}
	r.killHere(q, func(id sessionKey) bool { return slices.Contains(keys, id) })
	if err := r.tell(ctx, "killSessions", r.withDerived(keys, true)); err != nil {
		return Reply{}, err
	}
	return Reply{Body: okBody}, nil
}

func (r *Router) killAllSessions(ctx context.Context, q *Request) (Reply, error) {
	arr, ok := q.First.ArrayOK()
	if !ok {
		return Reply{}, typeMismatch(q.Name, q.First, "array")
	}
	if values, err := arr.Values(); err != nil || len(values) > 0 {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s of certain users is not supported: there are no users; give an empty array to kill all sessions", q.Name)
	}
	return r.killEverySession(ctx, q)
}

// killSessionsByPattern kills by {lsid}; patterns of users match nothing, since there are none. No pattern is all sessions.
func (r *Router) killSessionsByPattern(ctx context.Context, q *Request) (Reply, error) {
	arr, ok := q.First.ArrayOK()
	if !ok {
		return Reply{}, typeMismatch(q.Name, q.First, "array")
	}
	values, err := arr.Values()
	if err != nil {
		return Reply{}, wire.Errorf(wire.InvalidBSON, "'%s' is not a valid array", q.Name)
	}
	if len(values) == 0 {
		return r.killEverySession(ctx, q)
	}
	var keys []sessionKey
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return Reply{}, typeMismatch(q.Name, v, "object")
		}
		lsid, err := doc.LookupErr("lsid")
		if err != nil {
			return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s by users or roles is not supported: there are none; give {lsid: …}", q.Name)
		}
		key, err := sessionOf(q.Name+".lsid", lsid)
		if err != nil {
			return Reply{}, err
		}
		keys = append(keys, key)
	}
	r.killHere(q, func(id sessionKey) bool { return slices.Contains(keys, id) })
	if err := r.tell(ctx, "killSessions", r.withDerived(keys, true)); err != nil {
		return Reply{}, err
	}
	return Reply{Body: okBody}, nil
}

// killEverySession ends every session of this proxy's clients, here and, by their ids, on the backends: sessions that others
// have at a backend are none of our business.
func (r *Router) killEverySession(ctx context.Context, q *Request) (Reply, error) {
	seen := map[sessionKey]bool{}
	note := func(id sessionKey) bool { seen[id] = true; return true }
	r.killHere(q, note)
	for _, id := range r.derived.clients() {
		note(id)
	}
	keys := make([]sessionKey, 0, len(seen))
	for id := range seen {
		keys = append(keys, id)
	}
	if err := r.tell(ctx, "killSessions", r.withDerived(keys, true)); err != nil {
		return Reply{}, err
	}
	return Reply{Body: okBody}, nil
}

// killHere ends the requests (but self) and the cursors of this proxy whose sessions match accepts. match is called under locks.
func (r *Router) killHere(self *Request, match func(sessionKey) bool) {
	killed := wire.Errorf(wire.Interrupted, "operation was interrupted because its session was killed")
	r.eachConn(func(c *Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.op != nil && c.op != self && c.op.Session != nil && match(c.op.clientSession()) {
			c.cancel(killed)
		}
	})
	r.abortWhere("its session was killed", func(t *transaction) bool { return match(t.session) })
	r.cursors.killWhere(func(c *cursor) bool {
		if c.session == nil {
			return false
		}
		var id sessionKey
		copy(id[:], sessionID(c.session))
		return match(id)
	})
}

// withDerived returns, by backend, the sessions given and what was derived from them there; with forget, it is also forgotten here.
func (r *Router) withDerived(keys []sessionKey, forget bool) map[*backend.Backend][]sessionKey {
	by := map[*backend.Backend][]sessionKey{}
	for _, b := range r.cfg.Backends.All() {
		by[b] = slices.Clone(keys)
	}
	for _, key := range keys {
		list := r.derived.get(key)
		if forget {
			r.retries.forget(key)
			r.txns.forget(key)
			list = r.derived.take(key)
		}
		for d := range list {
			if forget {
				r.retries.forget(d.ID)
			}
			if b := r.cfg.Backends.Get(d.Backend); b != nil {
				by[b] = append(by[b], d.ID)
			}
		}
	}
	return by
}

// tell runs a command about sessions on the backends, on all at once, and returns the first error.
func (r *Router) tell(ctx context.Context, command string, by map[*backend.Backend][]sessionKey) error {
	ctx, cancel := context.WithTimeout(ctx, sessionNewsTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for b, keys := range by {
		if len(keys) == 0 || b.Kind() != backend.KindReplicaSet {
			continue // a standalone has no sessions; one that was never reached has none of ours
		}
		wg.Go(func() {
			for part := range slices.Chunk(keys, maxSessionsGiven) {
				ids := make(bson.A, len(part))
				for i, k := range part {
					ids[i] = bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: k[:]}}}
				}
				if _, err := b.Run(ctx, "admin", bson.D{{Key: command, Value: ids}}); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

// tellInBackground is tell for news whose loss is of no consequence. Shutdown waits for it.
func (r *Router) tellInBackground(command string, by map[*backend.Backend][]sessionKey) {
	if r.sessionNews.Add(1) > maxSessionNews {
		r.sessionNews.Add(-1)
		return
	}
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		defer r.sessionNews.Add(-1)
		_ = r.tell(r.life, command, by)
	}()
}
