package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
)

// appendBirth appends the read concern of a read that may go to a secondary. A secondary that lags
// may have half of what was copied into a partition: the read waits there until it has all that was
// there at the partition's birth. "available" takes no such time and is raised to "local", which is
// the same on a server without shards. "linearizable" takes none either and needs none: only the
// primary answers it.
//
// The backend's own $clusterTime goes along: a server refuses a time above its clock (72), and a
// secondary's clock may be behind. The birth is the time of an entry that the set's oplog has, so a
// secondary reaches it by replication and need not wait for the no-op that an idle primary writes
// every ten seconds.
func (q *Request) appendBirth(dst []byte, p *partition.Part) []byte {
	birth := p.Info.Birth
	if q.birth.Compare(birth) > 0 {
		birth = q.birth
	}
	if level, _ := bsoncore.Document(q.ReadConcern).Lookup("level").StringValueOK(); birth.IsZero() || level == "linearizable" {
		if q.ReadConcern != nil {
			dst = bsoncore.AppendDocumentElement(dst, "readConcern", bsoncore.Document(q.ReadConcern))
		}
		return dst
	}
	at, dst := bsoncore.AppendDocumentElementStart(dst, "readConcern")
	elems, _ := bsoncore.Document(q.ReadConcern).Elements()
	for _, e := range elems {
		switch e.Key() {
		case "afterClusterTime":
			if t, i, ok := e.Value().TimestampOK(); ok && (bson.Timestamp{T: t, I: i}).Compare(birth) > 0 {
				birth = bson.Timestamp{T: t, I: i}
			}
		case "level":
			if level, _ := e.Value().StringValueOK(); level == "available" {
				dst = bsoncore.AppendStringElement(dst, "level", "local")
				continue
			}
			dst = append(dst, e...)
		default:
			dst = append(dst, e...)
		}
	}
	dst = bsoncore.AppendTimestampElement(dst, "afterClusterTime", birth.T, birth.I)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	r := q.Conn.r
	if b := r.cfg.Backends.Get(p.Backend); b != nil {
		if now := b.ClusterTime(r.life, birth); now != nil {
			dst = bsoncore.AppendDocumentElement(dst, "$clusterTime", bsoncore.Document(now))
		}
	}
	return dst
}

// bornAfter notes homes that a command names beside the one that it is sent to.
func (q *Request) bornAfter(parts []*partition.Part) {
	for _, p := range parts {
		if p.Info.Birth.Compare(q.birth) > 0 {
			q.birth = p.Info.Birth
		}
	}
}
