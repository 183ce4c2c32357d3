package splitter

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// scan reads a home to its end with majority, on a connection of the backend's own: a document is looked at where it came in, and never decoded.
type scan struct {
	b     *backend.Backend
	h     partition.Home
	batch int32
	// lsid is the session that the server's cursor belongs to. A cursor in a session lives as long
	// as the session, so it needs no noCursorTimeout, which servers refuse (168) on views and
	// time-series collections; and it ends when this process does.
	lsid bson.D
	// rested ends what renews the session, and waits for that.
	rested func()
	host   string
	id     int64 // of the server's cursor; 0 when it has no more
	// reply owns docs, the documents of the batch that were not taken yet.
	reply backend.Reply
	docs  []byte
	// doc is what next has found, of use until the next call; err is why it found nothing, nil at the end.
	doc bson.Raw
	err error
}

// closeLimit is how long ending a server's cursor may take.
const closeLimit = 10 * time.Second

// scan begins to read a home, in batches of so many documents; sort may be nil for the order that the server likes best.
func (s *Splitter) scan(ctx context.Context, h partition.Home, batch int, sort bson.D) (*scan, error) {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", h.Backend)
	}
	c := &scan{b: b, h: h, batch: int32(batch), lsid: newSession()}
	cmd := bson.D{{Key: "find", Value: h.Physical}, {Key: "filter", Value: bson.D{}}, {Key: "batchSize", Value: c.batch},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}}
	if sort != nil {
		cmd = append(cmd, bson.E{Key: "sort", Value: sort}, bson.E{Key: "allowDiskUse", Value: true})
	}
	err := c.ask(ctx, cmd, "firstBatch")
	if wire.Retriable(err) { // nothing was read yet
		err = c.ask(ctx, cmd, "firstBatch")
	}
	if err != nil {
		return nil, err
	}
	if c.id != 0 {
		c.rested = s.renewSession(ctx, b, c.host, c.lsid)
	}
	return c, nil
}

// renewEvery is how often the session of a scan is renewed. A server ends a session, and its
// cursors with it, that was not used for 30 minutes; a scan may rest for longer between two
// batches, as when it meets few documents of the other side, or its bytes are bounded.
const renewEvery = time.Minute

// renewSession renews a session on a host until the function that it returns is called.
func (s *Splitter) renewSession(ctx context.Context, b *backend.Backend, host string, lsid bson.D) (end func()) {
	every := s.cfg.renewSessions
	if every == 0 {
		every = renewEvery
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(ctx, every) == nil {
			// A failure shows where the cursor is used next.
			within, stop := context.WithTimeout(ctx, closeLimit)
			_, _ = b.RunOn(within, backend.Target{Host: host}, "admin", bson.D{{Key: "refreshSessions", Value: bson.A{lsid}}})
			stop()
		}
	}()
	return func() { cancel(); <-done }
}

// newSession is an lsid that nobody else has.
func newSession() bson.D {
	id := catalog.NewUUID()
	return bson.D{{Key: "id", Value: id}}
}

// next takes the next document; false at the end and after an error.
func (c *scan) next(ctx context.Context) bool {
	for len(c.docs) == 0 {
		if c.err != nil || c.id == 0 {
			return false
		}
		c.err = c.ask(ctx, bson.D{{Key: "getMore", Value: c.id}, {Key: "collection", Value: c.h.Physical}, {Key: "batchSize", Value: c.batch}}, "nextBatch")
	}
	e, rest, ok := bsoncore.ReadElement(c.docs)
	var doc bsoncore.Document
	if ok {
		doc, ok = e.Value().DocumentOK()
	}
	if !ok {
		c.docs, c.err = nil, wire.Errorf(wire.InternalError, "backend '%s' answered with a batch that is not made of documents", c.h.Backend)
		return false
	}
	c.doc, c.docs = bson.Raw(doc), rest
	return true
}

// ask gets a batch.
func (c *scan) ask(ctx context.Context, cmd bson.D, field string) error {
	c.reply.Release()
	c.docs, c.doc = nil, nil
	body, err := bson.Marshal(append(cmd, bson.E{Key: "lsid", Value: c.lsid}, bson.E{Key: "$db", Value: c.h.DB}))
	if err != nil {
		return err
	}
	if c.reply, err = c.b.Do(ctx, backend.Request{Message: wire.AppendMsg(nil, 0, 0, 0, body), Host: c.host}); err != nil {
		return err
	}
	if err := wire.ErrorFromReply(c.reply.Body); err != nil {
		return err
	}
	cur, _ := bsoncore.Document(c.reply.Body).Lookup("cursor").DocumentOK()
	docs, ok := cur.Lookup(field).ArrayOK()
	if !ok || len(docs) < 5 {
		return wire.Errorf(wire.InternalError, "backend '%s' answered without a %s", c.h.Backend, field)
	}
	c.id, _ = cur.Lookup("id").AsInt64OK()
	c.docs, c.host = docs[4:len(docs)-1], c.reply.Host
	return nil
}

// close ends the server's cursor, if there is one, and gives back what was read. c.doc is of no use any more.
func (c *scan) close(ctx context.Context) {
	c.reply.Release()
	c.docs, c.doc = nil, nil
	if c.rested != nil {
		c.rested()
	}
	if c.id == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	_, _ = c.b.RunOn(ctx, backend.Target{Host: c.host}, c.h.DB, bson.D{{Key: "killCursors", Value: c.h.Physical}, {Key: "cursors", Value: bson.A{c.id}}, {Key: "lsid", Value: c.lsid}})
}
