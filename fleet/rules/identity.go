package rules

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func (s *State) hello(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	isHello := r.Is("hello", "ismaster")
	own, server := r.Conn.relay.Addr(), r.Conn.server.RemoteAddr().String()
	return nil, func(reply bson.Raw) bson.Raw {
		reply = renamed(reply, server, own)
		if isHello && !reply.Lookup("maxWireVersion").IsZero() {
			reply = with(reply, bson.E{Key: "maxWireVersion", Value: profiles[s.settings.Version].wire})
		}
		return reply
	}
}

func (s *State) buildInfo(*Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	v := profiles[s.settings.Version].version
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != 0 {
			return reply
		}
		parts := []string{itoa(int64(v[0])), itoa(int64(v[1])), itoa(int64(v[2]))}
		return with(reply, bson.E{Key: "version", Value: strings.Join(parts, ".")}, bson.E{Key: "versionArray", Value: v})
	}
}

// renamed puts one string in the place of another, wherever it is a value.
func renamed(doc bson.Raw, from, to string) bson.Raw {
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return doc
	}
	out := make([]byte, 4, len(doc)+32)
	for _, e := range elems {
		v := e.Value()
		key := e.Key()
		switch {
		case v.Type == bsoncore.TypeString && v.StringValue() == from:
			out = bsoncore.AppendStringElement(out, key, to)
		case v.Type == bsoncore.TypeEmbeddedDocument:
			out = bsoncore.AppendDocumentElement(out, key, bsoncore.Document(renamed(bson.Raw(v.Document()), from, to)))
		case v.Type == bsoncore.TypeArray:
			out = bsoncore.AppendArrayElement(out, key, bsoncore.Array(renamed(bson.Raw(v.Array()), from, to)))
		default:
			out = append(out, e...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, 0)
	return out
}
