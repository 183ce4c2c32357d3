package model

import (
	"errors"
	"time"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
)

// member is a proxy's instance at a backend, when it waits for what comes next.
type member struct {
	p, b, inst uint8
	// seen are the closings met, held those to be answered, answered those that were.
	seen, held, answered uint8
	// past are earlier instances of this proxy, waiting for what was met at the joining: to be buried.
	past, met uint8
	// ends are the versions that end the closings met.
	ends [maxClosings]uint8
}

func (m *Model) tableDo(w *World, p uint8, c call) tableEdge {
	e := m.tables.call(w.tables[p], c)
	w.tables[p] = e.to
	return e
}

// version is the version that a proxy's gates are at.
func (m *Model) version(w *World, p uint8) uint8 { return m.tables.states[w.tables[p]].version }

func (m *Model) tableAsk(w *World, p uint8, c call) bool { return m.tables.call(w.tables[p], c).ok }

// quiet says that nothing of a proxy is behind the gates of closings.
func (m *Model) quiet(w *World, p, b, closings uint8) bool {
	for c := range uint8(maxClosings) {
		if closings&(1<<c) != 0 && !m.tableAsk(w, p, call{callQuiet, uint16(c), 0}) {
			return false
		}
	}
	return w.leases[p][b].undecided == 0
}

func (x member) Run(t *Thread) Program {
	m, o := t.m, boardOn{t: t, b: x.b}
	var ops []Op
	var then []func(Res) Program
	add := func(op Op, f func(Res) Program) { ops, then = append(ops, op), append(then, f) }
	nothing := func(*World) Res { return nil }
	add(Op{Name: "the lease is lost", On: func(w *World) bool { return !w.leases[x.p][x.b].valid }, Do: nothing}, func(Res) Program {
		t.do(Op{Name: "abort transactions", Do: func(w *World) Res {
			if w.leases[x.p][x.b].undecided > 0 {
				if w.tx.state == openTx {
					w.tx.state = aborted
				}
				w.leases[x.p][x.b].undecided = 0
			}
			return nil
		}})
		return joining{x.p, x.b, x.inst + maxProxies, x.seen, x.past | 1<<x.inst}
	})
	for c := range uint8(maxClosings) {
		bit := uint8(1) << c
		if c%maxBackends != x.b || c < maxBackends || int(c/maxBackends) >= len(m.cfg.Plans) {
			continue
		}
		rec, ends := c/maxBackends, x.ends[c]
		switch {
		case x.seen&bit == 0:
			add(Op{Name: "see a closing", On: func(w *World) bool { return w.boards[x.b].closings[c] != 0 }, Do: func(w *World) Res {
				ends := w.boards[x.b].closings[c]
				if !m.tableDo(w, x.p, call{callClose, uint16(c), ends}).ok {
					return uint8(0)
				}
				return ends
			}}, func(r Res) Program {
				y := x
				y.seen |= bit
				if y.ends[c] = r.(uint8); y.ends[c] != 0 {
					y.held |= bit
				}
				return y
			})
		case x.held&bit != 0 && x.answered&bit == 0:
			add(Op{Name: "quiet", On: func(w *World) bool { return m.quiet(w, x.p, x.b, bit) && w.leases[x.p][x.b].valid }, Do: nothing}, func(Res) Program {
				y := x
				y.answered |= bit
				// Without an answer it may be there all the same, and its owner then waits for the release.
				_ = o.PutAnswer(ctx, protocol.Answer{ID: protocol.AnswerID{Closing: oid(kindClosing, c), Instance: oid(kindInstance, x.inst)}})
				return y
			})
		}
		if x.held&bit != 0 && x.answered&bit != 0 {
			add(Op{Name: "released", On: func(w *World) bool {
				return m.tableAsk(w, x.p, call{callReleased, uint16(c), ends})
			}, Do: nothing}, func(Res) Program {
				y := x
				if o.Release(ctx, protocol.AnswerID{Closing: oid(kindClosing, c), Instance: oid(kindInstance, x.inst)}) == nil {
					y.held &^= bit
				}
				return y
			})
		}
		if x.held&bit != 0 {
			add(Op{Name: "wait no more", Fault: Impatience, On: func(w *World) bool { return m.version(w, x.p) < ends }, Do: nothing}, func(Res) Program {
				return m.burning(t, x, rec, ends)
			})
		}
	}
	if x.past != 0 {
		add(Op{Name: "bury", On: func(w *World) bool { return m.quiet(w, x.p, x.b, x.met) }, Do: nothing}, func(Res) Program {
			var ids []protocol.ID
			for i := range uint8(maxInstances) {
				if x.past&(1<<i) != 0 {
					ids = append(ids, oid(kindInstance, i))
				}
			}
			_ = o.Gone(ctx, ids)
			y := x
			y.past, y.met = 0, 0
			return y
		})
	}
	alt, r := t.choose(ops...)
	return then[alt](r)
}

// burning ends a closing whose end does not come, by the version that it names.
func (m *Model) burning(t *Thread, x member, rec, ends uint8) Program {
	if m.variant == OpenWithoutVersion {
		t.do(Op{Name: "open without the version", Do: func(w *World) Res {
			old := m.mapped[w.maps[m.version(w, x.p)]]
			m.tableDo(w, x.p, call{callApply, m.mapID(protocol.Burnt(namespace, int64(ends), old, m.firstHome(rec))), 0})
			return nil
		}})
		return x
	}
	never := false
	_ = t.owner(&never).Burn(ctx, namespace, int64(ends), m.firstHome(rec))
	return x
}

func (m *Model) firstHome(rec uint8) catalog.RecordedHome {
	h := m.cfg.Homes[m.cfg.Plans[rec].Inputs[0]]
	return catalog.RecordedHome{Backend: h.Backend, Physical: h.Physical}
}

// joining registers a new instance.
type joining struct{ p, b, inst, seen, past uint8 }

var errBelow = errors.New("the map is below the floor")

func (x joining) Run(t *Thread) Program {
	m := t.m
	if x.inst >= maxInstances {
		return nil
	}
	y := member{p: x.p, b: x.b, inst: x.inst, past: x.past}
	see := func(c protocol.Closing) {
		n := num(c.ID)
		if t.do(Op{Name: "close", Do: func(w *World) Res { return m.tableDo(w, x.p, call{callClose, uint16(n), uint8(c.Ends)}).ok }}).(bool) {
			y.held |= 1 << n
			y.met |= 1 << n
			y.ends[n] = uint8(c.Ends)
		}
		y.seen |= 1 << n
	}
	floor := func(f protocol.Floor) error {
		v := t.do(Op{Name: "refresh", Do: func(w *World) Res {
			if int64(m.version(w, x.p)) < f.V {
				m.tableDo(w, x.p, call{callApply, w.maps[w.newest()], 0})
			}
			return m.version(w, x.p)
		}}).(uint8)
		if int64(v) < f.V {
			return errBelow
		}
		return nil
	}
	err := t.join(boardOn{t: t, b: x.b}, protocol.Instance{ID: oid(kindInstance, x.inst), PID: int(x.p)}, func() error { return nil }, see, floor)
	if err != nil {
		t.do(Op{Name: "not joined", Do: func(w *World) Res { w.boards[x.b].insts[x.inst].frozen = true; return nil }})
		return joining{x.p, x.b, x.inst + maxProxies, x.seen, x.past | 1<<x.inst}
	}
	t.do(Op{Name: "joined", Do: func(w *World) Res { w.leases[x.p][x.b] = lease{valid: true, inst: x.inst}; return nil }})
	return y
}

// learner applies the maps that the catalog gets, one after the other.
type learner struct{ p uint8 }

func (l learner) Run(t *Thread) Program {
	m := t.m
	next := func(w *World) uint8 {
		for v := m.version(w, l.p) + 1; v < maxVersions; v++ {
			if w.maps[v] != 0 {
				return v
			}
		}
		return 0
	}
	t.do(Op{Name: "learn a map", On: func(w *World) bool { return next(w) != 0 }, Do: func(w *World) Res {
		m.tableDo(w, l.p, call{callApply, w.maps[next(w)], 0})
		return nil
	}})
	return l
}

// mourner ends the instances at a backend that are not renewed.
type mourner struct{ b uint8 }

func (x mourner) Run(t *Thread) Program {
	o := boardOn{t: t, b: x.b, counting: true}
	lease, linger := time.Second, time.Second
	mo := protocol.NewMourner(lease, linger)
	var last sight
	looked := time.Unix(0, 0)
	for {
		s := t.do(Op{Name: "look at instances", On: func(w *World) bool { return sightOf(o, w) != last }, Do: func(w *World) Res { return sightOf(o, w) }}).(sight)
		last = s
		var all []protocol.Instance
		for i, in := range s.all {
			if in.there {
				all = append(all, protocol.Instance{ID: oid(kindInstance, uint8(i)), Renewals: int64(in.renewals), Transactions: in.marked && t.m.variant != NoLifetime, Ended: in.ended})
			}
		}
		now := time.Unix(int64(s.clock), 0)
		// It looks often, so that all of the time since the last look counts.
		for at := looked.Add(lease / 2); at.Before(now); at = at.Add(lease / 2) {
			_, _ = mo.Look(at, at, all, nobodys)
		}
		looked = now
		end, gone := mo.Look(now, now, all, nobodys)
		for _, in := range end {
			_, _ = o.End(ctx, in.ID, in.Renewals)
		}
		if len(gone) > 0 {
			_ = o.Gone(ctx, gone)
		}
	}
}

func nobodys(protocol.ID) bool { return false }

type sight struct {
	all   shownInstances
	clock uint8
}

func sightOf(o boardOn, w *World) sight { return sight{o.shown(w), w.clock} }
