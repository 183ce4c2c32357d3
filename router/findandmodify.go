package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// modification is one findAndModify on its way.
type modification struct {
	r      *Router
	q      *Request
	ns     string
	op     operation
	stmt   int32
	remove bool
	// keepsEmptyTs is bypassEmptyTsReplacement.
	keepsEmptyTs bool
}

// findAndModify answers findAndModify: at one partition where the filter says which, else at the document found first.
func (r *Router) findAndModify(ctx context.Context, q *Request) (Reply, error) {
	m, err := r.parseModification(q)
	if err != nil {
		return Reply{}, err
	}
	if m.op.upsert {
		if err := r.ensureCollection(ctx, q.DB, m.ns); err != nil {
			return Reply{}, err
		}
	}
	var reply bson.Raw
	for tries := 0; ; tries++ {
		var d decision
		err = r.withinAny(ctx, m.ns, partition.Write, func(c *partition.Collection) ([]*partition.Part, error) {
			d, err = m.decide(c)
			return d.parts, err
		}, func(c *partition.Collection, _ []*partition.Part) error {
			reply, err = m.execute(ctx, c, d)
			return err
		})
		if err != errMustCreate || tries == maxCreations {
			break
		}
		if err := r.ensureCollection(ctx, q.DB, m.ns); err != nil {
			return Reply{}, err
		}
	}
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: reply}, nil
}

func (r *Router) parseModification(q *Request) (*modification, error) {
	ns, err := q.NS()
	if err != nil {
		return nil, err
	}
	if err := checkWritable(q.DB); err != nil {
		return nil, err
	}
	m := &modification{r: r, q: q, ns: ns, op: operation{filter: emptyDocument, simple: true}}
	returnsNew := false
	for rem := []byte(q.Msg.Body[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return nil, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
		}
		rem = rest
		v := e.Value()
		var err error
		switch string(e.KeyBytes()) {
		case "query":
			if v.Type != bsoncore.TypeNull {
				m.op.filter, err = documentField("findAndModify.query", v)
			}
		case "update":
			m.op.update = v
		case "remove":
			m.remove = isTrue(v)
		case "upsert":
			m.op.upsert = isTrue(v)
		case "sort":
			m.op.sort = v
		case "collation":
			m.op.collation = v
			m.op.simple, err = simpleCollation(v)
		case "hint":
			m.op.hint = v
		case "let":
			m.op.let = v
		case bypassEmptyTs:
			m.keepsEmptyTs = isTrue(v)
		case "new":
			returnsNew = isTrue(v)
		case "stmtId":
			m.stmt, _ = v.Int32OK()
		case "runtimeConstants", "legacyRuntimeConstants":
			err = wire.Errorf(51196, "Cannot specify runtime constants option to a mongos")
		}
		if err != nil {
			return nil, err
		}
	}
	return m, m.consistent(returnsNew)
}

// consistent refuses what contradicts itself, as a server does before it looks for a document: here the search may find that there is none.
func (m *modification) consistent(returnsNew bool) error {
	switch {
	case !m.remove && m.op.update.Type == 0:
		return wire.Errorf(wire.FailedToParse, "Either an update or remove=true must be specified")
	case m.remove && m.op.update.Type != 0:
		return wire.Errorf(wire.FailedToParse, "Cannot specify both an update and remove=true")
	case m.remove && m.op.upsert:
		return wire.Errorf(wire.FailedToParse, "Cannot specify both upsert=true and remove=true")
	case m.remove && returnsNew:
		return wire.Errorf(wire.FailedToParse, "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document")
	}
	return nil
}

// decide plans the modification; it may be called again after a change of the map.
func (m *modification) decide(c *partition.Collection) (decision, error) {
	if c == nil || c.Dropped() {
		if m.op.upsert {
			return decision{}, errMustCreate
		}
		return decision{}, nil
	}
	if !c.Sharded() {
		return decision{parts: c.Parts}, nil
	}
	m.op.examine(c.Key)
	if err := m.op.setTime(m.r, m.q, c.Key, m.stmt, m.keepsEmptyTs); err != nil {
		return decision{}, err
	}
	d := m.op.decide(c)
	if d.err != nil {
		return d, d.err
	}
	return d, nil
}

func (m *modification) execute(ctx context.Context, c *partition.Collection, d decision) (bson.Raw, error) {
	switch {
	case len(d.parts) == 0:
		return m.nothing(), nil
	case d.search == nil:
		part, err := m.home(ctx, c, d.parts[0])
		if err != nil {
			return nil, err
		}
		return m.send(ctx, part, nil)
	}
	var reply bson.Raw
	var met error // what an upsert that met a document came back with
	send := func(part *partition.Part, as changed) (applied, error) {
		var a applied
		body, err := m.send(ctx, part, &as)
		if err != nil {
			e := wire.AsError(err)
			guard := guardRefused(int32(e.Code), e.Message)
			if guard {
				err = m.op.guardError(c.Key, as.upsert)
			}
			if as.upsert && !m.q.InTxn && (e.Code == wire.DuplicateKey || guard) {
				a.met, a.hit = true, true
				a.accept = func() { met = err }
				return a, nil
			}
			return a, err
		}
		n, _ := bsoncore.Document(body).Lookup("lastErrorObject", "n").AsInt64OK()
		_, err = bsoncore.Document(body).LookupErr("retriedStmtId")
		a.hit = n > 0 || err == nil
		a.accept = func() { reply = body }
		return a, nil
	}
	w := singleWrite{r: m.r, q: m.q, c: c, search: d.search, stmt: m.stmt, send: send}
	refused, err := w.run(ctx)
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, err
	case met != nil:
		return nil, met
	case reply == nil:
		return m.nothing(), nil
	}
	return reply, nil
}

// home returns where a repetition must go: to the old home that executed the command before a flip, else to part.
func (m *modification) home(ctx context.Context, c *partition.Collection, part *partition.Part) (*partition.Part, error) {
	if !m.q.retryable() || len(c.Old) == 0 {
		return part, nil
	}
	concerns := func(shardkey.Range) bool { return true }
	if c.Key != nil {
		concerns = m.op.concerns(c.Key, part)
	}
	old, err := m.r.oldHome(ctx, m.q, c, concerns, m.stmt)
	if err != nil || old == nil {
		return part, err
	}
	return old, nil
}

// appendChanged appends the fields that take the place of query, update, upsert and sort.
func (as *changed) appendChanged(dst []byte) []byte {
	dst = bsoncore.AppendDocumentElement(dst, "query", bsoncore.Document(as.filter))
	if as.update.Type != 0 {
		dst = bsoncore.AppendValueElement(dst, "update", as.update)
	}
	if as.upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	return dst
}

// send runs the command at one home; as, if not nil, is what it has instead of what the client said. The reply is the client's.
func (m *modification) send(ctx context.Context, part *partition.Part, as *changed) (bson.Raw, error) {
	if !m.q.retryable() {
		return m.once(ctx, part, as, false)
	}
	alone, err := m.r.standalone(ctx, part.Backend)
	if err != nil {
		return nil, err
	}
	if alone {
		return m.ledgered(ctx, part, as)
	}
	for n := 1; ; n++ {
		body, err := m.once(ctx, part, as, true)
		if err == nil {
			return body, nil
		}
		if n == attempts || !mayRepeat(ctx, err) {
			return nil, err
		}
	}
}

func (m *modification) once(ctx context.Context, part *partition.Part, as *changed, txn bool) (bson.Raw, error) {
	drop := func(key []byte) bool {
		switch string(key) {
		case "query", "upsert", "sort":
			return as != nil
		case "update":
			return as != nil && as.update.Type != 0
		case "writeConcern":
			return unacknowledged(m.q.WriteConcern)
		}
		return false
	}
	var session sessionKey
	if txn {
		var err error
		if session, err = m.r.derivedFor(m.q, part.Home); err != nil {
			return nil, err
		}
	}
	body := m.q.appendFor(nil, part, !txn, drop, func(dst []byte) []byte {
		if as != nil {
			dst = as.appendChanged(dst)
		}
		if txn {
			dst = m.q.appendDerived(dst, session)
			if m.stmt != 0 {
				dst = bsoncore.AppendInt32Element(dst, "stmtId", m.stmt)
			}
		}
		return dst
	})
	reply, err := m.r.do(ctx, target{Backend: part.Backend, Part: part, Wait: true}, wire.AppendMsg(nil, 0, 0, 0, body))
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	if err := commandError(reply.Body); err != nil {
		return nil, err
	}
	return relay(reply.Body), nil
}

// ledgered runs the command at a standalone, or answers it from this process's memory.
func (m *modification) ledgered(ctx context.Context, part *partition.Part, as *changed) (bson.Raw, error) {
	rec, err := m.r.retries.record(derive(m.q.clientSession(), part.Home), m.q.TxnNumber)
	if err != nil {
		return nil, err
	}
	rec.busy.Lock()
	defer rec.busy.Unlock()
	if e, ok := m.r.retries.result(rec, m.q.TxnNumber, m.stmt); ok {
		again := append([]byte(nil), e.reply[:len(e.reply)-1]...)
		return bson.Raw(closeDocument(bsoncore.AppendInt32Element(again, "retriedStmtId", m.stmt), 0)), nil
	}
	body, err := m.once(ctx, part, as, false)
	if err != nil {
		return nil, unremembered{err}
	}
	if n, _ := bsoncore.Document(body).Lookup("lastErrorObject", "n").AsInt64OK(); n > 0 || as == nil {
		m.r.retries.setResult(rec, m.q.TxnNumber, m.stmt, ledgerEntry{reply: body})
	}
	return body, nil
}

// nothing is the reply when no document matches and none is made.
func (m *modification) nothing() bson.Raw {
	last := bsoncore.AppendInt32Element(make([]byte, 4, 64), "n", 0)
	if !m.remove {
		last = bsoncore.AppendBooleanElement(last, "updatedExisting", false)
	}
	dst := bsoncore.AppendDocumentElement(make([]byte, 4, 96), "lastErrorObject", closeDocument(last, 0))
	dst = bsoncore.AppendNullElement(dst, "value")
	return bson.Raw(closeDocument(bsoncore.AppendDoubleElement(dst, "ok", 1), 0))
}
