package router

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// killTimeout bounds what closing a cursor may wait for a backend; one that does not answer forgets the cursor by its own clock.
const killTimeout = 5 * time.Second

// killBackendCursor ends a branch's cursor at its backend, in the background: nobody waits for it but Shutdown.
func (r *Router) killBackendCursor(br *branch, session bson.Raw) {
	if br.id == 0 {
		return
	}
	end := branch{part: br.part, host: br.host, id: br.id}
	br.id = 0
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		r.sendKill(&end, session)
	}()
}

// sendKill tells a backend to end a branch's cursor.
func (r *Router) sendKill(br *branch, session bson.Raw) {
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendStringElement(d, "killCursors", br.part.Physical)
	at, d := bsoncore.AppendArrayElementStart(d, "cursors")
	d = bsoncore.AppendInt64Element(d, "0", br.id)
	d, _ = bsoncore.AppendArrayEnd(d, at)
	if session != nil {
		d = bsoncore.AppendDocumentElement(d, "lsid", bsoncore.Document(session))
	}
	d = bsoncore.AppendStringElement(d, "$db", br.part.DB)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	reply, err := r.do(ctx, target{Backend: br.part.Backend, Host: br.host, Cursor: true}, wire.AppendMsg(nil, 0, 0, 0, d))
	if err == nil {
		reply.Release()
	}
}

// killCursors answers the command of that name: cursors of this proxy by their ids.
func (r *Router) killCursors(_ context.Context, q *Request) (Reply, error) {
	ns, err := q.cursorNS()
	if err != nil {
		return Reply{}, err
	}
	arr, ok := bsoncore.Document(q.Msg.Body).Lookup("cursors").ArrayOK()
	if !ok {
		return Reply{}, wire.Errorf(40414, "BSON field 'killCursors.cursors' is missing but a required field")
	}
	values, err := arr.Values()
	if err != nil {
		return Reply{}, wire.Errorf(wire.InvalidBSON, "killCursors.cursors is not a valid array")
	}
	killed, missing := bsoncore.NewArrayBuilder(), bsoncore.NewArrayBuilder()
	for _, v := range values {
		id, ok := v.Int64OK()
		if !ok {
			return Reply{}, typeMismatch("killCursors.cursors", v, "long")
		}
		if r.cursors.kill(id, ns) {
			killed.AppendInt64(id)
		} else {
			missing.AppendInt64(id)
		}
	}
	none := bsoncore.NewArrayBuilder().Build()
	body := bsoncore.NewDocumentBuilder().
		AppendArray("cursorsKilled", killed.Build()).
		AppendArray("cursorsNotFound", missing.Build()).
		AppendArray("cursorsAlive", none).
		AppendArray("cursorsUnknown", none).
		AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

// cursorNS is the namespace of the command's cursors: a collection's, or the one that lists have which belong to none ("db.$cmd.listCollections").
func (q *Request) cursorNS() (string, error) {
	if name, ok := q.First.StringValueOK(); ok && strings.HasPrefix(name, "$cmd.") {
		return q.DB + "." + name, nil
	}
	return q.NS()
}
