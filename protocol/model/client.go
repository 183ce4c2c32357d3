package model

import (
	"slices"

	"github.com/shardway/shardway/catalog"
)

// client does the i-th of its steps, and then those after it. Its requests run in a proxy: what they do there fails once that proxy is dead.
type client struct{ c, i uint8 }

func (x client) Run(t *Thread) Program {
	steps := t.m.cfg.Clients[x.c]
	if int(x.i) >= len(steps) {
		return nil
	}
	s := steps[x.i]
	switch s.Kind {
	case StepWrite:
		for _, p := range s.Proxies {
			if t.write(x.c, p, s.Write) {
				break
			}
		}
	case StepRead:
		for _, p := range s.Proxies {
			if t.read(x.c, p, s.Write) {
				break
			}
		}
	case StepTransaction:
		t.transaction(x.c, s)
	}
	return client{x.c, x.i + 1}
}

// entered is how far a request has come.
type entered struct {
	dead bool
	// gone says that there is no such collection.
	gone bool
	home uint8
	inst uint8
	// version is what the proxy's gates were at.
	version uint8
	// mapID is the map whose old homes are to be asked; 0 when there are none, and the message has been sent.
	mapID uint16
}

// enter waits until a document's gate is open and the lease at its home's backend valid, enters, and sends what it may.
func (t *Thread) enter(c, p, doc uint8, msg message) entered {
	m := t.m
	in := call{callEnter, uint16(c), doc}
	return t.do(Op{Name: "enter and send", On: func(w *World) bool {
		if !w.alive[p] {
			return true
		}
		s := m.tables.states[w.tables[p]]
		return s.dropped || s.open[doc] >= 0 && w.leases[p][m.at(uint8(s.open[doc]))].valid
	}, Do: func(w *World) Res {
		s := m.tables.states[w.tables[p]]
		switch {
		case !w.alive[p]:
			return entered{dead: true}
		case s.dropped:
			return entered{gone: true}
		}
		e := m.tableDo(w, p, in)
		r := entered{home: e.home, inst: w.leases[p][m.at(e.home)].inst, version: s.version}
		if known := m.mapped[w.maps[s.version]]; msg.kind == doWrite && known != nil && len(known.Retired) > 0 {
			r.mapID = w.maps[s.version]
			return r
		}
		if msg.kind == doStatement {
			w.leases[p][m.at(e.home)].undecided++
			return r
		}
		m.send(w, c, e.home, msg)
		return r
	}}).(entered)
}

func (m *Model) send(w *World, c, home uint8, msg message) {
	msg.home = home
	if msg.kind == doRead {
		msg.need = w.acked &^ w.dropped & m.docBits(msg.write)
	}
	w.msgs[c] = msg
}

// docBits are the writes of a document.
func (m *Model) docBits(doc uint8) (bits uint8) {
	for i, wr := range m.cfg.Writes {
		if wr.Doc == doc {
			bits |= 1 << i
		}
	}
	return bits
}

// outcomes of a request.
const (
	failed uint8 = iota
	answered
	refused
	// late: there is no answer that counts, and the request is still in its gate.
	late
)

// await waits for the reply, looks at the lease, passes the reply on and leaves the gate (held says that it is in one); or the connection breaks, or the proxy dies.
func (t *Thread) await(c, p, home, inst uint8, held bool) uint8 {
	m := t.m
	again := m.cfg.SendsAgain && held
	leave := func(w *World) {
		if held {
			m.tableDo(w, p, call{callLeave, uint16(c), 0})
		}
	}
	alt, r := t.choose(
		Op{Name: "reply", On: func(w *World) bool { return w.alive[p] && w.msgs[c].reply != pending }, Do: func(w *World) Res {
			msg := w.msgs[c]
			w.msgs[c] = message{}
			switch l := w.leases[p][m.at(home)]; {
			case m.variant == NoLookAfter:
			case !l.valid, l.inst != inst && m.variant != LookAcceptsNew:
				if again && msg.kind == doWrite {
					return late
				}
				leave(w)
				return failed
			}
			leave(w)
			if msg.reply != okay {
				return refused
			}
			m.passed(w, c, msg)
			return answered
		}},
		Op{Name: "cut", Fault: Cut, On: func(w *World) bool { return w.alive[p] }, Do: func(w *World) Res {
			again := again && w.msgs[c].kind == doWrite
			m.abandonMsg(w, c)
			if again {
				return late
			}
			leave(w)
			return failed
		}},
		Op{Name: "the proxy is dead", On: func(w *World) bool { return !w.alive[p] }, Do: func(w *World) Res { m.abandonMsg(w, c); return failed }},
	)
	_ = alt
	return r.(uint8)
}

// abandonMsg gives a request up: what has not been executed may be yet.
func (m *Model) abandonMsg(w *World, c uint8) {
	msg := w.msgs[c]
	w.msgs[c] = message{}
	if msg.reply == pending && msg.kind != doRead && msg.kind != nothing {
		w.sendMsgLate(msg)
	}
}

// passed is an answer that a client gets: from here on a write is acknowledged.
func (m *Model) passed(w *World, c uint8, msg message) {
	switch msg.kind {
	case doWrite:
		w.acked |= 1 << msg.write
		if _, ok := m.holder(m.current(w), m.cfg.Writes[msg.write].Doc); !ok {
			w.bad = lostWrite // nothing is acknowledged by a collection that was dropped before
		}
	case doCommit:
		w.acked |= w.tx.writes
	case doRead:
		if msg.seen&msg.need&^w.dropped != msg.need&^w.dropped {
			w.bad = staleRead
		}
	}
}

// write is one try of a retryable write through a proxy. It reports whether the client has an answer.
func (t *Thread) write(c, p, wr uint8) bool {
	m := t.m
	msg := message{kind: doWrite, write: wr}
	e := t.enter(c, p, m.cfg.Writes[wr].Doc, msg)
	switch {
	case e.dead:
		return false
	case e.gone:
		return true
	}
	home := e.home
	if e.mapID != 0 {
		old, found := t.askOld(p, m.mapped[e.mapID], wr)
		if found != failed {
			if found == refused {
				t.leave(c, p)
				return true
			}
			home = old
		}
		inst := t.do(Op{Name: "look and send", Do: func(w *World) Res {
			l := w.leases[p][m.at(home)]
			if !w.alive[p] || !l.valid || home == e.home && l.inst != e.inst {
				return uint8(0)
			}
			m.send(w, c, home, msg)
			return l.inst
		}}).(uint8)
		if inst == 0 {
			t.leave(c, p)
			return false
		}
		e.inst = inst
	}
	got := t.await(c, p, home, e.inst, true)
	if got == late {
		return t.sendAgain(c, p, home, e, msg)
	}
	return got != failed
}

// sendAgain sends a write once more from within its gate, under whatever lease there is by then, if that admits it: neither has the map changed nor is the gate
// closed. (The product looks more closely: a gate that was closed after the instance had joined waits for the request.)
func (t *Thread) sendAgain(c, p, home uint8, e entered, msg message) bool {
	m := t.m
	doc := m.cfg.Writes[msg.write].Doc
	inst := t.do(Op{Name: "send again", On: func(w *World) bool { return !w.alive[p] || w.leases[p][m.at(home)].valid }, Do: func(w *World) Res {
		if !w.alive[p] {
			return uint8(0)
		}
		if s := m.tables.states[w.tables[p]]; m.variant != AdmitsAll && (s.version != e.version || s.open[doc] != int8(home)) {
			return uint8(0)
		}
		m.send(w, c, home, msg)
		return w.leases[p][m.at(home)].inst
	}}).(uint8)
	if inst == 0 {
		t.leave(c, p)
		return false
	}
	switch t.await(c, p, home, inst, true) {
	case late:
		t.leave(c, p)
		return false
	case failed:
		return false
	}
	return true
}

func (t *Thread) leave(c, p uint8) {
	t.do(Op{Name: "leave", Do: func(w *World) Res {
		if w.alive[p] {
			t.m.tableDo(w, p, call{callLeave, uint16(c), 0})
		}
		return nil
	}})
}

// askOld asks the old homes of a write's position what they have on record of it: answered, by the home that it returns; refused, since the record is of
// a later number; failed, when nothing on record counts.
func (t *Thread) askOld(p uint8, known *catalog.Map, wr uint8) (home, found uint8) {
	m := t.m
	w0 := m.cfg.Writes[wr]
	for _, old := range known.Retired {
		if !old.Range.Contains(positions[w0.Doc]) {
			continue
		}
		h := m.homeOf(old.Backend, old.Physical)
		r := t.do(Op{Name: "ask an old home", Do: func(w *World) Res { return m.onRecord(w, h, w0.Client) }}).(mark)
		switch {
		case w0.N < r.n:
			return h, refused
		case w0.N == r.n && (uint32(r.at) <= old.Marker.T || m.variant == CountPastMarker):
			return h, answered
		}
	}
	return 0, failed
}

// onRecord is what a home has on record of a client's session. With one session for all homes of a backend it is any of theirs.
func (m *Model) onRecord(w *World, h, c uint8) mark {
	r := w.homes[h].rec[c]
	if m.variant == OneSession {
		for i := range m.cfg.Homes {
			if o := w.homes[i].rec[c]; m.at(uint8(i)) == m.at(h) && o.n > r.n {
				r = o
			}
		}
	}
	return r
}

// read reads a document through a proxy.
func (t *Thread) read(c, p, doc uint8) bool {
	e := t.enter(c, p, doc, message{kind: doRead, write: doc})
	switch {
	case e.dead:
		return false
	case e.gone:
		return true
	}
	return t.await(c, p, e.home, e.inst, true) != failed
}

// transaction writes once and commits; the commit is repeated, at the other proxies, while nobody knows.
func (t *Thread) transaction(c uint8, s Step) {
	m := t.m
	p := s.Proxies[0]
	e := t.enter(c, p, m.cfg.Writes[s.Write].Doc, message{kind: doStatement, write: s.Write})
	if e.dead || e.gone {
		return
	}
	o := boardOn{t: t, b: m.at(e.home)}
	mark := func() bool {
		ok, err := o.MarkTransactions(ctx, oid(kindInstance, e.inst))
		return ok && err == nil
	}
	if m.variant != MarkAfter && !mark() {
		t.undecided(c, p, e.home, e.inst, true)
		return
	}
	sent := t.do(Op{Name: "look and send", Do: func(w *World) Res {
		l := w.leases[p][m.at(e.home)]
		if !w.alive[p] || !l.valid || l.inst != e.inst {
			return false
		}
		m.send(w, c, e.home, message{kind: doStatement, write: s.Write, need: e.inst})
		return true
	}}).(bool)
	if !sent {
		t.undecided(c, p, e.home, e.inst, true)
		return
	}
	if t.await(c, p, e.home, e.inst, true) != answered {
		t.undecided(c, p, e.home, e.inst, false)
		return
	}
	for _, q := range s.Proxies {
		inst := t.do(Op{Name: "send commit", On: func(w *World) bool { return !w.alive[q] || w.leases[q][m.at(e.home)].valid }, Do: func(w *World) Res {
			if !w.alive[q] {
				return uint8(0)
			}
			m.send(w, c, e.home, message{kind: doCommit, write: s.Write})
			return w.leases[q][m.at(e.home)].inst
		}}).(uint8)
		if inst == 0 {
			continue
		}
		if t.await(c, q, e.home, inst, false) != failed {
			break
		}
	}
	t.undecided(c, p, e.home, e.inst, false)
}

// undecided ends what a proxy remembers of a transaction: it aborts it, if it is still open, and leaves the gate if it is in it.
func (t *Thread) undecided(c, p, home, inst uint8, held bool) {
	m := t.m
	t.do(Op{Name: "abort", Do: func(w *World) Res {
		if !w.alive[p] {
			return nil
		}
		if w.tx.state == openTx {
			w.tx.state = aborted
		}
		if l := &w.leases[p][m.at(home)]; l.inst == inst && l.undecided > 0 {
			l.undecided--
		}
		if held {
			m.tableDo(w, p, call{callLeave, uint16(c), 0})
		}
		return nil
	}})
}

// execute is what a backend does with a request.
func (m *Model) execute(w *World, msg *message) {
	b := m.at(msg.home)
	h := &w.homes[msg.home]
	switch msg.kind {
	case doWrite:
		wr := m.cfg.Writes[msg.write]
		switch r := m.onRecord(w, msg.home, wr.Client); {
		case r.n > wr.N:
			msg.reply = tooOld
			return
		case r.n < wr.N:
			h.exists = true
			h.n[msg.write]++
			h.rec[wr.Client] = mark{wr.N, w.logged(b, msg.home, wr.Doc)}
		}
		msg.reply = okay
	case doRead:
		for i, n := range h.n {
			if n > 0 {
				msg.seen |= 1 << i
			}
		}
		msg.reply = okay
	case doStatement:
		msg.reply = noTransaction
		if w.tx.state == unbegun {
			w.tx = transaction{openTx, msg.home, 1 << msg.write, msg.need}
			msg.reply = okay
		}
	case doCommit:
		msg.reply = noTransaction
		if w.tx.state == openTx {
			w.tx.state = committed
			h.exists = true
			h.n[msg.write]++
			w.logged(b, msg.home, m.cfg.Writes[msg.write].Doc)
		}
		if w.tx.state == committed {
			msg.reply = okay
		}
	}
}

// inserted notes what a map that has just been inserted does.
func (m *Model) inserted(w *World, v uint8) {
	c := m.mapped[w.maps[v]]
	if c.Reshape.IsZero() {
		return
	}
	plan := m.cfg.Plans[num(c.Reshape)]
	before := m.mapped[w.maps[v-1]]
	for _, in := range plan.Inputs {
		k := m.cfg.Homes[in]
		if before != nil && !before.Names(k.Backend, k.Physical) {
			w.bad = twoFlips
		}
	}
	if slices.ContainsFunc(w.maps[v+1:], func(id uint16) bool { return id != 0 }) {
		return // it was deleted and came late: it is not the newest
	}
	if c.Dropped {
		w.dropped |= w.acked
	}
}
