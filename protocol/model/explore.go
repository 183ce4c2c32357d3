package model

import (
	"fmt"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// action is what may happen in a state.
type action struct {
	kind  uint8
	i, j  uint8
	fault Fault
}

const (
	actOp uint8 = iota
	actLost
	actDeliver
	actLateMsg
	actLateWrite
	actCrash
	actLapse
	actPass
	actForget
)

// Result is what an exploration found.
type Result struct {
	States, Steps int
	// Whole says that all states were seen.
	Whole bool
	// Locals are the states of threads, Tables those of gates.
	Locals, Tables int
	// Broken is the invariant that a state violates, with the steps that lead there; empty when there is none.
	Broken string
	Trace  []string
	// Bad is the world at the end of Trace.
	Bad string
}

// start is the world at the beginning.
func (m *Model) start() World {
	cfg := m.cfg
	var w World
	copy(w.left[:], cfg.Bounds[:])
	for _, p := range cfg.First {
		w.homes[p.Home].exists = true
	}
	if len(cfg.First) > 0 {
		w.maps[1] = m.mapID(m.mapOf(1, cfg.First))
	} else {
		w.homes[0].exists = true
	}
	if cfg.Copied {
		n := cfg.Owners[0].Plans[0]
		w.recs[n] = record{exists: true, owner: firstOwner}
		for _, p := range cfg.Plans[n].Outputs {
			w.homes[p.Home].exists = true
		}
	}
	m.threads = nil
	add := func(th thread, p Program) {
		w.nodes[len(m.threads)] = m.auto.root(p)
		m.threads = append(m.threads, th)
	}
	for p := range uint8(cfg.Proxies) {
		w.alive[p] = true
		w.tables[p] = m.tables.call(1, call{callApply, w.maps[w.newest()], 0}).to
		add(thread{name: fmt.Sprint("learner ", p), proc: p}, learner{p})
		for b := range uint8(maxBackends) {
			inst := p + 1
			joiner := cfg.Joiner && int(p) == cfg.Proxies-1
			if !joiner || b > 0 {
				w.boards[b].insts[inst] = instance{there: true, proxy: p}
				w.leases[p][b] = lease{valid: true, inst: inst}
			}
			if cfg.Watched&(1<<b) == 0 {
				continue
			}
			th := thread{name: fmt.Sprintf("member %d at %s", p, backends[b]), proc: p, faulty: cfg.Deaf}
			if joiner && b == 0 {
				add(th, joining{p: p, b: b, inst: inst})
			} else {
				add(th, member{p: p, b: b, inst: inst})
			}
		}
	}
	for c := range cfg.Clients {
		add(thread{name: fmt.Sprint("client ", c), proc: 7, mustEnd: true}, client{uint8(c), 0})
	}
	w.alive[7] = true
	for o, ow := range cfg.Owners {
		proc := uint8(firstOwner + o)
		w.alive[proc] = true
		th := thread{name: fmt.Sprint("owner ", o), proc: proc, faulty: true, mustEnd: !ow.TakeOver}
		if ow.TakeOver {
			add(th, heir{uint8(o), 0})
		} else {
			add(th, attempt{uint8(o), 0})
		}
	}
	if cfg.Swept {
		add(thread{name: "sweeper", proc: 0, mustEnd: true}, sweeper{0})
	}
	if cfg.Mourned {
		add(thread{name: "mourner", proc: 7}, mourner{0})
	}
	return w
}

// actions lists what may happen in w.
func (m *Model) actions(w *World, dst []action) []action {
	for i, th := range m.threads {
		n := m.auto.nodes[w.nodes[i]]
		if n.done || !w.alive[th.proc] {
			continue
		}
		for j := range n.alts {
			op := &n.alts[j]
			if op.On != nil && !op.On(w) {
				continue
			}
			f := op.Fault
			if f != noFault && op.Paid != nil && !op.Paid(w) {
				f = noFault
			}
			if w.left[f] > 0 || f == noFault {
				dst = append(dst, action{actOp, uint8(i), uint8(j), f})
			}
			if op.Lost != nil && th.faulty && w.left[LostAnswer] > 0 {
				dst = append(dst, action{actLost, uint8(i), uint8(j), LostAnswer})
			}
		}
	}
	for c := range w.msgs {
		if w.msgs[c].kind != nothing && w.msgs[c].reply == pending {
			dst = append(dst, action{actDeliver, uint8(c), 0, noFault})
		}
	}
	for k := range w.lateMsg {
		if w.lateMsg[k].kind != nothing {
			dst = append(dst, action{actLateMsg, uint8(k), 0, noFault})
		}
	}
	for k := range w.late {
		if w.late[k] != 0 {
			dst = append(dst, action{actLateWrite, uint8(k), 0, noFault})
		}
	}
	if w.left[Crash] > 0 {
		for _, p := range m.cfg.Crashable {
			if w.alive[p] {
				dst = append(dst, action{actCrash, p, 0, Crash})
			}
		}
	}
	if w.left[Lapse] > 0 {
		for _, p := range m.cfg.Lapsable {
			if w.alive[p] && w.leases[p][0].valid {
				dst = append(dst, action{actLapse, p, 0, Lapse})
			}
		}
	}
	if m.mayPass(w) {
		dst = append(dst, action{actPass, 0, 0, noFault})
	}
	if w.left[Forgotten] > 0 {
		for v := uint8(1); v < w.newest(); v++ {
			if w.maps[v] != 0 {
				dst = append(dst, action{actForget, v, 0, Forgotten})
			}
		}
	}
	return dst
}

// mayPass says that time is what the mourner waits for.
func (m *Model) mayPass(w *World) bool {
	if !m.cfg.Mourned {
		return false
	}
	last := len(m.threads) - 1
	n := m.auto.nodes[w.nodes[last]]
	if n.alts[0].On == nil || n.alts[0].On(w) {
		return false
	}
	for _, in := range w.boards[0].insts {
		if in.there && in.frozen && !in.gone {
			return true
		}
	}
	return false
}

// do lets an action happen.
func (m *Model) do(w *World, a action) {
	if a.fault != noFault {
		w.left[a.fault]--
	}
	switch a.kind {
	case actOp:
		id := w.nodes[a.i]
		// The thread moves on first: an operation may end processes, never move threads.
		res := m.auto.nodes[id].alts[a.j].Do(w)
		w.nodes[a.i] = m.auto.step(id, int(a.j), res, false)
	case actLost:
		id := w.nodes[a.i]
		if m.auto.nodes[id].alts[a.j].Write {
			w.sendLate(id)
		}
		w.nodes[a.i] = m.auto.step(id, int(a.j), lost{}, true)
	case actDeliver:
		m.execute(w, &w.msgs[a.i])
	case actLateMsg:
		msg := w.lateMsg[a.i]
		w.lateMsg[a.i] = message{}
		m.execute(w, &msg)
	case actLateWrite:
		id := w.late[a.i]
		w.late[a.i] = 0
		m.auto.nodes[id].alts[0].Do(w)
	case actCrash:
		m.crash(w, a.i)
	case actLapse:
		w.freeze(a.i, 0)
		w.tick()
	case actPass:
		w.tick()
	case actForget:
		w.maps[a.i] = 0
	}
	m.check(w)
}

// crash ends a process; of what it was doing, a write may arrive later.
func (m *Model) crash(w *World, p uint8) {
	w.alive[p] = false
	for i, th := range m.threads {
		if th.proc != p {
			continue
		}
		if n := m.auto.nodes[w.nodes[i]]; !n.done && len(n.alts) == 1 && n.alts[0].Write && n.alts[0].Lost != nil {
			w.sendLate(w.nodes[i])
		}
		w.nodes[i] = 0
	}
	if p < maxProxies {
		for b := range uint8(maxBackends) {
			w.freeze(p, b)
			w.leases[p][b] = lease{}
		}
		w.tables[p] = 0
	}
}

// check looks at the invariants of a state.
func (m *Model) check(w *World) {
	if w.bad != fine {
		return
	}
	now := m.current(w)
	for i, wr := range m.cfg.Writes {
		if w.dropped&(1<<i) != 0 {
			continue
		}
		h, ok := m.holder(now, wr.Doc)
		if !ok {
			continue
		}
		switch n := w.homes[h].n[i]; {
		case n > 1:
			w.bad = twice
		case n == 0 && w.acked&(1<<i) != 0:
			w.bad = lostWrite
		}
	}
	if now == nil {
		if !w.homes[0].exists {
			w.bad = droppedNamed
		}
	} else {
		for _, p := range now.Partitions {
			if !w.homes[m.homeOf(p.Backend, p.Physical)].exists {
				w.bad = droppedNamed
			}
		}
	}
	for d := range maxDocs {
		at := int8(-1)
		for p := range m.cfg.Proxies {
			if !w.alive[p] {
				continue
			}
			h := m.tables.states[w.tables[p]].open[d]
			if h < 0 || !w.leases[p][m.at(uint8(h))].valid {
				continue
			}
			if at >= 0 && at != h {
				w.bad = twoHomes
			}
			at = h
		}
	}
}

// ended says that nothing is left to be done, and no gate closed.
func (m *Model) ended(w *World) bool {
	for i, th := range m.threads {
		if th.mustEnd && w.alive[th.proc] && !m.idle(w.nodes[i]) {
			return false
		}
	}
	for _, r := range w.recs {
		if r.exists {
			return false
		}
	}
	for p := range m.cfg.Proxies {
		if !w.alive[p] {
			continue
		}
		s := m.tables.states[w.tables[p]]
		for d := range maxDocs {
			if !s.dropped && s.open[d] < 0 {
				return false
			}
		}
	}
	return true
}

func hash(w *World) uint64 {
	return xxhash.Sum64(unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Offsetof(w.bad)+1))
}

// describe tells an action for a trace.
func (m *Model) describe(w *World, a action) string {
	switch a.kind {
	case actOp, actLost:
		op := m.auto.nodes[w.nodes[a.i]].alts[a.j]
		s := m.threads[a.i].name + ": " + op.Name
		if a.kind == actLost {
			s += " (no answer)"
		}
		return s
	case actDeliver:
		return fmt.Sprint("backend: executes the request of client ", a.i)
	case actLateMsg:
		return "backend: executes a request that comes late"
	case actLateWrite:
		return "store: a write arrives late: " + m.auto.nodes[w.late[a.i]].alts[0].Name
	case actCrash:
		return fmt.Sprint("process ", a.i, " crashes")
	case actLapse:
		return fmt.Sprint("the lease of proxy ", a.i, " at A lapses")
	case actPass:
		return "time passes"
	}
	return fmt.Sprint("version ", a.i, " is deleted")
}
