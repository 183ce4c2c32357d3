package replicaset

import (
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/rules"
)

// hello answers a member's handshakes and heartbeats: what the server says of itself, in the member's words. A client that names the topologyVersion it knows
// and a maxAwaitTimeMS is answered when there is news, or when that time has passed.
func (m *Member) hello(r *rules.Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if !r.Is("hello", "isMaster", "ismaster") {
		return nil, nil
	}
	m.await(r)
	ask := without(r.Body, "topologyVersion", "maxAwaitTimeMS", "compression")
	if r.Lookup("$db").IsZero() { // an OP_QUERY has it beside its document
		ask = concat(ask, m.answer(bson.D{{Key: "$db", Value: "admin"}}))
	}
	reply, err := r.Ask(ask)
	if err != nil {
		r.Cut()
		return nil, nil
	}
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	return m.describeLocked(reply), nil
}

// await waits until there is something that the client of an awaitable hello does not know.
func (m *Member) await(r *rules.Request) {
	counter, known := r.Lookup("topologyVersion", "counter").AsInt64OK()
	millis, waits := r.Lookup("maxAwaitTimeMS").AsInt64OK()
	process, _ := r.Lookup("topologyVersion", "processId").ObjectIDOK()
	if !known || !waits || process != m.process {
		return
	}
	limit := time.NewTimer(time.Duration(millis) * time.Millisecond)
	defer limit.Stop()
	for {
		m.set.mu.Lock()
		version, changed := m.set.version, m.set.changed
		m.set.mu.Unlock()
		if version != counter {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// describeLocked makes the member's reply of the server's.
func (m *Member) describeLocked(reply bson.Raw) bson.Raw {
	s := m.set
	isPrimary := s.primary == m
	says := bson.D{
		{Key: "ismaster", Value: isPrimary}, {Key: "isWritablePrimary", Value: isPrimary}, {Key: "secondary", Value: !isPrimary},
		{Key: "setName", Value: s.options.Name}, {Key: "setVersion", Value: int32(1)}, {Key: "hosts", Value: s.hosts()}, {Key: "me", Value: m.Addr()},
		{Key: "topologyVersion", Value: bson.D{{Key: "processId", Value: m.process}, {Key: "counter", Value: s.version}}},
	}
	if s.primary != nil {
		says = append(says, bson.E{Key: "primary", Value: s.primary.Addr()})
	}
	if isPrimary {
		says = append(says, bson.E{Key: "electionId", Value: electionID(s.term)})
	}
	drop := []string{"primary", "electionId", "compression", "passives", "arbiters", "msg"}
	for _, e := range says {
		drop = append(drop, e.Key)
	}
	head, err := bson.Marshal(says)
	if err != nil {
		panic(err) // it is made of nothing that cannot be encoded
	}
	return concat(head, without(reply, drop...))
}

// electionID is the id of a term's election, as servers make it: later terms compare higher.
func electionID(term int32) (id bson.ObjectID) {
	binary.BigEndian.PutUint32(id[:], 0x7fffffff)
	binary.BigEndian.PutUint64(id[4:], uint64(term))
	return id
}

// without is a document without the fields of some names.
func without(doc bson.Raw, names ...string) bson.Raw {
	out := make(bson.Raw, 4, len(doc))
	elements, _ := doc.Elements()
next:
	for _, e := range elements {
		for _, name := range names {
			if e.Key() == name {
				continue next
			}
		}
		out = append(out, e...)
	}
	return end(out)
}

// concat is a document with the fields of two.
func concat(a, b bson.Raw) bson.Raw {
	return end(append(append(bson.Raw(nil), a[:len(a)-1]...), b[4:len(b)-1]...))
}

// end ends a document that begins at its length.
func end(doc bson.Raw) bson.Raw {
	doc = append(doc, 0)
	binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
	return doc
}
