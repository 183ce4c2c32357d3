package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey/element"
)

// consumed reports whether a top-level field belongs to the conversation with the client and is made anew, or left out, for
// a backend (mongos-behaviour §1.6).
func consumed(key []byte) bool {
	switch string(key) {
	case "$db", "$clusterTime", "$readPreference", "lsid", "txnNumber", "autocommit", "startTransaction", "stmtId", "stmtIds",
		"maxTimeMS", "apiVersion", "apiStrict", "apiDeprecationErrors",
		"$client", "$audit", "$configServerState", "$oplogQueryData", "$replData", "shardVersion", "databaseVersion",
		"maxTimeMSOpOnly", "$configTime", "$topologyTime", "tracking_info", "clientOperationKey", "txnRetryCounter":
		return true
	}
	return false
}

// appendFor appends the request's own command as a home must see it: the collection's name replaced by the physical one, the
// fields of the conversation with the client left out, those whose name drop accepts left out too. more, if not nil, appends further
// elements. The session is appended unless withSession is false (a derived one takes its place).
func (q *Request) appendFor(dst []byte, p *partition.Part, withSession bool, drop func(key []byte) bool, more func([]byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	// What writes goes to the primary and takes no time; validate counts as that.
	waits := q.ReadPref != nil && !q.Command.Writes
	it := element.In(q.Msg.Body) // which parseShared has walked
	var e element.Element
	for first := true; it.Next(&e); first = false {
		switch {
		case first:
			dst = bsoncore.AppendStringElement(dst, q.Command.Name, p.Physical)
		case waits && string(e.Key) == "readConcern":
			// made anew below
		case consumed(e.Key) || drop != nil && drop(e.Key) || q.txn != nil && string(e.Key) == "readConcern":
		default:
			dst = append(dst, e.Raw...)
		}
	}
	if waits {
		dst = q.appendBirth(dst, p)
	}
	if more != nil {
		dst = more(dst)
	}
	if withSession && q.Session != nil {
		dst = q.appendSession(dst, q.Session)
	}
	dst = q.appendTail(dst, p.DB)
	return closeDocument(dst, start)
}

// appendTail appends what every command to a backend ends with: the time that is left, the read preference and the database.
func (q *Request) appendTail(dst []byte, db string) []byte {
	if left := q.remaining(); left > 0 {
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", left.Milliseconds())
	}
	if q.ReadPref != nil {
		dst = bsoncore.AppendDocumentElement(dst, "$readPreference", secondaryPreferred)
	}
	return bsoncore.AppendStringElement(dst, "$db", db)
}

// secondaryPreferred tells a host that was chosen already that it may answer as a secondary.
var secondaryPreferred = bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "mode", "secondaryPreferred"))

// closeDocument ends a document that begins at start of dst with four bytes for its length.
func closeDocument(dst []byte, start int) []byte {
	dst = append(dst, 0)
	n := len(dst) - start
	dst[start], dst[start+1], dst[start+2], dst[start+3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return dst
}

// stripped reports whether a top-level field of a backend's reply is not passed on (mongos-behaviour §1.6).
func stripped(key []byte) bool {
	switch string(key) {
	case "$clusterTime", "operationTime", "$configServerState", "$gleStats", "lastCommittedOpTime", "readOnly",
		"$configTime", "$replData", "$topologyTime", "$oplogQueryData", "electionId", "opTime":
		return true
	}
	return false
}

// relay copies a backend's ok reply for the client without what is not passed on.
func relay(body bson.Raw) bson.Raw {
	dst := make([]byte, 4, len(body))
	rem := body[4:]
	for len(rem) > 1 {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		if !stripped(elem.KeyBytes()) {
			dst = append(dst, elem...)
		}
	}
	return closeDocument(dst, 0)
}

// relayCursor copies a backend's reply that holds a cursor, with our id and the client's namespace.
func relayCursor(body bson.Raw, id int64, ns string) bson.Raw {
	return appendRelayedCursor(make([]byte, 0, len(body)+len(ns)), body, id, ns)
}

// appendRelayedCursor appends what relayCursor returns.
func appendRelayedCursor(dst []byte, body bson.Raw, id int64, ns string) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	it := element.In(body)
	var e element.Element
	for it.Next(&e) {
		switch {
		case string(e.Key) == "cursor":
			dst = appendCursor(dst, e.Data, id, ns)
		case stripped(e.Key):
		default:
			dst = append(dst, e.Raw...)
		}
	}
	return closeDocument(dst, start)
}

// appendEndedCursor is appendRelayedCursor for a reply that is ok and leaves no cursor open; false for any other one.
func appendEndedCursor(dst []byte, body bson.Raw, ns string) (_ []byte, plain bool) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	ok, ended := false, false
	it := element.In(body)
	var e element.Element
	for it.Next(&e) {
		switch {
		case string(e.Key) == "cursor":
			id, _ := element.Lookup(e.Data, "id")
			n, whole := id.AsInt64OK()
			ended = whole && n == 0
			dst = appendCursor(dst, e.Data, 0, ns)
			continue
		case stripped(e.Key):
			continue
		case string(e.Key) == "ok":
			n, number := e.Value().AsFloat64OK()
			ok = number && n == 1
		}
		dst = append(dst, e.Raw...)
	}
	return closeDocument(dst, start), ok && ended && !it.Malformed()
}

func appendCursor(dst, cur []byte, id int64, ns string) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
	it := element.In(cur)
	var e element.Element
	for it.Next(&e) {
		switch string(e.Key) {
		case "id":
			dst = bsoncore.AppendInt64Element(dst, "id", id)
		case "ns":
			dst = bsoncore.AppendStringElement(dst, "ns", ns)
		default:
			dst = append(dst, e.Raw...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}
