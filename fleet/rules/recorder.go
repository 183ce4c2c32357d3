package rules

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// Exchange is a command and one reply to it. All of it is the receiver's to keep.
type Exchange struct {
	Name, DB  string
	Body      bson.Raw
	Sequences []wire.Sequence
	Reply     bson.Raw
}

// Record is a hook that tells see of each command and each reply, as the client sent it and as it
// gets it if the hook is the first. A command that is not answered is not told of. see is called from
// several goroutines and is to return soon.
func Record(see func(Exchange)) Hook {
	return func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		x := Exchange{Name: r.Name, DB: r.DB, Body: slices.Clone(r.Body)}
		for _, s := range r.Sequences {
			x.Sequences = append(x.Sequences, wire.Sequence{Identifier: s.Identifier, Docs: slices.Clone(s.Docs)})
		}
		return nil, func(reply bson.Raw) bson.Raw {
			x.Reply = slices.Clone(reply)
			see(x)
			return reply
		}
	}
}
