package router

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey/element"
)

const (
	// shortLimit is the most documents that a find may ask for, and the most statements that a write may have, to count as short.
	shortLimit = 8
	// shortTime is the longest maxTimeMS of a short request: who allows more expects more.
	shortTime = 10 * time.Second
)

// shape is a backend.Shape in the making: FNV-1a over what tells how long a request takes.
type shape uint64

const fnvPrime = 1099511628211

// shapeOf begins the shape of a command.
func shapeOf(command string) shape {
	h := shape(14695981039346656037)
	for i := range len(command) {
		h = (h ^ shape(command[i])) * fnvPrime
	}
	return h
}

// name adds a name.
func (h shape) name(name string) shape {
	for i := range len(name) {
		h = (h ^ shape(name[i])) * fnvPrime
	}
	return (h ^ 0xff) * fnvPrime
}

// and adds a name.
func (h shape) and(name []byte) shape {
	for _, b := range name {
		h = (h ^ shape(b)) * fnvPrime
	}
	return (h ^ 0xff) * fnvPrime
}

// filter adds a filter: its fields and the types of their values, not the values. Of operators it takes the first one's name.
func (h shape) filter(filter bsoncore.Document) shape {
	it := element.In(filter)
	var e element.Element
	for it.Next(&e) {
		h = (h.and(e.Key) ^ shape(e.Type)) * fnvPrime
		if e.Type == bsoncore.TypeEmbeddedDocument && len(e.Data) > 5 {
			in := element.In(e.Data)
			var op element.Element
			if in.Next(&op) && len(op.Key) > 0 && op.Key[0] == '$' {
				h = h.and(op.Key)
			}
		}
	}
	return h
}

// shortFind returns the shape of a find that is to share a connection, 0 of any other.
func shortFind(q *Request, c *partition.Collection, a *findArgs) backend.Shape {
	if a.limit < 1 || a.limit > shortLimit || a.tailable || q.InTxn || q.MaxTime > shortTime {
		return 0
	}
	h := shapeOf("find").name(c.NS)
	if len(a.sort) > 5 {
		h = h.name("sort")
	}
	return backend.Shape(h.filter(bsoncore.Document(a.filter)))
}

// shape returns the shape of a message of a write command that is to share a connection, 0 of any other: it changes few documents, each
// found by a filter of the same kind.
func (b *writeBatch) shape(c *partition.Collection, k *chunk) backend.Shape {
	if len(k.stmts) > shortLimit || b.q.InTxn || b.q.MaxTime > shortTime {
		return 0
	}
	h := shapeOf(b.q.Command.Name).name(c.NS)
	if b.kind == &inserts {
		return backend.Shape(h)
	}
	for _, s := range k.stmts {
		many, filter := true, bsoncore.Document(nil)
		if b.kind == &updates {
			many = false
		}
		for rem := []byte(s.raw[4:]); len(rem) > 1; {
			e, rest, ok := bsoncore.ReadElement(rem)
			if !ok {
				return 0
			}
			rem = rest
			switch string(e.KeyBytes()) {
			case "q":
				filter, _ = e.Value().DocumentOK()
			case "multi":
				many = isTrue(e.Value())
			case "limit": // of a delete; 0 is all
				many = !isTrue(e.Value())
			}
		}
		if many {
			return 0
		}
		h = h.filter(filter)
	}
	return backend.Shape(h)
}
