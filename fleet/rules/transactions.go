package rules

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// inTransaction notes which number a session's transaction has, and whether it has written.
func (s *State) inTransaction(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.Lookup("autocommit").IsZero() {
		return nil, nil
	}
	txn, ok := r.Lookup("txnNumber").AsInt64OK()
	key, named := keyOf(r)
	if !ok || !named {
		return nil, nil
	}
	s.mu.Lock()
	se := s.touch(key, s.settings.Now())
	if txn > se.active {
		se.active, se.transaction, se.open, se.wrote = txn, true, true, false
	}
	s.mu.Unlock()
	if r.Is("aborttransaction") {
		return nil, func(reply bson.Raw) bson.Raw { s.closed(se, txn); return reply }
	}
	if !hasWord(writes, r.Name) {
		return nil, nil
	}
	return nil, func(reply bson.Raw) bson.Raw {
		if intOf(reply.Lookup("n")) > 0 || intOf(reply.Lookup("lastErrorObject", "n")) > 0 {
			s.mu.Lock()
			if se.active == txn {
				se.wrote = true
			}
			s.mu.Unlock()
		}
		return reply
	}
}

// closed notes that a transaction is not open any more.
func (s *State) closed(se *session, txn int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se.active == txn {
		se.open = false
	}
}

// commit records a transaction that has been committed, and answers a repetition that the server
// does not know any more.
func (s *State) commit(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	txn, ok := r.Lookup("txnNumber").AsInt64OK()
	key, named := keyOf(r)
	if !ok || !named {
		return nil, nil
	}
	if !r.Finish(nil) {
		r.Cut()
		return nil, nil
	}
	return nil, func(reply bson.Raw) bson.Raw {
		s.mu.Lock()
		defer s.mu.Unlock()
		se := s.touch(key, s.settings.Now())
		rec := se.record
		recorded := rec != nil && rec.txn == txn && rec.committed
		if se.active == txn && codeOf(reply) == 0 {
			se.open = false
		}
		switch code := codeOf(reply); {
		case code == wire.NoSuchTransaction && recorded:
			d := bson.D{}
			if v := reply.Lookup("writeConcernError"); !v.IsZero() {
				d = append(d, bson.E{Key: "writeConcernError", Value: v})
			}
			return timed(marshal(append(d, bson.E{Key: "ok", Value: 1.0})), reply)
		case code == 0 && !recorded && se.active == txn && se.transaction && se.wrote:
			rec = &record{key: key, txn: txn, committed: true}
			s.replace(se, rec)
			s.add(rec, &entry{ts: timeOf(reply.Lookup("operationTime"))})
		}
		return reply
	}
}
