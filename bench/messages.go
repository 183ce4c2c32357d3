package main

import (
	"bytes"
	"crypto/rand"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

var okDouble = []byte("\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f")

// failed reports a reply without ok: 1 or with an error of a write.
func failed(reply []byte) bool {
	return !bytes.Contains(reply, okDouble) || bytes.Contains(reply, []byte("writeErrors"))
}

// halves is how many partitions bench.c has on each of its two backends: the catalog's, which holds the lower half of the positions, and the stub.
const halves = 8

// stubKeys are keys of documents on the stub; stubKeys[i] is in the partition i%halves of it.
var stubKeys = func() []int32 {
	keys := make([]int32, 4096)
	var next [halves]int
	for k, left := int32(1), len(keys); left > 0; k++ {
		pos, err := shardkey.HashValue(bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, k)})
		if err != nil {
			panic("BUG: " + err.Error())
		}
		part := int(pos>>60) - halves
		if part < 0 {
			continue
		}
		if i := part + next[part]*halves; i < len(keys) {
			keys[i] = k
			next[part]++
			left--
		}
	}
	return keys
}()

func stubKey(i int) int32 { return stubKeys[i%len(stubKeys)] }

// session is what a driver sends with every command: an lsid and, once it has seen one, a cluster time.
func session() bson.D {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return bson.D{{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}}}}
}

// message makes an OP_MSG of a command on bench, with documents in a section of their own.
func message(cmd bson.D, list string, docs ...any) []byte {
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "bench"}))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	if list == "" {
		return wire.AppendMsg(nil, 1, 0, 0, body)
	}
	seq := wire.Sequence{Identifier: list}
	for _, d := range docs {
		raw, err := bson.Marshal(d)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		seq.Docs = append(seq.Docs, raw...)
	}
	return wire.AppendMsg(nil, 1, 0, 0, body, seq)
}

// findMessage is the find of one document by its key, as FindOne sends it.
func findMessage(i int) ([]byte, int) {
	return findBy(stubKey(i), i)
}

func findBy(key, id any) ([]byte, int) {
	cmd := bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "k", Value: key}, {Key: "_id", Value: id}}},
		{Key: "limit", Value: int64(1)}, {Key: "singleBatch", Value: true}}
	return message(append(cmd, session()...), ""), 0
}

// document is one of about 1 KB.
func document(id, k any) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}, {Key: "pad", Value: strings.Repeat("x", 900)}}
}

// insertMessage inserts one document of 1 KB.
func insertMessage(i int) ([]byte, int) {
	return message(append(bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: true}}, session()...), "documents", document(i, stubKey(i))), 0
}

// retryableMessage is insertMessage as a retryable write.
func retryableMessage(i int) ([]byte, int) {
	cmd := append(bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: true}}, session()...)
	return withNumber(message(append(cmd, bson.E{Key: "txnNumber", Value: int64(1)}), "documents", document(i, stubKey(i))))
}

// updateMessage sets 1 KB in one document.
func updateMessage(i int) ([]byte, int) {
	cmd := append(bson.D{{Key: "update", Value: "c"}, {Key: "ordered", Value: true}}, session()...)
	return message(cmd, "updates", bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: stubKey(i)}, {Key: "_id", Value: i}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "pad", Value: strings.Repeat("y", 900)}}}}}}), 0
}

// withNumber finds where a message has its transaction number.
func withNumber(msg []byte) ([]byte, int) {
	return msg, bytes.Index(msg, []byte("\x12txnNumber\x00")) + len("\x12txnNumber\x00")
}
