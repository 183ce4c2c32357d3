package rules

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// marshal encodes what the rules themselves have put together, which cannot fail.
func marshal(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// refuse is the reply {ok: 0, errmsg, code, codeName}.
func refuse(code wire.Code, format string, args ...any) bson.Raw {
	return wire.AppendErrorReply(nil, wire.Errorf(code, format, args...))
}

// without returns a document without some of its fields; itself when it has none of them.
func without(doc bson.Raw, keys ...string) bson.Raw {
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return doc
	}
	out := make([]byte, 4, len(doc))
	for _, e := range elems {
		if !slices.Contains(keys, e.Key()) {
			out = append(out, e...)
		}
	}
	if len(out) == len(doc)-1 {
		return doc
	}
	out, _ = bsoncore.AppendDocumentEnd(out, 0)
	return out
}

// with returns a document in which fields have new values: those that are there keep their place,
// the others come at the end.
func with(doc bson.Raw, fields ...bson.E) bson.Raw {
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return doc
	}
	out := make([]byte, 4, len(doc)+64)
	set := map[string]bool{}
	appendField := func(f bson.E) {
		one := marshal(bson.D{f})
		out = append(out, one[4:len(one)-1]...)
		set[f.Key] = true
	}
	for _, e := range elems {
		i := slices.IndexFunc(fields, func(f bson.E) bool { return f.Key == e.Key() })
		if i < 0 {
			out = append(out, e...)
			continue
		}
		appendField(fields[i])
	}
	for _, f := range fields {
		if !set[f.Key] {
			appendField(f)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, 0)
	return out
}

// intOf is a number of whatever type; 0 for anything else.
func intOf(v bson.RawValue) int64 {
	n, _ := v.AsInt64OK()
	return n
}

// timeOf is a timestamp; zero for anything else.
func timeOf(v bson.RawValue) bson.Timestamp {
	t, i, _ := v.TimestampOK()
	return bson.Timestamp{T: t, I: i}
}

func copyValue(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)}
}

// codeOf is the code of an error reply; 0 when the reply is ok.
func codeOf(reply bson.Raw) wire.Code {
	if wire.ReplyOK(reply) {
		return 0
	}
	return wire.Code(intOf(reply.Lookup("code")))
}

// timed returns a reply with the times of another.
func timed(reply, like bson.Raw) bson.Raw {
	var times []bson.E
	for _, key := range []string{"$clusterTime", "operationTime"} {
		if v, err := like.LookupErr(key); err == nil {
			times = append(times, bson.E{Key: key, Value: v})
		}
	}
	return with(reply, times...)
}

// quoteTime is a timestamp as a mongod writes it in its errors.
func quoteTime(t bson.Timestamp) string {
	return "Timestamp(" + itoa(int64(t.T)) + ", " + itoa(int64(t.I)) + ")"
}
