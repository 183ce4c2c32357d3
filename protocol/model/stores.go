package model

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
)

// errLost is an operation without an answer: a write may have happened, or happen later.
var errLost = errors.New("no answer")

// lost is errLost on its way into a thread.
type lost struct{}

func (t *Thread) try(op Op) (Res, error) {
	op.Lost = lost{}
	res := t.do(op)
	if res == (lost{}) {
		return nil, errLost
	}
	return res, nil
}

// change is a write that gives nothing back.
func (t *Thread) change(name string, do func(*World)) error {
	_, err := t.try(Op{Name: name, Write: true, Do: func(w *World) Res { do(w); return true }})
	return err
}

// boardOn is a backend's board. It implements protocol.Board.
type boardOn struct {
	t *Thread
	b uint8
	// counting shows the instances' renewals: to who ends them.
	counting bool
}

var _ protocol.Board = boardOn{}

func (o boardOn) Register(_ context.Context, in protocol.Instance) error {
	n := num(in.ID)
	return o.t.change("register", func(w *World) {
		w.boards[o.b].insts[n] = instance{there: true, proxy: uint8(in.PID)}
	})
}

func (o boardOn) Renew(context.Context, protocol.ID) (bool, error) {
	panic("renewals are the clock's")
}

func (o boardOn) MarkTransactions(_ context.Context, id protocol.ID) (bool, error) {
	n := num(id)
	res, err := o.t.try(Op{Name: "mark transactions", Write: true, Do: func(w *World) Res {
		in := &w.boards[o.b].insts[n]
		if in.ended || in.gone {
			return false
		}
		in.marked = true
		return true
	}})
	return err == nil && res.(bool), err
}

type shownInstances [maxInstances]instance

func (o boardOn) shown(w *World) shownInstances {
	all := shownInstances(w.boards[o.b].insts)
	for i := range all {
		in := &all[i]
		in.renewals, in.frozen = w.renewals(in), false
		if !o.counting || in.gone {
			in.renewals = 0
		}
		if in.gone {
			*in = instance{}
		}
	}
	return all
}

func (o boardOn) Instances(context.Context) ([]protocol.Instance, error) {
	res, err := o.t.try(Op{Name: "instances", Do: func(w *World) Res { return o.shown(w) }})
	if err != nil {
		return nil, err
	}
	o.t.saw[0] = res
	var all []protocol.Instance
	for i, in := range res.(shownInstances) {
		if in.there {
			all = append(all, protocol.Instance{ID: oid(kindInstance, uint8(i)), PID: int(in.proxy), Renewals: int64(in.renewals), Transactions: in.marked, Ended: in.ended})
		}
	}
	return all, nil
}

func (o boardOn) End(_ context.Context, id protocol.ID, renewals int64) (bool, error) {
	n := num(id)
	res, err := o.t.try(Op{Name: "end", Write: true, Do: func(w *World) Res {
		in := &w.boards[o.b].insts[n]
		if !in.there || int64(w.renewals(in)) != renewals {
			return false
		}
		in.ended = true
		return true
	}})
	return err == nil && res.(bool), err
}

func (o boardOn) Gone(_ context.Context, ids []protocol.ID) error {
	var bits uint8
	for _, id := range ids {
		bits |= 1 << num(id)
	}
	return o.t.change("gone", func(w *World) {
		for i := range w.boards[o.b].insts {
			if in := &w.boards[o.b].insts[i]; bits&(1<<i) != 0 && in.there {
				in.ended, in.gone = true, true
			}
		}
	})
}

func (o boardOn) PutClosing(_ context.Context, c protocol.Closing) error {
	n := closingNumber(num(c.Reshape), o.b)
	o.t.ids[c.ID] = n
	ends := uint8(c.Ends)
	return o.t.change("closing", func(w *World) { w.boards[o.b].closings[n] = ends })
}

func (o boardOn) Closings(context.Context) ([]protocol.Closing, error) {
	res, err := o.t.try(Op{Name: "closings", Do: func(w *World) Res { return w.boards[o.b].closings }})
	if err != nil {
		return nil, err
	}
	var all []protocol.Closing
	for n, ends := range res.([maxClosings]uint8) {
		if ends != 0 {
			all = append(all, o.t.m.closing(uint8(n), ends))
		}
	}
	return all, nil
}

// number is the number of a closing by its identity, which its owner makes.
func (t *Thread) number(id protocol.ID) uint8 {
	if n, ok := t.ids[id]; ok {
		return n
	}
	if !canonical(id) {
		panic("an identity that nothing is known of")
	}
	return num(id)
}

func (o boardOn) DropClosing(_ context.Context, id protocol.ID) error {
	n := o.t.number(id)
	return o.t.change("drop closing", func(w *World) { w.boards[o.b].closings[n] = 0 })
}

func (o boardOn) PutAnswer(_ context.Context, a protocol.Answer) error {
	c, i := o.t.number(a.ID.Closing), num(a.ID.Instance)
	return o.t.change("answer", func(w *World) { w.boards[o.b].answers[c] |= 1 << i })
}

func (o boardOn) Release(_ context.Context, a protocol.AnswerID) error {
	c, i := o.t.number(a.Closing), num(a.Instance)
	return o.t.change("release", func(w *World) { w.boards[o.b].released[c] |= w.boards[o.b].answers[c] & (1 << i) })
}

func (o boardOn) given(w *World, c uint8) [2]uint8 {
	return [2]uint8{w.boards[o.b].answers[c], w.boards[o.b].released[c]}
}

func (o boardOn) Answers(_ context.Context, closing protocol.ID) ([]protocol.Answer, error) {
	c := o.t.number(closing)
	res, err := o.t.try(Op{Name: "answers", Do: func(w *World) Res { return o.given(w, c) }})
	if err != nil {
		return nil, err
	}
	o.t.saw[1] = res
	o.t.looked = o
	o.t.lookedFor = c
	var all []protocol.Answer
	given := res.([2]uint8)
	for i := range uint8(maxInstances) {
		if given[0]&(1<<i) != 0 {
			all = append(all, protocol.Answer{ID: protocol.AnswerID{Closing: closing, Instance: oid(kindInstance, i)}, Released: given[1]&(1<<i) != 0})
		}
	}
	return all, nil
}

func (o boardOn) Forget(_ context.Context, _, closing protocol.ID) error {
	if closing.IsZero() {
		return nil // markers only, which are no part of what is searched
	}
	c := o.t.number(closing)
	return o.t.change("forget", func(w *World) { w.boards[o.b].answers[c], w.boards[o.b].released[c] = 0, 0 })
}

func (o boardOn) RaiseFloor(_ context.Context, _ string, v int64) error {
	return o.t.change("floor", func(w *World) { w.boards[o.b].floor = max(w.boards[o.b].floor, uint8(v)) })
}

func (o boardOn) Floors(context.Context) ([]protocol.Floor, error) {
	res, err := o.t.try(Op{Name: "floors", Do: func(w *World) Res { return w.boards[o.b].floor }})
	if err != nil || res.(uint8) == 0 {
		return nil, err
	}
	return []protocol.Floor{{NS: namespace, V: int64(res.(uint8))}}, nil
}

// catalogOf is the catalog. It implements protocol.Maps and protocol.Records.
type catalogOf struct{ t *Thread }

var (
	_ protocol.Maps    = catalogOf{}
	_ protocol.Records = catalogOf{}
)

func (c catalogOf) InsertMap(_ context.Context, m *catalog.Map) error {
	id, v, model := c.t.m.mapID(m), uint8(m.V), c.t.m
	res, err := c.t.try(Op{Name: "insert map", Write: true, Do: func(w *World) Res {
		if int(v) >= maxVersions {
			w.bad = overflow
			return false
		}
		if w.maps[v] != 0 {
			return false
		}
		w.maps[v] = id
		model.inserted(w, v)
		return true
	}})
	if err == nil && !res.(bool) {
		return catalog.ErrMapExists
	}
	return err
}

func (c catalogOf) read(name string, which func(*World) uint16) (*catalog.Map, error) {
	res, err := c.t.try(Op{Name: name, Do: func(w *World) Res { return which(w) }})
	if err != nil || res.(uint16) == 0 {
		return nil, err
	}
	m := *c.t.m.mapped[res.(uint16)]
	return &m, nil
}

func (c catalogOf) NewestMap(context.Context, string) (*catalog.Map, error) {
	return c.read("newest map", func(w *World) uint16 { return w.maps[w.newest()] })
}

func (c catalogOf) MapAt(_ context.Context, _ string, v int64) (*catalog.Map, error) {
	return c.read("map at", func(w *World) uint16 { return w.maps[v] })
}

func (c catalogOf) SwapReshape(_ context.Context, r *catalog.Reshape, change func(*catalog.Reshape)) error {
	next := *r
	change(&next)
	n := num(r.ID)
	was, will := compact(r), compact(&next)
	for _, rc := range next.Closings {
		b := backendOf(rc.Backend)
		will.on |= 1 << b
		c.t.ids[rc.ID] = closingNumber(n, b)
	}
	res, err := c.t.try(Op{Name: "swap record to " + string(next.Phase), Write: true, Do: func(w *World) Res {
		now := &w.recs[n]
		if !now.exists || now.owner != was.owner || now.epoch != was.epoch || now.closing != was.closing || now.retiring != was.retiring {
			return false
		}
		*now = will
		return true
	}})
	if err != nil {
		return err
	}
	if !res.(bool) {
		return catalog.ErrReshapeMoved
	}
	*r = next
	return nil
}

func compact(r *catalog.Reshape) record {
	return record{exists: true, owner: num(r.Owner), epoch: uint8(r.Epoch), endV: uint8(r.EndV), closing: r.Phase == catalog.Closing, retiring: r.Phase == catalog.Retiring}
}

func (c catalogOf) DeleteReshape(_ context.Context, r *catalog.Reshape) error {
	n, mine := num(r.ID), compact(r)
	return c.t.change("delete record", func(w *World) {
		if now := &w.recs[n]; now.exists && now.owner == mine.owner && now.epoch == mine.epoch {
			*now = record{}
		}
	})
}

// stream is the change stream of a backend, from where it was opened. It implements protocol.Stream.
type stream struct {
	t    *Thread
	b    uint8
	rec  uint8
	from uint8
	// bring copies a document again.
	bring func(doc uint8) error
}

type marked struct{ at, docs uint8 }

func (s *stream) Mark(context.Context) (before int, at bson.Timestamp, err error) {
	from, model := s.from, s.t.m
	res, err := s.t.try(Op{Name: "marker", Write: true, Do: func(w *World) Res {
		r := marked{at: w.logged(s.b, markerHome, s.rec)}
		for _, e := range w.log[s.b][from:w.logN[s.b]] {
			for _, in := range model.cfg.Plans[s.rec].Inputs {
				if e.home == in {
					r.docs |= 1 << e.doc
				}
			}
		}
		return r
	}})
	if err != nil {
		return 0, at, err
	}
	m := res.(marked)
	s.from = m.at
	for d := range uint8(maxDocs) {
		if m.docs&(1<<d) != 0 {
			before++
			if err := s.bring(d); err != nil {
				return 0, at, err
			}
		}
	}
	return before, bson.Timestamp{T: uint32(m.at)}, nil
}
