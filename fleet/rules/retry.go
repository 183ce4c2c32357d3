package rules

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// attempt is a retryable write on its way.
type attempt struct {
	s     *State
	r     *Request
	se    *session
	key   sessionKey
	txn   int64
	array string // the statements' name; empty for findAndModify
	op    string
	stmts []bson.Raw
	ids   []int32 // of the statements
	last  bson.Raw
	// concern is the last writeConcernError.
	concern bson.RawValue
}

// result is what became of one statement.
type result struct {
	outcome
	n       int
	err     bson.Raw // an entry of writeErrors
	retried bool
}

// retryable applies a write with a number once. The stand-in gets it without the number: what it
// would remember it forgets when it is started again.
func (s *State) retryable(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	txn, ok := r.Lookup("txnNumber").AsInt64OK()
	if !ok || !r.Lookup("autocommit").IsZero() {
		return nil, nil
	}
	key, ok := keyOf(r)
	if !ok {
		return nil, nil
	}
	a := &attempt{s: s, r: r, key: key, txn: txn}
	if !a.read() {
		return nil, nil // malformed: the server says how
	}
	if taken, late := a.takeTurn(); late {
		return refuse(wire.MaxTimeMSExpired, "operation exceeded time limit"), nil
	} else if !taken {
		r.Cut()
		return nil, nil
	}
	newest, err := a.begin()
	if err != nil {
		r.Cut()
		return nil, nil
	}
	if newest > txn {
		return refuse(wire.TransactionTooOld, "Retryable write with txnNumber %d is prohibited on session %s because a newer retryable write with txnNumber %d has already started on this session.",
			txn, key, newest), nil
	}
	if !r.Finish(nil) {
		r.Cut()
		return nil, nil
	}
	var reply bson.Raw
	if a.array == "" {
		reply = a.findAndModify()
	} else {
		reply = a.batch()
	}
	if reply == nil {
		r.Cut()
	}
	return reply, nil
}

// read takes the statements and their numbers from the request.
func (a *attempt) read() bool {
	switch {
	case a.r.Is("insert"):
		a.array, a.op = "documents", "i"
	case a.r.Is("update"):
		a.array, a.op = "updates", "u"
	case a.r.Is("delete"):
		a.array, a.op = "deletes", "d"
	default:
		a.op = "u"
		if remove, _ := a.r.Lookup("remove").BooleanOK(); remove {
			a.op = "d"
		}
		a.ids = []int32{int32(intOf(a.r.Lookup("stmtId")))}
		return true
	}
	a.stmts = a.r.Docs(a.array)
	first := int32(intOf(a.r.Lookup("stmtId")))
	for i := range a.stmts {
		a.ids = append(a.ids, first+int32(i))
	}
	if arr, ok := a.r.Lookup("stmtIds").ArrayOK(); ok {
		values, _ := arr.Values()
		if len(values) != len(a.stmts) {
			return false
		}
		for i, v := range values {
			a.ids[i] = int32(intOf(v))
		}
	}
	return len(a.stmts) > 0
}

// takeTurn waits until no other write of the session is on its way, as a mongod does; the end of the
// request gives the turn back. late says that the request's maxTimeMS has passed.
func (a *attempt) takeTurn() (taken, late bool) {
	s := a.s
	s.mu.Lock()
	a.se = s.touch(a.key, s.settings.Now())
	a.se.refs++
	s.mu.Unlock()
	release := func() {
		s.mu.Lock()
		a.se.refs--
		a.se.used = s.settings.Now()
		s.mu.Unlock()
	}
	var timeout <-chan time.Time
	if ms := intOf(a.r.Lookup("maxTimeMS")); ms > 0 {
		timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-a.se.turn:
		a.r.after = append(a.r.after, func() { release(); a.se.turn <- struct{}{} })
		return true, false
	case <-timeout:
		release()
		return false, true
	case <-a.r.Context().Done():
		release()
		return false, false
	}
}

// begin makes the number the session's newest unless there is a newer one, and returns the newest. A
// transaction with an older number that is still open is aborted.
func (a *attempt) begin() (newest int64, err error) {
	a.s.mu.Lock()
	older, open := a.se.active, a.se.open && a.txn > a.se.active
	if a.txn > a.se.active {
		a.se.active, a.se.transaction, a.se.open, a.se.wrote = a.txn, false, false, false
	}
	newest = a.se.active
	a.s.mu.Unlock()
	if open {
		_, err = a.r.Ask(marshal(bson.D{{Key: "abortTransaction", Value: 1}, {Key: "lsid", Value: a.r.Lookup("lsid")},
			{Key: "txnNumber", Value: older}, {Key: "autocommit", Value: false}, {Key: "$db", Value: "admin"}}))
	}
	return newest, err
}

// known is what a statement's record says.
func (a *attempt) known(stmt int32) (outcome, bool) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if rec := a.se.record; rec != nil && rec.txn == a.txn {
		o, ok := rec.done[stmt]
		return o, ok
	}
	return outcome{}, false
}

// send runs some of the statements on the server; nil when the connection has ended.
func (a *attempt) send(stmts []bson.Raw, ids []int32, learn func(reply bson.Raw) []int) bson.Raw {
	body := without(a.r.Body, "txnNumber", "stmtId", "stmtIds", a.array)
	e := &entry{op: a.op, ns: a.r.DB + "." + a.r.Target(), from: a.s.serverTime(), id: a.document(stmts)}
	end := a.s.beginWrite()
	var sequences []wire.Sequence
	if a.array != "" {
		sequences = []wire.Sequence{{Identifier: a.array, Docs: slices.Concat(rawBytes(stmts)...)}}
	}
	reply, err := a.r.Ask(body, sequences...)
	alone := end()
	if err != nil {
		return nil
	}
	a.s.noteTimes(reply)
	a.last = reply
	if v := reply.Lookup("writeConcernError"); !v.IsZero() {
		a.concern = v
	}
	if codeOf(reply) != 0 {
		return reply
	}
	changed := learn(reply)
	if len(changed) == 0 {
		return reply
	}
	for _, i := range changed {
		e.stmts = append(e.stmts, ids[i])
	}
	if e.ts = timeOf(reply.Lookup("opTime", "ts")); e.ts.IsZero() {
		e.ts = timeOf(reply.Lookup("operationTime")) // findAndModify tells no opTime
	}
	e.inexact = !alone
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	rec := a.se.record
	if rec == nil || rec.txn != a.txn {
		rec = &record{key: a.key, txn: a.txn, done: map[int32]outcome{}}
		a.s.replace(a.se, rec)
	}
	for _, stmt := range e.stmts {
		rec.done[stmt] = outcome{}
	}
	a.s.add(rec, e)
	return reply
}

// document is the _id of what a step writes, where the command tells it.
func (a *attempt) document(stmts []bson.Raw) bson.RawValue {
	var v bson.RawValue
	switch {
	case a.array == "documents":
		v = stmts[len(stmts)-1].Lookup("_id")
	case a.array == "":
		v, _ = a.r.Body.LookupErr("query", "_id")
	default:
		v, _ = stmts[0].LookupErr("q", "_id")
	}
	if v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeRegex {
		return bson.RawValue{} // may be an expression
	}
	return copyValue(v)
}

func rawBytes(docs []bson.Raw) [][]byte {
	out := make([][]byte, len(docs))
	for i, d := range docs {
		out[i] = d
	}
	return out
}

// batch runs an insert, update or delete.
func (a *attempt) batch() bson.Raw {
	ordered := true
	if v, ok := a.r.Lookup("ordered").BooleanOK(); ok {
		ordered = v
	}
	results := make([]*result, len(a.stmts))
	var fresh []int
	for i, stmt := range a.ids {
		if o, done := a.known(stmt); done {
			results[i] = &result{outcome: o, n: 1, retried: true}
		} else {
			fresh = append(fresh, i)
		}
	}
	if a.array == "documents" {
		if reply, over := a.insert(fresh, results, ordered); over {
			return reply
		}
		return a.compose(results)
	}
	for i := range a.stmts {
		if results[i] != nil {
			continue
		}
		if reply, over := a.one(i, results); over {
			return reply
		}
		if results[i].err != nil && ordered {
			break
		}
	}
	return a.compose(results)
}

// insert runs all documents that are not there yet with one command; over is as with one.
func (a *attempt) insert(fresh []int, results []*result, ordered bool) (reply bson.Raw, over bool) {
	if len(fresh) == 0 {
		return nil, false
	}
	stmts, ids := make([]bson.Raw, len(fresh)), make([]int32, len(fresh))
	for i, at := range fresh {
		stmts[i], ids[i] = a.stmts[at], a.ids[at]
	}
	reply = a.send(stmts, ids, func(reply bson.Raw) []int {
		failed := writeErrors(reply)
		var changed []int
		for i, at := range fresh {
			if e, bad := failed[i]; bad {
				results[at] = &result{err: e}
				if ordered {
					break
				}
				continue
			}
			results[at] = &result{n: 1}
			changed = append(changed, i)
		}
		return changed
	})
	return reply, reply == nil || codeOf(reply) != 0
}

// one runs one update or delete. over says that the whole write ends with the reply, or without one
// where the connection has ended.
func (a *attempt) one(i int, results []*result) (reply bson.Raw, over bool) {
	stmt := a.stmts[i]
	if multi, _ := stmt.Lookup("multi").BooleanOK(); multi {
		results[i] = &result{err: multiError("multi=true")}
		return nil, false
	}
	if limit := stmt.Lookup("limit"); a.array == "deletes" && intOf(limit) == 0 {
		results[i] = &result{err: multiError("limit=0")}
		return nil, false
	}
	reply = a.send(a.stmts[i:i+1], a.ids[i:i+1], func(reply bson.Raw) []int {
		res := &result{n: int(intOf(reply.Lookup("n")))}
		results[i] = res
		if e, bad := writeErrors(reply)[0]; bad {
			res.err, res.n = e, 0
			return nil
		}
		res.modified = int(intOf(reply.Lookup("nModified")))
		if up, ok := reply.Lookup("upserted", "0").DocumentOK(); ok {
			res.upserted = copyValue(up.Lookup("_id"))
		}
		if a.array == "deletes" && res.n > 0 || res.modified > 0 || !res.upserted.IsZero() {
			return []int{0}
		}
		return nil // nothing was logged: a repetition is a first try
	})
	if reply == nil || codeOf(reply) != 0 {
		return reply, true
	}
	a.s.mu.Lock()
	if rec := a.se.record; rec != nil && rec.txn == a.txn {
		if _, done := rec.done[a.ids[i]]; done {
			rec.done[a.ids[i]] = results[i].outcome
		}
	}
	a.s.mu.Unlock()
	return nil, false
}

func multiError(what string) bson.Raw {
	return marshal(bson.D{{Key: "index", Value: int32(0)}, {Key: "code", Value: int32(wire.InvalidOptions)}, {Key: "errmsg", Value: "Cannot use (or request) retryable writes with " + what}})
}

// writeErrors are a reply's, by the statement's place.
func writeErrors(reply bson.Raw) map[int]bson.Raw {
	arr, ok := reply.Lookup("writeErrors").ArrayOK()
	if !ok {
		return nil
	}
	out := map[int]bson.Raw{}
	values, _ := arr.Values()
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok {
			out[int(intOf(d.Lookup("index")))] = d
		}
	}
	return out
}

// compose makes one reply of what became of the statements.
func (a *attempt) compose(results []*result) bson.Raw {
	n, modified := 0, 0
	var upserted, failed, retried bson.A
	for i, res := range results {
		if res == nil {
			continue
		}
		n += res.n
		modified += res.modified
		if !res.upserted.IsZero() {
			upserted = append(upserted, bson.D{{Key: "index", Value: int32(i)}, {Key: "_id", Value: res.upserted}})
		}
		if res.err != nil {
			failed = append(failed, with(res.err, bson.E{Key: "index", Value: int32(i)}))
		}
		if res.retried {
			retried = append(retried, a.ids[i])
		}
	}
	d := bson.D{{Key: "n", Value: int32(n)}}
	for _, key := range []string{"electionId", "opTime"} {
		if v := a.last.Lookup(key); len(a.last) > 0 && !v.IsZero() {
			d = append(d, bson.E{Key: key, Value: v})
		}
	}
	if failed != nil {
		d = append(d, bson.E{Key: "writeErrors", Value: failed})
	}
	if !a.concern.IsZero() {
		d = append(d, bson.E{Key: "writeConcernError", Value: a.concern})
	}
	if upserted != nil {
		d = append(d, bson.E{Key: "upserted", Value: upserted})
	}
	if a.array == "updates" {
		d = append(d, bson.E{Key: "nModified", Value: int32(modified)})
	}
	if retried != nil {
		d = append(d, bson.E{Key: "retriedStmtIds", Value: retried})
	}
	reply := marshal(append(d, bson.E{Key: "ok", Value: 1.0}))
	if len(a.last) == 0 {
		return reply // the clock adds its own times
	}
	return timed(reply, a.last)
}

func (a *attempt) findAndModify() bson.Raw {
	a.s.mu.Lock()
	rec := a.se.record
	if rec != nil && rec.txn == a.txn && rec.reply != nil {
		reply := rec.reply
		a.s.mu.Unlock()
		return with(without(reply, "$clusterTime", "operationTime"), bson.E{Key: "retriedStmtId", Value: a.ids[0]})
	}
	a.s.mu.Unlock()
	changed := false
	reply := a.send(nil, a.ids, func(reply bson.Raw) []int {
		if intOf(reply.Lookup("lastErrorObject", "n")) == 0 {
			return nil
		}
		changed = true
		return []int{0}
	})
	if changed {
		a.s.mu.Lock()
		a.se.record.reply = without(reply, "$clusterTime", "operationTime")
		a.s.mu.Unlock()
	}
	return reply
}
