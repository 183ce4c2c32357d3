package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// branch is one partition's part of a read: a backend cursor and the documents of its last batch.
type branch struct {
	part *partition.Part
	host string
	id   int64 // the backend's cursor; 0 when it is exhausted
	docs []byte
	// batch is what docs was when it came; taken, how many documents of it were taken since.
	batch []byte
	taken int
	// reply owns docs.
	reply backend.Reply
	// ahead is the next batch, under way or there; nil when it has not been asked for.
	ahead *fetch
	// unsent says that the last attempt to ask for it ahead did not leave, so that whoever needs it shall ask, and be told why not.
	unsent bool
}

// take sets what a reply with a cursor brought. field is firstBatch or nextBatch.
func (b *branch) take(reply backend.Reply, field string) error {
	b.reply.Release()
	b.reply, b.docs, b.host = reply, nil, reply.Host
	cur, ok := bsoncore.Document(reply.Body).Lookup("cursor").DocumentOK()
	if !ok {
		return wire.Errorf(wire.InternalError, "backend '%s' answered without a cursor", b.part.Backend)
	}
	b.id, _ = cur.Lookup("id").AsInt64OK()
	arr, ok := cur.Lookup(field).ArrayOK()
	if !ok || len(arr) < 5 {
		return wire.Errorf(wire.InternalError, "backend '%s' answered without a %s", b.part.Backend, field)
	}
	b.docs, b.taken, b.unsent = arr[4:len(arr)-1], 0, false
	b.batch = b.docs
	return nil
}

// more is where the branch's next batch is asked for.
func (b *branch) more(q *Request) target {
	return target{Backend: b.part.Backend, Host: b.host, Cursor: q.txn == nil}
}

// next cuts the first document off the batch.
func (b *branch) next() (bson.Raw, bool) {
	if len(b.docs) == 0 {
		return nil, false
	}
	b.taken++
	elem, rest, ok := bsoncore.ReadElement(b.docs)
	if !ok {
		b.docs = nil
		return nil, false
	}
	b.docs = rest
	doc, ok := elem.Value().DocumentOK()
	return bson.Raw(doc), ok
}

// sampled is of how many documents sample looks at the sizes.
const sampled = 32

// sample tells from the first documents how many there are, about; false when they are none.
func (b *branch) sample() (n int64, ok bool) {
	rem := b.docs
	for n = 0; n < sampled && len(rem) > 0; n++ {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || bsoncore.Type(elem[0]) != bsoncore.TypeEmbeddedDocument {
			return 0, false
		}
		rem = rest
	}
	seen := int64(len(b.docs) - len(rem))
	return n * int64(len(b.docs)) / max(1, seen), n > 0
}

func (b *branch) exhausted() bool { return b.id == 0 && len(b.docs) == 0 && b.ahead == nil }

// worth reports whether a branch has a batch of which nothing has been taken and that is large enough to be a reply.
func (b *branch) worth() bool { return b.taken == 0 && len(b.docs) >= enough/4 }

// lastOf returns the last document of a batch, nil when it is not made of documents.
func (b *branch) lastOf() (doc bson.Raw) {
	for rem := b.batch; len(rem) > 0; {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok || bsoncore.Type(elem[0]) != bsoncore.TypeEmbeddedDocument {
			return nil
		}
		if rem = rest; len(rem) == 0 {
			doc = elem.Value().Data
		}
	}
	return doc
}

// settle hands replies to branches; the first error wins and replies that nobody takes are released.
func settle(who []*branch, replies []backend.Reply, errs []error, field string) error {
	var first error
	for i, br := range who {
		err := errs[i]
		if err == nil {
			if err = commandError(replies[i].Body); err != nil {
				replies[i].Release()
				br.id, br.docs = 0, nil
			} else {
				err = br.take(replies[i], field)
			}
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// settleOne hands one reply to a branch; field is found by what the reply has.
func settleOne(br *branch, reply backend.Reply, err error) error {
	if err != nil {
		br.id, br.docs = 0, nil
		return err
	}
	field := "firstBatch"
	if _, e := bsoncore.Document(reply.Body).LookupErr("cursor", "nextBatch"); e == nil {
		field = "nextBatch"
	}
	return settle([]*branch{br}, []backend.Reply{reply}, []error{nil}, field)
}
