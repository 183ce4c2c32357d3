package shardkey

import (
	"encoding/binary"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// A server that stores a new document replaces every Timestamp(0, 0) at its top by the current time, but for _id. It does so for inserts and for
// replacements. It leaves nested values alone, and what operators and pipelines set.

// EmptyTimestamp reports whether v, the shard key value of a document to insert or of a replacement, is one that a server replaces by the current time.
func (p *Pattern) EmptyTimestamp(v bsoncore.Value) bool {
	return v.Type == bsoncore.TypeTimestamp && len(v.Data) == 8 && binary.LittleEndian.Uint64(v.Data) == 0 && p.path != "_id" && !strings.Contains(p.path, ".")
}

// WithTimestamp returns a copy of doc whose shard key value, an EmptyTimestamp, is now.
func (p *Pattern) WithTimestamp(doc bson.Raw, now bson.Timestamp) (bson.Raw, error) {
	out := append(bson.Raw(nil), doc...)
	v, err := p.Value(out)
	if err != nil || !p.EmptyTimestamp(v) {
		return out, err
	}
	binary.LittleEndian.PutUint64(v.Data, uint64(now.T)<<32|uint64(now.I))
	return out, nil
}
