package shardkey

import (
	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// null is the value of a document that lacks the key's field.
var null = bsoncore.Value{Type: bsoncore.TypeNull}

// Value returns the shard key value of a document; it is part of doc's bytes. A missing field is null, as MongoDB has it since 4.4.
// An array as the value or anywhere on the key's path is 61 ShardKeyNotFound.
func (p Pattern) Value(doc bson.Raw) (bsoncore.Value, error) {
	return valueAt(doc, p.parts)
}

// valueAt follows parts into doc by the first element of each name.
func valueAt(doc []byte, parts []string) (bsoncore.Value, error) {
	for i, part := range parts {
		it := element.In(doc)
		var e element.Element
		found := false
		for it.Next(&e) {
			if string(e.Key) == part {
				found = true
				break
			}
		}
		switch {
		case it.Malformed():
			return bsoncore.Value{}, errMalformed
		case !found:
			return null, nil
		case e.Type == bsoncore.TypeArray && i < len(parts)-1:
			return bsoncore.Value{}, errArrayOnPath
		case e.Type == bsoncore.TypeArray:
			return bsoncore.Value{}, errArrayValue
		case i == len(parts)-1:
			return e.Value(), nil
		case e.Type != bsoncore.TypeEmbeddedDocument:
			return null, nil
		}
		doc = e.Data
	}
	return null, nil
}

// Position returns where a document belongs. Errors are Value's and HashValue's.
func (p Pattern) Position(doc bson.Raw) (Position, error) {
	v, err := valueAt(doc, p.parts)
	if err != nil {
		return 0, err
	}
	return HashValue(v)
}
