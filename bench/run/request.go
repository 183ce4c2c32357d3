package main

import (
	"crypto/rand"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// request is a find as a driver sends it, with a session.
func request(key int32) ([]byte, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	body, err := bson.Marshal(bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "k", Value: key}, {Key: "_id", Value: key}}},
		{Key: "limit", Value: int64(1)}, {Key: "singleBatch", Value: true},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}}}, {Key: "$db", Value: "bench"}})
	return wire.AppendMsg(nil, key, 0, 0, body), err
}
