package model

import (
	"errors"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/shardkey"
)

func (m *Model) rangeIn(c *catalog.Map, h uint8) (r shardkey.Range) {
	for _, p := range c.Partitions {
		if m.homeOf(p.Backend, p.Physical) == h {
			return p.Range
		}
	}
	return r
}

// undoing takes back what an attempt made, as the splitter's undo does. What an answer that is lost leaves undone another owner finds.
type undoing struct {
	o, i, n uint8
	rec     record
}

func (u undoing) Run(t *Thread) Program {
	rec := t.m.record(u.n, &u.rec)
	never := false
	o := t.owner(&never)
	if rec.Phase == catalog.Closing {
		if o.Burn(ctx, namespace, rec.EndV, rec.Inputs[0]) != nil {
			return heir{u.o, u.i + 1}
		}
		flipped, err := o.Flipped(ctx, &rec)
		switch {
		case err != nil:
			return heir{u.o, u.i + 1}
		case flipped:
			return finishing{u.o, u.i, u.n, full(&rec), false}
		}
	}
	if t.clean(o, u.n, &rec) != nil {
		return heir{u.o, u.i + 1}
	}
	return attempt{u.o, u.i + 1}
}

// clean drops the outputs of a change that was not made, and everything that tells of it.
func (t *Thread) clean(o *protocol.Owner, n uint8, rec *catalog.Reshape) error {
	if err := o.Unclose(ctx, rec); err != nil {
		return err
	}
	if err := o.Forget(ctx, rec); err != nil {
		return err
	}
	if t.m.variant != OutputsAgain {
		for _, p := range t.m.cfg.Plans[n].Outputs {
			if err := t.drop(o, p.Home); err != nil {
				return err
			}
		}
	}
	return o.Records.DeleteReshape(ctx, rec)
}

// drop drops a physical collection unless the newest map names it.
func (t *Thread) drop(o *protocol.Owner, h uint8) error {
	if t.m.variant != DropUnread {
		m, err := o.Maps.NewestMap(ctx, namespace)
		if err != nil {
			return err
		}
		if k := t.m.cfg.Homes[h]; m.Names(k.Backend, k.Physical) || m == nil && h == 0 {
			return nil
		}
	}
	return t.change("drop "+t.m.cfg.Homes[h].Physical, func(w *World) {
		rec := w.homes[h].rec
		w.homes[h] = home{rec: rec}
	})
}

// finishing is what follows a flip. What is not answered is done again.
type finishing struct {
	o, i, n   uint8
	rec       record
	inherited bool
}

func (f finishing) Run(t *Thread) Program {
	rec := t.m.record(f.n, &f.rec)
	never := false
	o := t.owner(&never)
	err := t.finish(o, f.n, &rec)
	switch {
	case errors.Is(err, catalog.ErrReshapeMoved):
		return heir{f.o, f.i + 1}
	case err != nil:
		return finishing{f.o, f.i, f.n, full(&rec), f.inherited}
	case f.inherited:
		return t.anew(heir{f.o, f.i + 1})
	}
	return attempt{f.o, f.i + 1}
}

func (t *Thread) finish(o *protocol.Owner, n uint8, rec *catalog.Reshape) error {
	if t.m.cfg.Brief && rec.Phase != catalog.Retiring {
		if err := o.RaiseFloors(ctx, rec); err != nil {
			return err
		}
		if err := o.Unclose(ctx, rec); err != nil {
			return err
		}
		return o.Records.DeleteReshape(ctx, rec)
	}
	if rec.Phase != catalog.Retiring {
		steps := []func() error{func() error { return o.RaiseFloors(ctx, rec) }, func() error { return o.Unclose(ctx, rec) }}
		if t.m.variant == UncloseBeforeFloor {
			steps[0], steps[1] = steps[1], steps[0]
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		if err := o.Records.SwapReshape(ctx, rec, func(n *catalog.Reshape) { n.Phase, n.Slot = catalog.Retiring, n.ID.Hex() }); err != nil {
			return err
		}
	}
	if err := o.Release(ctx, rec); err != nil {
		return err
	}
	for _, h := range t.m.cfg.Plans[n].Inputs {
		if err := t.drop(o, h); err != nil {
			return err
		}
	}
	return o.Records.DeleteReshape(ctx, rec)
}

// heir takes over records whose owners are silent: every process does, also those that it began itself and does not know about, since an answer was lost.
// i is the plan that it begins when it has cleaned up, if it is there for that.
type heir struct{ o, i uint8 }

type found struct {
	n   uint8
	rec record
}

func (h heir) Run(t *Thread) Program {
	me := firstOwner + h.o
	m := t.m
	silent := func(w *World) (uint8, bool) {
		for n, r := range w.recs {
			if r.exists {
				return uint8(n), true
			}
		}
		return 0, false
	}
	f := t.do(Op{Name: "silent record", Fault: Usurp,
		On:   func(w *World) bool { _, ok := silent(w); return ok },
		Paid: func(w *World) bool { n, _ := silent(w); return w.recs[n].owner != me && m.owned(w, w.recs[n].owner) },
		Do: func(w *World) Res {
			n, _ := silent(w)
			return found{n, w.recs[n]}
		}}).(found)
	rec := m.record(f.n, &f.rec)
	never := false
	o := t.owner(&never)
	flipped, err := t.takeOver(o, &rec, me)
	switch {
	case err != nil:
		return h
	case flipped:
		return finishing{h.o, h.i - 1, f.n, full(&rec), true}
	}
	// clean needs all of the record that was there before.
	if t.clean(o, f.n, &rec) != nil {
		return h
	}
	return t.anew(h)
}

// anew is what an owner does when it has ended what it took over: one that is there for that begins anew, with fresh outputs.
func (t *Thread) anew(h heir) Program {
	if !t.m.cfg.Owners[h.o].TakeOver {
		return h
	}
	return attempt(h)
}

// owned reports whether an owner lives and has not given up.
func (m *Model) owned(w *World, owner uint8) bool {
	for i, th := range m.threads {
		if th.proc == owner && w.alive[owner] && !m.idle(w.nodes[i]) {
			return true
		}
	}
	return false
}

// idle says that a thread has ended, or waits for something to take over.
func (m *Model) idle(id uint32) bool {
	n := m.auto.nodes[id]
	_, waits := n.prog.(heir)
	return n.done || waits && n.depth == 0
}
