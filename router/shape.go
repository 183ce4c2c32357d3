package router

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

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

// and adds a name.
func (h shape) and(name []byte) shape {
	for _, b := range name {
		h = (h ^ shape(b)) * fnvPrime
	}
	return (h ^ 0xff) * fnvPrime
}

// filter adds a filter: its fields and the types of their values, not the values. Of operators it takes the first one's name.
func (h shape) filter(filter bsoncore.Document) shape {
	if len(filter) < 5 {
		return h
	}
	for rem := filter[4:]; len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		h = (h.and(e.KeyBytes()) ^ shape(e[0])) * fnvPrime
		if v := e.Value(); v.Type == bsoncore.TypeEmbeddedDocument && len(v.Data) > 5 {
			if op, _, ok := bsoncore.ReadElement(v.Data[4:]); ok && len(op.KeyBytes()) > 0 && op.KeyBytes()[0] == '$' {
				h = h.and(op.KeyBytes())
			}
		}
	}
	return h
}
