package router

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// guardSays begins what a guarded pipeline fails with where it would change the shard key value. No number begins like that.
const guardSays = "the shard key would become one of type "

// conversionFailure is the code of the error that a guard raises in the backend.
const conversionFailure = 241

// guarded is an update pipeline with one stage more, which lets the document pass if its shard key value is want, and fails otherwise: whether a pipeline
// changes the value can only be known where it is run. The failing conversion depends on the document, so that no server works it out beforehand.
func guarded(pipeline bsoncore.Value, key *shardkey.Pattern, want bson.RawValue) bsoncore.Value {
	path := "$" + key.Path()
	isSame := bson.D{{Key: "$eq", Value: bson.A{
		bson.D{{Key: "$ifNull", Value: bson.A{path, nil}}},
		bson.D{{Key: "$literal", Value: want}},
	}}}
	fail := bson.D{{Key: "$toInt", Value: bson.D{{Key: "$concat", Value: bson.A{guardSays, bson.D{{Key: "$type", Value: path}}}}}}}
	stage, err := bson.Marshal(bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$cond", Value: bson.A{isSame, "$$ROOT", fail}}}}})
	if err != nil { // want was read as a valid value
		panic(err)
	}
	n := 0
	for it := []byte(pipeline.Data[4:]); len(it) > 1; n++ {
		_, rest, ok := bsoncore.ReadElement(it)
		if !ok {
			return pipeline // refused by the backend as it is
		}
		it = rest
	}
	dst := append(make([]byte, 0, len(pipeline.Data)+len(stage)+8), pipeline.Data[:len(pipeline.Data)-1]...)
	dst = closeDocument(bsoncore.AppendDocumentElement(dst, strconv.Itoa(n), stage), 0)
	return bsoncore.Value{Type: bsoncore.TypeArray, Data: dst}
}

// guardRefused reports whether an error of a backend is that of a guard.
func guardRefused(code int32, errmsg string) bool {
	return code == conversionFailure && strings.Contains(errmsg, guardSays)
}

// guardError is what a client is told of it.
func (op *operation) guardError(key *shardkey.Pattern, upsert bool) *wire.Error {
	if upsert {
		return unplaced(key)
	}
	return immutable(key, "delete the document and insert it anew under its other key")
}

// unplaced is the refusal of an upsert whose new document's shard key value nobody knows beforehand.
func unplaced(key *shardkey.Pattern) *wire.Error {
	return wire.Errorf(wire.ShardKeyNotFound, "failed to target upsert: the update computes the shard key %v, so the new document cannot be placed", key)
}

// narrow splits what a multi-document update that sets the key matches: same are the documents that have the value already, other are the rest, for which it
// must be refused. ok is false for values that a filter cannot be asked for.
func narrow(filter bson.Raw, path string, v bsoncore.Value) (same, other bson.Raw, ok bool) {
	switch v.Type {
	case bsoncore.TypeUndefined, bsoncore.TypeRegex, bsoncore.TypeArray:
		return nil, nil, false
	}
	with := func(operator string) bson.Raw {
		return andFilter(filter, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, path,
			bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, operator, v))))))
	}
	return with("$eq"), with("$ne"), true
}

// neverFilter is filter for an upsert that must insert: it gives the new document what filter says, and matches nothing, as every document has an _id. A
// condition that a server sees to be false would take the equalities with it.
func neverFilter(filter bson.Raw) bson.Raw {
	missing := bsoncore.BuildDocument(nil, bsoncore.AppendBooleanElement(nil, "$exists", false))
	return andFilter(filter, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "_id", missing))))
}

// inID reports whether the shard key lies in _id, which no backend lets an update of a document change.
func inID(key *shardkey.Pattern) bool {
	path := key.Path()
	return path == "_id" || strings.HasPrefix(path, "_id.")
}
