package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// nobody is the digest by which sessions name their user where there are no users.
var nobody = sha256.Sum256(nil)

// aggregateSessions answers pipelines that begin with $listLocalSessions or, on config.system.sessions, $listSessions: the sessions that this
// proxy has something of, which are those with a request or a cursor of theirs under way and those that have written.
func (r *Router) aggregateSessions(ctx context.Context, q *Request, ns string, a *aggArgs) (Reply, error) {
	stage := firstStage(a.pipeline)
	_, named := q.First.StringValueOK()
	switch {
	case stage == "$listSessions" && ns != "config.system.sessions":
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "$listSessions may only be run against config.system.sessions")
	case stage == "$listLocalSessions" && named:
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "$listLocalSessions must be run against the database with {aggregate: 1}, not a collection")
	}
	if err := checkSessionsSpec(stage, a.pipeline[0]); err != nil {
		return Reply{}, err
	}
	docs, err := r.listSessions()
	if err != nil {
		return Reply{}, err
	}
	b, err := r.overDocuments(ctx, q, docs, a.pipeline[1:])
	if err != nil {
		return Reply{}, err
	}
	over := ns
	if !named {
		over = q.DB + ".$cmd.aggregate"
	}
	return Reply{Body: cursorReply("firstBatch", b, 0, over, false)}, nil
}

// checkSessionsSpec accepts what asks for sessions that may be seen: without users, all of them.
func checkSessionsSpec(stage string, raw bson.Raw) error {
	spec, ok := bsoncore.Document(raw).Lookup(stage).DocumentOK()
	if !ok {
		return wire.Errorf(wire.TypeMismatch, "%s options must be specified in an object", stage)
	}
	elems, _ := spec.Elements()
	for _, e := range elems {
		switch e.Key() {
		case "allUsers":
			if _, ok := e.Value().BooleanOK(); !ok {
				return typeMismatch(stage+".allUsers", e.Value(), "bool")
			}
		case "users":
			if all, err := e.Value().Array().Values(); err == nil && len(all) > 0 {
				return wire.Errorf(wire.CommandNotSupported, "%s by users is not supported: there are none", stage)
			}
		default:
			return wire.Errorf(40415, "BSON field '%s.%s' is an unknown field.", stage, e.Key())
		}
	}
	return nil
}

// listSessions makes a document of each session, in the order of their ids.
func (r *Router) listSessions() ([]bson.Raw, error) {
	now := time.Now()
	last := map[sessionKey]time.Time{}
	note := func(id sessionKey, at time.Time) {
		if at.After(last[id]) {
			last[id] = at
		}
	}
	for _, id := range r.derived.clients() {
		note(id, r.started)
	}
	r.cursors.each(func(c *cursor) {
		if c.session != nil {
			var id sessionKey
			copy(id[:], sessionID(c.session))
			note(id, c.lastUsed)
		}
	})
	r.eachConn(func(c *Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.op != nil && c.op.Session != nil {
			note(c.op.clientSession(), now)
		}
	})
	ids := make([]sessionKey, 0, len(last))
	for id := range last {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b sessionKey) int { return bytes.Compare(a[:], b[:]) })
	docs := make([]any, len(ids))
	for i, id := range ids {
		docs[i] = bson.D{
			{Key: "_id", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: slices.Clone(id[:])}}, {Key: "uid", Value: bson.Binary{Data: nobody[:]}}}},
			{Key: "lastUse", Value: last[id]},
		}
	}
	return marshalAll(docs)
}
