package rules

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// record is what config.transactions and the oplog have of a session's newest number.
type record struct {
	key         sessionKey
	txn         int64
	committed   bool // the number was a transaction's
	at          time.Time
	last        *entry
	done        map[int32]outcome
	reply       bson.Raw // of a findAndModify
	weightOfAll int
}

// outcome is what is remembered of one executed statement.
type outcome struct {
	modified int
	upserted bson.RawValue
}

// entry is a step of the oplog's chain: the statements that one command of the server's has logged.
type entry struct {
	ts     bson.Timestamp
	op, ns string
	stmts  []int32
	prev   *entry
	record *record

	// Where other writes were on their way, ts may be that of a later one: the server's own log tells
	// which time after from and not after ts it was.
	from    bson.Timestamp
	inexact bool
	id      bson.RawValue // the document's, if the command told it; the last one's of several
}

func (rec *record) weight() int { return 1 + len(rec.done) + len(rec.reply)/100 }

// maxOld bounds what is kept of chains that are no session's newest any more.
const maxOld = 200_000

// replace gives a session another record; the State's mutex is held. The steps of the former stay in
// the log for as long as there is room, so that whoever has read it can follow them to their end.
func (s *State) replace(se *session, rec *record) {
	if old := se.record; old != nil && old != rec {
		s.weight -= old.weightOfAll
		old.done, old.reply = nil, nil
		for e := old.last; e != nil; e = e.prev {
			s.old = append(s.old, e)
			s.oldWeight += 1 + len(e.stmts)
		}
	}
	for s.oldWeight > maxOld {
		e := s.old[0]
		s.old[0], s.old = nil, s.old[1:]
		s.oldWeight -= 1 + len(e.stmts)
		e.prev = nil
		if s.chain[e.ts] == e {
			delete(s.chain, e.ts)
		}
	}
	se.record = rec
}

// add logs a step; the State's mutex is held.
func (s *State) add(rec *record, e *entry) {
	e.record, e.prev = rec, rec.last
	rec.last, rec.at = e, s.settings.Now()
	s.chain[e.ts] = e
	s.weight -= rec.weightOfAll
	rec.weightOfAll = rec.weight()
	s.weight += rec.weightOfAll
}

// document is the record as config.transactions has it.
func (rec *record) document() bson.D {
	d := bson.D{{Key: "_id", Value: rec.key.document()}, {Key: "txnNum", Value: rec.txn},
		{Key: "lastWriteOpTime", Value: opTime(rec.last.ts)}, {Key: "lastWriteDate", Value: rec.at}}
	if rec.committed {
		d = append(d, bson.E{Key: "state", Value: "committed"})
	}
	return d
}

func (k sessionKey) document() bson.D {
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: slices.Clone(k.id[:])}}, {Key: "uid", Value: bson.Binary{Data: slices.Clone(k.uid[:])}}}
}

func opTime(ts bson.Timestamp) bson.D {
	term := int64(1)
	if ts.IsZero() {
		term = -1
	}
	return bson.D{{Key: "ts", Value: ts}, {Key: "t", Value: term}}
}

// document is the step as the oplog has it, but for what was written.
func (e *entry) document() bson.D {
	prev := bson.Timestamp{}
	if e.prev != nil {
		prev = e.prev.ts
	}
	d := bson.D{{Key: "lsid", Value: e.record.key.document()}, {Key: "txnNumber", Value: e.record.txn}}
	switch {
	case e.record.committed:
		d = append(d, bson.E{Key: "op", Value: "c"}, bson.E{Key: "ns", Value: "admin.$cmd"}, bson.E{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{}}}})
	case len(e.stmts) == 1:
		d = append(d, bson.E{Key: "op", Value: e.op}, bson.E{Key: "ns", Value: e.ns}, bson.E{Key: "o", Value: bson.D{}}, bson.E{Key: "stmtId", Value: e.stmts[0]})
	default:
		ops := bson.A{}
		for _, stmt := range e.stmts {
			ops = append(ops, bson.D{{Key: "op", Value: e.op}, {Key: "ns", Value: e.ns}, {Key: "o", Value: bson.D{}}, {Key: "stmtId", Value: stmt}})
		}
		d = append(d, bson.E{Key: "op", Value: "c"}, bson.E{Key: "ns", Value: "admin.$cmd"}, bson.E{Key: "o", Value: bson.D{{Key: "applyOps", Value: ops}}})
	}
	return append(d, bson.E{Key: "ts", Value: e.ts}, bson.E{Key: "t", Value: int64(1)}, bson.E{Key: "v", Value: int64(2)},
		bson.E{Key: "wall", Value: e.record.at}, bson.E{Key: "prevOpTime", Value: opTime(prev)})
}

func sortByUse(keys []sessionKey, sessions map[sessionKey]*session) {
	slices.SortFunc(keys, func(a, b sessionKey) int { return sessions[a].used.Compare(sessions[b].used) })
}
