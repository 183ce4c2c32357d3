package rules

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

func (s *State) serverTime() bson.Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// beginWrite counts a write that is on its way. alone says, when it has ended, whether there was no
// other meanwhile: the server's reply to such a one tells its exact time, any other's may tell a later.
func (s *State) beginWrite() (end func() (alone bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing++
	s.begun++
	first, begun := s.writing == 1, s.begun
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.writing--
		return first && begun == s.begun
	}
}

// countWrites counts what the table's last row does not count itself.
func (s *State) countWrites(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if !r.Lookup("txnNumber").IsZero() && r.Lookup("autocommit").IsZero() && !r.Is("bulkwrite") {
		return nil, nil
	}
	end := s.beginWrite()
	r.after = append(r.after, func() { end() })
	return nil, nil
}

// readTransactions answers find on config.transactions from the records. The server is asked all the
// same: it says whether the client may, and when.
func (s *State) readTransactions(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.DB != "config" || r.Target() != "transactions" {
		return nil, nil
	}
	limit := int(intOf(r.Lookup("limit")))
	match, ok := s.matching(r)
	if !ok {
		return refuse(wire.BadValue, "the rules in front of the stand-in cannot evaluate this filter on config.transactions"), nil
	}
	for _, rec := range match() {
		if !s.settle(r, rec) {
			r.Cut()
			return nil, nil
		}
	}
	r.SetBody(with(without(r.Body, "batchSize", "limit", "singleBatch"), bson.E{Key: "filter", Value: bson.D{}}))
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != 0 {
			return reply
		}
		docs := bson.A{}
		for _, rec := range match() {
			s.mu.Lock()
			docs = append(docs, rec.document())
			s.mu.Unlock()
		}
		if limit > 0 && limit < len(docs) {
			docs = docs[:limit]
		}
		return oneBatch(reply, "config.transactions", docs)
	}
}

func oneBatch(reply bson.Raw, ns string, docs bson.A) bson.Raw {
	return with(reply, bson.E{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: docs}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: ns}}})
}

// matching returns what finds the records that a filter asks for: all of them, or those with one _id
// or one of several.
func (s *State) matching(r *Request) (find func() []*record, ok bool) {
	filter, _ := r.Lookup("filter").DocumentOK()
	elems, _ := filter.Elements()
	var keys []sessionKey
	switch {
	case len(elems) == 0:
		return func() []*record { return s.records(nil) }, true
	case len(elems) > 1 || elems[0].Key() != "_id":
		return nil, false
	}
	id, isDoc := elems[0].Value().DocumentOK()
	if !isDoc {
		return nil, false
	}
	ids := []bson.Raw{id}
	if in, ok := id.Lookup("$in").ArrayOK(); ok {
		ids = nil
		values, _ := in.Values()
		for _, v := range values {
			if d, ok := v.DocumentOK(); ok {
				ids = append(ids, d)
			}
		}
	}
	for _, d := range ids {
		if _, _, ok := d.Lookup("uid").BinaryOK(); !ok {
			continue // an _id without uid is no session's
		}
		if key, ok := keyFrom(r, d); ok {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		keys = []sessionKey{}
	}
	return func() []*record { return s.records(keys) }, true
}

// records are those of the sessions, or of all when keys is nil.
func (s *State) records(keys []sessionKey) []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*record
	add := func(se *session) {
		if se != nil && se.record != nil {
			out = append(out, se.record)
		}
	}
	if keys == nil {
		for _, se := range s.sessions {
			add(se)
		}
	}
	for _, key := range keys {
		add(s.sessions[key])
	}
	return out
}

// settle finds the exact times of a record's steps in the server's log, where they are not known.
func (s *State) settle(r *Request, rec *record) bool {
	for {
		s.mu.Lock()
		e := rec.last
		for e != nil && !e.inexact {
			e = e.prev
		}
		if e == nil {
			s.mu.Unlock()
			return true
		}
		from, upTo, ns, op, id := e.from, e.ts, e.ns, e.op, e.id
		s.mu.Unlock()
		exact, ok := logged(r, from, upTo, ns, op, id)
		if !ok {
			return false
		}
		s.mu.Lock()
		e.inexact = false
		if !exact.IsZero() && exact != e.ts {
			if s.chain[e.ts] == e {
				delete(s.chain, e.ts)
			}
			e.ts = exact
		}
		s.chain[e.ts] = e
		s.mu.Unlock()
	}
}

// logged asks the server's log when a document was written, after from and not after upTo: zero when
// it does not tell. A change stream finds its place in the log at once; a query would read all of it.
func logged(r *Request, from, upTo bson.Timestamp, ns, op string, id bson.RawValue) (bson.Timestamp, bool) {
	reply, err := r.Ask(marshal(bson.D{{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}, {Key: "startAtOperationTime", Value: from}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "operationType", Value: 1}, {Key: "clusterTime", Value: 1}, {Key: "ns", Value: 1}, {Key: "documentKey", Value: 1}}}}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: int32(1000)}}}, {Key: "$db", Value: "admin"}}))
	if err != nil {
		return bson.Timestamp{}, false
	}
	if codeOf(reply) != 0 {
		return bson.Timestamp{}, true // the user may not: what the reply told has to do
	}
	var found bson.Timestamp
	batch, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	values, _ := batch.Values()
	for _, v := range values {
		event, _ := v.DocumentOK()
		ts := timeOf(event.Lookup("clusterTime"))
		if ts.After(from) && !ts.After(upTo) && isStep(event, ns, op, id) {
			found = ts
		}
	}
	if cursor := cursorID(reply); cursor != 0 {
		if _, err := r.Ask(marshal(bson.D{{Key: "killCursors", Value: "$cmd.aggregate"}, {Key: "cursors", Value: bson.A{cursor}}, {Key: "$db", Value: "admin"}})); err != nil {
			return found, false
		}
	}
	return found, true
}

// isStep reports whether an event may be that of a step.
func isStep(event bson.Raw, ns, op string, id bson.RawValue) bool {
	where, ok := event.Lookup("ns").DocumentOK()
	if !ok {
		return false
	}
	db, _ := where.Lookup("db").StringValueOK()
	coll, _ := where.Lookup("coll").StringValueOK()
	if db+"."+coll != ns {
		return false
	}
	kind, _ := event.Lookup("operationType").StringValueOK()
	if (op == "d") != (kind == "delete") || op == "i" && kind != "insert" {
		return false
	}
	key, ok := event.Lookup("documentKey").DocumentOK()
	if !ok {
		return false
	}
	got := key.Lookup("_id")
	return id.IsZero() || got.Type == id.Type && bytes.Equal(got.Value, id.Value)
}

// readChain answers a look at one time in local.oplog.rs, where a step of a chain is.
func (s *State) readChain(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.DB != "local" || r.Target() != "oplog.rs" {
		return nil, nil
	}
	filter, _ := r.Lookup("filter").DocumentOK()
	ts := timeOf(filter.Lookup("ts"))
	elems, _ := filter.Elements()
	if ts.IsZero() || len(elems) != 1 {
		return nil, nil
	}
	s.mu.Lock()
	e := s.chain[ts]
	var doc bson.D
	if e != nil {
		doc = e.document()
	}
	s.mu.Unlock()
	if e == nil {
		return nil, nil
	}
	r.SetBody(with(r.Body, bson.E{Key: "filter", Value: bson.D{}}, bson.E{Key: "limit", Value: int32(1)}, bson.E{Key: "singleBatch", Value: true}))
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != 0 {
			return reply
		}
		return oneBatch(reply, "local.oplog.rs", bson.A{doc})
	}
}
