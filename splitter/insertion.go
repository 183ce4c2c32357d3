package splitter

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// insertion is an insert of documents into one home, made as the message that is sent: a document is copied once, byte for byte, and never decoded.
type insertion struct {
	b   *backend.Backend
	h   partition.Home
	buf *wire.Buffer
	// at is where in buf the section of the documents begins.
	at int
	n  int
	// zeros are the documents that a server changes when it inserts them.
	zeros []zeroed
	// session is nil where the server knows no retryable writes.
	session *writeSession
}

// writeSession is a session whose writes a server applies once, however often they come. One insertion uses it at a time.
type writeSession struct {
	lsid bson.D
	txn  int64
}

const documentsList = "documents"

// knowsCollectionUUID is the wire version from which servers (6.0) refuse a write, with 361, that
// names the UUID of another collection than the one it finds, or finds none.
const knowsCollectionUUID = 17

// newInsertion begins an insert into an output, for about so many bytes.
func (r *reshape) newInsertion(o output, size int) (*insertion, error) {
	h := o.Home
	b := r.s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", h.Backend)
	}
	in := &insertion{b: b, h: h}
	cmd := bson.D{{Key: "insert", Value: h.Physical}, {Key: "ordered", Value: r.info.special()}, {Key: "bypassDocumentValidation", Value: true}, majority}
	if o.made.hasUUID && field(o.made.options, "timeseries") == nil && b.MaxWireVersion() >= knowsCollectionUUID {
		// So that an insert which finds no collection does not make one, without its options and
		// indexes.
		cmd = append(cmd, bson.E{Key: "collectionUUID", Value: o.made.uuid})
	}
	if b.Kind() != backend.KindStandalone {
		in.session = r.takeSession(h.Backend)
		cmd = append(cmd, bson.E{Key: "lsid", Value: in.session.lsid}, bson.E{Key: "txnNumber", Value: in.session.txn})
	}
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: h.DB}))
	if err != nil {
		return nil, err
	}
	in.buf = wire.GetBuffer(size + len(body) + 64)
	in.at, in.buf.B = wire.AppendSequenceStart(append(wire.AppendMsgStart(in.buf.B[:0]), body...), documentsList)
	return in, nil
}

// add copies a document into the message.
func (in *insertion) add(doc bson.Raw) {
	in.buf.Grow(len(doc))
	in.buf.B = append(in.buf.B, doc...)
	if fields := zeros(doc); fields != nil {
		in.zeros = append(in.zeros, zeroed{in.n, fields})
	}
	in.n++
}

// doc returns one of the documents.
func (in *insertion) doc(i int) bson.Raw {
	rem := in.buf.B[in.at+4+len(documentsList)+1:]
	for ; i > 0; i-- {
		rem = rem[binary.LittleEndian.Uint32(rem):]
	}
	return bson.Raw(rem[:binary.LittleEndian.Uint32(rem)])
}

// insertTries is how often an insertion is sent whose outcome is not known. The server applies it once.
const insertTries = 2

// send inserts the documents and gives back what the insertion holds. Equal entries of unique indexes are a duplicateError.
func (r *reshape) send(ctx context.Context, in *insertion) error {
	defer in.buf.Release()
	wire.EndSequence(in.buf.B, in.at)
	refused, err := r.deliver(ctx, in, wire.Seal(in.buf.B, 0))
	if (err == nil || isDuplicate(err)) && len(in.zeros) > 0 {
		switch zerr := r.writeZeros(ctx, in, refused); {
		case zerr != nil && !isDuplicate(zerr):
			return zerr
		case err == nil:
			err = zerr
		}
	}
	if err == nil || isDuplicate(err) {
		r.giveSession(in.h.Backend, in.session)
	}
	return err
}

// deliver sends a message of the insertion's session until its outcome is known, and returns the
// places of what was refused. Equal entries of unique indexes are a duplicateError, anything else
// has the attempt begin anew.
func (r *reshape) deliver(ctx context.Context, in *insertion, msg []byte) (refused map[int]bool, err error) {
	tries := insertTries
	if in.session == nil {
		tries = 1
	}
	for {
		refused, err = r.outcome(ctx, in, msg)
		if tries--; tries > 0 && wire.Retriable(err) && ctx.Err() == nil {
			continue
		}
		if err == nil || isDuplicate(err) {
			return refused, err
		}
		return nil, retryable{err}
	}
}

// outcome sends the message once and reads the reply.
func (r *reshape) outcome(ctx context.Context, in *insertion, msg []byte) (refused map[int]bool, err error) {
	reply, err := in.b.Do(ctx, backend.Request{Message: msg})
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	if err := wire.ErrorFromReply(reply.Body); err != nil {
		return nil, err
	}
	if err := wire.WriteConcernError(reply.Body); err != nil {
		return nil, &backend.UnconfirmedError{Concern: err}
	}
	errs, ok := bsoncore.Document(reply.Body).Lookup("writeErrors").ArrayOK()
	if !ok {
		return nil, nil
	}
	vals, err := errs.Values()
	if err != nil || len(vals) == 0 {
		return nil, err
	}
	var dup duplicateError
	refused = make(map[int]bool, len(vals))
	for _, v := range vals {
		we, _ := v.DocumentOK()
		code, _ := we.Lookup("code").AsInt64OK()
		text, _ := we.Lookup("errmsg").StringValueOK()
		dup.error = wire.Errorf(wire.Code(code), "%s", text)
		if wire.Code(code) != wire.DuplicateKey {
			return nil, dup.error
		}
		i, ok := we.Lookup("index").AsInt64OK()
		refused[int(i)] = true
		if _, e := we.LookupErr("keyPattern", "_id"); e == nil && len(r.inputs) > 1 && ok && i >= 0 && i < int64(in.n) {
			id := in.doc(int(i)).Lookup("_id")
			dup.ids = append(dup.ids, bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)})
		}
	}
	return refused, dup
}

// takeSession returns a session for one insertion, with a number that it has not had.
func (r *reshape) takeSession(backendID string) *writeSession {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := r.writing[backendID]
	var s *writeSession
	if n := len(free); n > 0 {
		s, r.writing[backendID] = free[n-1], free[:n-1]
	} else {
		s = &writeSession{lsid: newSession()}
	}
	s.txn++
	return s
}

// giveSession lets another insertion use a session whose last one has ended for sure.
func (r *reshape) giveSession(backendID string, s *writeSession) {
	if s == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing == nil {
		r.writing = map[string][]*writeSession{}
	}
	r.writing[backendID] = append(r.writing[backendID], s)
}
