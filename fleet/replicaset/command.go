package replicaset

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/rules"
)

// writes are commands that a secondary refuses, whatever the read preference.
var writes = []string{"insert", "update", "delete", "findAndModify", "findandmodify", "bulkWrite", "create", "drop", "dropDatabase", "createIndexes", "dropIndexes",
	"renameCollection", "collMod", "commitTransaction", "abortTransaction", "appendOplogNote", "applyOps", "setDefaultRWConcern"}

// reads are commands that a secondary answers only to those who say that they may be given to one.
var reads = []string{"find", "aggregate", "count", "distinct", "listCollections", "listIndexes", "listDatabases", "collStats", "dbStats", "dataSize"}

// command refuses what a member in its state refuses, and keeps cursors apart, which are a member's own.
func (m *Member) command(r *rules.Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	s := m.set
	s.mu.Lock()
	defer s.mu.Unlock()
	isPrimary := s.primary == m
	switch mode, _ := r.Lookup("$readPreference", "mode").StringValueOK(); {
	case r.Is("replSetGetConfig"):
		return m.configLocked(), nil
	case r.Is("replSetStepDown") && isPrimary:
		s.electLocked(m, s.options.Handover)
		s.newsLocked()
		return m.answer(bson.D{{Key: "ok", Value: 1.0}}), nil
	case !isPrimary && (r.Is(writes...) || r.Is("replSetStepDown")):
		return m.refuseLocked(r, 10107, "NotWritablePrimary", "not primary"), nil
	case !isPrimary && r.Is(reads...) && (mode == "" || mode == "primary"):
		return m.refuseLocked(r, 13435, "NotPrimaryNoSecondaryOk", "not primary and secondaryOk=false"), nil
	case r.Is("getMore"):
		id, _ := r.Lookup("getMore").AsInt64OK()
		if !m.cursors[id] {
			return m.answer(bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "cursor id not found"}, {Key: "code", Value: int32(43)}, {Key: "codeName", Value: "CursorNotFound"}}), nil
		}
		return nil, nil
	}
	return nil, m.noteCursor
}

// noteCursor remembers the cursor that a reply has left open.
func (m *Member) noteCursor(reply bson.Raw) bson.Raw {
	if id, ok := lookup(reply, "cursor", "id").AsInt64OK(); ok && id != 0 {
		m.set.mu.Lock()
		m.cursors[id] = true
		m.set.mu.Unlock()
	}
	return reply
}

// refuseLocked is an error after which clients look for the primary; a retryable write may be sent to that again.
func (m *Member) refuseLocked(r *rules.Request, code int32, name, text string) bson.Raw {
	d := bson.D{{Key: "topologyVersion", Value: bson.D{{Key: "processId", Value: m.process}, {Key: "counter", Value: m.set.version}}},
		{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: text}, {Key: "code", Value: code}, {Key: "codeName", Value: name}}
	if _, err := r.Body.LookupErr("txnNumber"); err == nil {
		d = append(d, bson.E{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}})
	}
	return m.answer(d)
}

// configLocked is the answer to replSetGetConfig.
func (m *Member) configLocked() bson.Raw {
	var members bson.A
	for i, host := range m.set.hosts() {
		members = append(members, bson.D{{Key: "_id", Value: int32(i)}, {Key: "host", Value: host}, {Key: "priority", Value: 1.0}, {Key: "votes", Value: int32(1)}})
	}
	return m.answer(bson.D{{Key: "config", Value: bson.D{{Key: "_id", Value: m.set.options.Name}, {Key: "version", Value: int32(1)}, {Key: "term", Value: int64(m.set.term)},
		{Key: "members", Value: members}, {Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: int32(10_000)}}}}}, {Key: "ok", Value: 1.0}})
}

func (m *Member) answer(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err) // it is made of nothing that cannot be encoded
	}
	return raw
}

func lookup(doc bson.Raw, key ...string) bson.RawValue {
	v, _ := doc.LookupErr(key...)
	return v
}
