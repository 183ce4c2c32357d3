package backendtest

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Hello is what a Server says of itself.
type Hello struct {
	// SetName makes it a member of a replica set; empty is a standalone.
	SetName string
	// Secondary makes a member a secondary instead of the primary.
	Secondary bool
	// Hosts are the set's members; empty is this server alone.
	Hosts []string
	// Primary is the primary's address as a secondary knows it.
	Primary string
	// Tags are the member's tags.
	Tags bson.D
	// ElectionID and SetVersion rank primaries; the zero ones are left out.
	ElectionID bson.ObjectID
	// MaxWireVersion is announced; 0 is 21 (7.0).
	MaxWireVersion int32
}

// ReplicaSet is the primary of a replica set of one.
func ReplicaSet(name string) Hello { return Hello{SetName: name} }

// Standalone is a server without a replica set.
func Standalone() Hello { return Hello{} }

func (h Hello) reply(addr string, cmd Command) bson.D {
	primary := !h.Secondary
	d := bson.D{
		{Key: "helloOk", Value: true},
		{Key: "ismaster", Value: primary},
		{Key: "isWritablePrimary", Value: primary},
		{Key: "maxBsonObjectSize", Value: int32(16 << 20)},
		{Key: "maxMessageSizeBytes", Value: int32(48_000_000)},
		{Key: "maxWriteBatchSize", Value: int32(100_000)},
		{Key: "localTime", Value: time.Now()},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)},
		{Key: "connectionId", Value: int32(cmd.Conn)},
		{Key: "minWireVersion", Value: int32(0)},
		{Key: "maxWireVersion", Value: h.wire()},
	}
	if h.SetName != "" {
		hosts := h.Hosts
		if len(hosts) == 0 {
			hosts = []string{addr}
		}
		d = append(d, bson.E{Key: "setName", Value: h.SetName}, bson.E{Key: "setVersion", Value: int32(1)},
			bson.E{Key: "hosts", Value: hosts}, bson.E{Key: "me", Value: addr}, bson.E{Key: "secondary", Value: h.Secondary})
		if primary {
			d = append(d, bson.E{Key: "primary", Value: addr})
			if !h.ElectionID.IsZero() {
				d = append(d, bson.E{Key: "electionId", Value: h.ElectionID})
			}
		} else if h.Primary != "" {
			d = append(d, bson.E{Key: "primary", Value: h.Primary})
		}
		if len(h.Tags) > 0 {
			d = append(d, bson.E{Key: "tags", Value: h.Tags})
		}
		d = append(d, bson.E{Key: "lastWrite", Value: bson.D{{Key: "lastWriteDate", Value: time.Now()}}})
	}
	return append(d, bson.E{Key: "ok", Value: 1.0})
}

func (h Hello) wire() int32 {
	if h.MaxWireVersion == 0 {
		return 21
	}
	return h.MaxWireVersion
}
