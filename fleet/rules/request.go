package rules

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// Request is a command on its way to the server. It is valid until its hook's edit has been called
// for the last reply; whoever keeps Body or Sequences copies them.
type Request struct {
	// Name is the command's name, as it was written.
	Name string
	// DB is the database it is for.
	DB string
	// Body is the command.
	Body bson.Raw
	// Sequences are documents that came beside the body.
	Sequences []wire.Sequence
	// Conn is the connection that it came over.
	Conn *Conn

	msg        wire.Msg
	id         int32
	flags      wire.Flags
	legacy     bool // an OP_QUERY, which is answered by an OP_REPLY
	compressor wire.Compressor
	plain      wire.Message // what a compressed message held
	changed    bool
	cut        bool
	counted    bool // by Finish
	edits      []func(bson.Raw) bson.Raw
	after      []func()
}

// parse returns the request that a message holds. It is nil without an error for a message that is
// not a command, and nil with one when the connection must be closed.
func (c *Conn) parse(m wire.Message) (*Request, error) {
	r := &Request{Conn: c, id: m.Header.RequestID}
	if m.Header.OpCode == wire.OpCompressed {
		plain, compressor, err := wire.Decompress(m)
		if err != nil {
			return nil, err
		}
		r.plain, r.compressor, r.changed = plain, compressor, true
		m = plain
	}
	switch m.Header.OpCode {
	case wire.OpQuery:
		q, err := wire.ParseQuery(m)
		if err != nil {
			r.release()
			return nil, err
		}
		db, isCommand := q.DB()
		if !isCommand {
			r.release()
			return nil, nil
		}
		r.DB, r.Body, r.legacy = db, q.Body, true
		if first, err := bsoncore.Document(q.Body).IndexErr(0); err == nil {
			r.Name = first.Key()
		}
		return r, nil
	case wire.OpMsg:
		err := wire.ParseMsg(m, &r.msg)
		if _, isError := err.(*wire.Error); isError {
			r.release()
			return nil, nil
		}
		if err != nil {
			r.release()
			return nil, err
		}
		r.Body, r.Sequences, r.flags = r.msg.Body, r.msg.Sequences, r.msg.Flags
		if r.Name, _, r.DB, err = r.msg.Command(); err != nil {
			r.release()
			return nil, nil
		}
		return r, nil
	}
	r.release()
	return nil, nil
}

// Context ends when the client has gone or the relay is closed.
func (r *Request) Context() context.Context { return r.Conn.ctx }

// Is reports whether the command has one of the names, in whatever case.
func (r *Request) Is(names ...string) bool {
	for _, name := range names {
		if strings.EqualFold(name, r.Name) {
			return true
		}
	}
	return false
}

// Lookup returns a field of the body; its zero value when there is none.
func (r *Request) Lookup(key ...string) bson.RawValue {
	v, _ := r.Body.LookupErr(key...)
	return v
}

// Target is the collection that the command is for; empty when its first field is no string.
func (r *Request) Target() string {
	s, _ := r.Lookup(r.Name).StringValueOK()
	return s
}

// Docs returns the documents of a sequence, or of the array that stands in the body instead of it.
func (r *Request) Docs(name string) []bson.Raw {
	for _, s := range r.Sequences {
		if s.Identifier != name {
			continue
		}
		var docs []bson.Raw
		for d := range s.All {
			docs = append(docs, d)
		}
		return docs
	}
	arr, ok := r.Lookup(name).ArrayOK()
	if !ok {
		return nil
	}
	values, _ := arr.Values()
	var docs []bson.Raw
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok {
			docs = append(docs, d)
		}
	}
	return docs
}

// WantsReply reports whether the client waits for a reply.
func (r *Request) WantsReply() bool { return r.flags&wire.MoreToCome == 0 }

// Streams reports whether the client takes a stream of replies (exhaust). A hook that answers such a
// request itself answers once; the client asks again.
func (r *Request) Streams() bool { return r.flags&wire.ExhaustAllowed != 0 }

// SetBody replaces the command.
func (r *Request) SetBody(body bson.Raw) { r.Body, r.changed = body, true }

// SetSequences replaces the documents beside the body.
func (r *Request) SetSequences(s ...wire.Sequence) { r.Sequences, r.changed = s, true }

// Cut closes the client's connection instead of answering.
func (r *Request) Cut() { r.cut = true }

// Ask runs a command on the server, over the server's side of this connection, before the request
// itself is sent. The error is one of the connection; what the server refuses is a reply.
func (r *Request) Ask(body bson.Raw, s ...wire.Sequence) (bson.Raw, error) {
	return r.Conn.ask(wire.AppendMsg(nil, r.id, 0, 0, body, s...))
}

// Finish says that the outcome of this request has to be learnt, even if the client goes away
// meanwhile. It waits while the relay is held, and returns false if the request must not begin
// because its client has gone. It is called before the first Ask or by a hook that lets the request
// pass. done, which may be nil, is called when all replies have been edited or none will come.
func (r *Request) Finish(done func()) bool {
	if done != nil {
		r.after = append(r.after, done)
	}
	if r.counted {
		return true
	}
	if !r.Conn.relay.begin(r.Conn.ctx) {
		return false
	}
	if !r.Conn.beginFinish() {
		r.Conn.relay.finished()
		return false
	}
	r.counted = true
	return true
}

// settle ends what Finish began, as soon as the outcome is known.
func (r *Request) settle() {
	for _, done := range r.after {
		done()
	}
	r.after = nil
	if r.counted {
		r.counted = false
		r.Conn.relay.finished()
		r.Conn.endFinish()
	}
}

func (r *Request) release() {
	r.settle()
	if r.plain.Buf != nil {
		r.plain.Release()
		r.plain.Buf = nil
	}
}

func (r *Request) compressed() bool { return r.compressor != wire.NoCompression }

func (r *Request) edit(reply bson.Raw) bson.Raw {
	for i := len(r.edits) - 1; i >= 0; i-- {
		reply = r.edits[i](reply)
	}
	return reply
}

// encode is the request as it goes to the server: never compressed, and without a checksum.
func (r *Request) encode(dst []byte, id int32) []byte {
	if r.legacy {
		return appendQuery(dst, id, r.DB, r.Body)
	}
	return wire.AppendMsg(dst, id, 0, r.flags&^wire.ChecksumPresent, r.Body, r.Sequences...)
}

func (r *Request) encodeReply(body bson.Raw, h wire.Header, flags wire.Flags) []byte {
	var msg []byte
	if r.legacy {
		msg = wire.AppendReply(nil, h.RequestID, r.id, !wire.ReplyOK(body), body)
	} else {
		msg = wire.AppendMsg(nil, h.RequestID, h.ResponseTo, flags, body)
	}
	if r.compressed() {
		return wire.AppendCompressed(nil, msg, r.compressor)
	}
	return msg
}

// appendQuery appends an OP_QUERY, which only handshakes are.
func appendQuery(dst []byte, id int32, db string, body bson.Raw) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, wire.HeaderLen+4)...)
	dst = append(append(dst, db...), ".$cmd\x00"...)
	dst = append(dst, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	dst = append(dst, body...)
	wire.PutHeader(dst[start:], wire.Header{MessageLength: int32(len(dst) - start), RequestID: id, OpCode: wire.OpQuery})
	return dst
}
