package model

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
)

var (
	ctx        = context.Background()
	errTimeout = errors.New("the gates were closed for longer than the pause budget")
	errMoved   = errors.New("the map was changed meanwhile")
)

// owner makes the protocol's steps for a thread; while it closes, its patience may end.
func (t *Thread) owner(closing *bool) *protocol.Owner {
	return &protocol.Owner{
		Maps: catalogOf{t}, Records: catalogOf{t},
		Board: func(id string) protocol.Board { return boardOn{t: t, b: backendOf(id)} },
		Pause: func(context.Context, int) error { return t.pause(*closing) },
		Retry: func(context.Context, int, error) error { t.retry(); return nil },
	}
}

// pause waits until a look at instances and answers would show something else, or for too long.
func (t *Thread) pause(closing bool) error {
	o, c, saw := t.looked, t.lookedFor, t.saw
	ops := []Op{{Name: "look again", Rewind: 2, Do: func(*World) Res { return nil },
		On: func(w *World) bool { return o.shown(w) != saw[0] || o.given(w, c) != saw[1] }}}
	if closing {
		// Once the version stands nobody answers any more: the time that is too long then comes for sure.
		ends := t.ends
		ops = append(ops, Op{Name: "too long", Fault: Timeout, Paid: func(w *World) bool { return w.maps[ends] == 0 }, Do: func(*World) Res { return nil }})
	}
	if alt, _ := t.choose(ops...); alt == 1 {
		return errTimeout
	}
	return nil
}

// retry comes after an answer was lost. How often is bounded by that.
func (t *Thread) retry() { t.do(Op{Name: "try again", Do: func(*World) Res { return nil }}) }

// attempt is a reshape from its record to the flip.
type attempt struct{ o, i uint8 }

func (a attempt) Run(t *Thread) Program {
	plans := t.m.cfg.Owners[a.o].Plans
	if int(a.i) >= len(plans) {
		return heir(a)
	}
	n := plans[a.i]
	who := firstOwner + a.o
	if t.m.cfg.Copied && a == (attempt{}) {
		rec := t.m.record(n, &record{exists: true, owner: who})
		return t.closeAndFlip(a, n, &rec)
	}
	alt, res := t.choose(Op{Name: "insert record", Write: true, Lost: lost{}, On: slotFree, Do: func(w *World) Res {
		if slotFree(w) {
			w.recs[n] = record{exists: true, owner: who}
		}
		return true
	}}, Op{Name: "the slot is a silent owner's", On: func(w *World) bool { return t.m.slotSilent(w, who) }, Do: func(*World) Res { return nil }})
	if alt == 1 || res == (lost{}) {
		return heir{a.o, a.i + uint8(1-alt)}
	}
	rec := t.m.record(n, &record{exists: true, owner: who})
	return t.closeAndFlip(a, n, &rec)
}

func (t *Thread) closeAndFlip(a attempt, n uint8, rec *catalog.Reshape) Program {
	if err := t.reshape(a, n, rec); err != nil {
		return undoing{a.o, a.i, n, full(rec)}
	}
	return finishing{a.o, a.i, n, full(rec), false}
}

func full(r *catalog.Reshape) record {
	c := compact(r)
	for _, rc := range r.Closings {
		c.on |= 1 << backendOf(rc.Backend)
	}
	return c
}

// slotSilent says that the collection's map is being changed by an owner who does not live, or by nobody.
func (m *Model) slotSilent(w *World, me uint8) bool {
	for _, r := range w.recs {
		if r.exists && !r.retiring {
			return r.owner == me || !m.owned(w, r.owner)
		}
	}
	return false
}

// slotFree says that no other change of the collection's map is going on.
func slotFree(w *World) bool {
	for _, r := range w.recs {
		if r.exists && !r.retiring {
			return false
		}
	}
	return true
}

// reshape copies, closes, marks and flips. It is the splitter's order of the protocol's steps.
func (t *Thread) reshape(a attempt, n uint8, rec *catalog.Reshape) error {
	m, cfg := t.m, t.m.cfg
	plan := cfg.Plans[n]
	closing := true
	o := t.owner(&closing)
	var (
		old     *catalog.Map
		streams []protocol.Stream
		err     error
	)
	copied := cfg.Copied && a == (attempt{})
	if copied {
		if len(cfg.First) > 0 {
			old = m.mapOf(1, cfg.First)
		}
	} else if old, err = o.Maps.NewestMap(ctx, namespace); err != nil {
		return err
	}
	next, ok := m.next(old, n)
	if !ok {
		return errMoved
	}
	if streams, err = t.copyAll(n, copied); err != nil {
		return err
	}
	t.ends = uint8(next.V)
	homes := map[string][]string{}
	for _, h := range plan.Inputs {
		homes[cfg.Homes[h].Backend] = append(homes[cfg.Homes[h].Backend], cfg.Homes[h].Physical)
	}
	err = t.close(o, rec, next.V, homes)
	var times []bson.Timestamp
	if err == nil && !plan.Drop {
		times, err = t.mark(streams)
	}
	if err != nil {
		if rec.Phase == catalog.Closing {
			if berr := o.Burn(ctx, namespace, next.V, rec.Inputs[0]); berr != nil {
				return berr
			}
		}
		return err
	}
	if !plan.Drop {
		for _, h := range slices.Backward(plan.Inputs) {
			r := catalog.OldHome{Backend: cfg.Homes[h].Backend, Physical: cfg.Homes[h].Physical, Range: m.rangeIn(old, h)}
			for i, s := range streams {
				if s.(*stream).b == m.at(h) {
					r.Marker = times[i]
				}
			}
			next.Retired = append([]catalog.OldHome{r}, next.Retired...)
		}
	}
	return o.Flip(ctx, rec, next)
}

// copyAll makes the outputs, opens the streams and copies what is there.
func (t *Thread) copyAll(n uint8, copied bool) ([]protocol.Stream, error) {
	cfg := t.m.cfg
	plan := cfg.Plans[n]
	if plan.Drop {
		return nil, nil
	}
	bring := func(doc uint8) error { return t.bring(n, doc) }
	var streams []protocol.Stream
	for b := range uint8(maxBackends) {
		if !slices.ContainsFunc(plan.Inputs, func(h uint8) bool { return t.m.at(h) == b }) {
			continue
		}
		if copied {
			streams = append(streams, &stream{t: t, b: b, rec: n, bring: bring})
			continue
		}
		from, err := t.try(Op{Name: "open stream", Do: func(w *World) Res { return w.logN[b] }})
		if err != nil {
			return nil, err
		}
		streams = append(streams, &stream{t: t, b: b, rec: n, from: from.(uint8), bring: bring})
	}
	if copied {
		return streams, nil
	}
	outputs := t.m.outputs(n)
	if err := t.change("create outputs", func(w *World) {
		for _, p := range outputs {
			w.homes[p.Home].exists = true
		}
	}); err != nil {
		return nil, err
	}
	for d := range uint8(maxDocs) {
		if err := bring(d); err != nil {
			return nil, err
		}
	}
	return streams, nil
}

// bring reads a document from the input that holds it and writes it to its output.
func (t *Thread) bring(n, doc uint8) error {
	plan, m := t.m.cfg.Plans[n], t.m
	for _, p := range m.outputs(n) {
		if !p.Range.Contains(positions[doc]) || m.unwritten(doc) {
			continue
		}
		in, to := plan.Inputs[0], p.Home
		if len(plan.Inputs) > 1 {
			in = plan.Inputs[doc]
		}
		res, err := t.try(Op{Name: "read document", Do: func(w *World) Res { return m.of(doc, w.homes[in].n) }})
		if err != nil {
			return err
		}
		n := res.([maxWrites]uint8)
		// An unanswered write ends the attempt; one that comes late meets outputs that nothing will name.
		if err := t.change("write document", func(w *World) {
			w.homes[to].exists = true
			for i, wr := range m.cfg.Writes {
				if wr.Doc == doc {
					w.homes[to].n[i] = n[i]
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// of are the writes of one document.
func (m *Model) of(doc uint8, n [maxWrites]uint8) (only [maxWrites]uint8) {
	for i, wr := range m.cfg.Writes {
		if wr.Doc == doc {
			only[i] = n[i]
		}
	}
	return only
}

// unwritten says that no write of the configuration concerns a document, which then need not be copied.
func (m *Model) unwritten(doc uint8) bool {
	return !slices.ContainsFunc(m.cfg.Writes, func(w Write) bool { return w.Doc == doc })
}

// outputs are a plan's outputs, or those of the first attempt when the rule that they are fresh is broken.
func (m *Model) outputs(n uint8) []Place {
	if m.variant == OutputsAgain {
		return m.cfg.Plans[1].Outputs
	}
	return m.cfg.Plans[n].Outputs
}

// next is the map that a plan makes of the newest one; not if that does not name its inputs.
func (m *Model) next(old *catalog.Map, n uint8) (*catalog.Map, bool) {
	plan := m.cfg.Plans[n]
	next := &catalog.Map{NS: namespace, V: 1, Dropped: plan.Drop, Reshape: oid(kindReshape, n)}
	if old == nil {
		return next, plan.Drop && plan.Inputs[0] == 0
	}
	if old.Dropped {
		return nil, false
	}
	next.V = old.V + 1
	if plan.Drop {
		return next, true
	}
	next.Retired = slices.Clone(old.Retired)
	found, put := 0, false
	for _, p := range old.Partitions {
		if !slices.Contains(plan.Inputs, m.homeOf(p.Backend, p.Physical)) {
			next.Partitions = append(next.Partitions, p)
			continue
		}
		if found++; put {
			continue
		}
		put = true
		next.Partitions = append(next.Partitions, m.mapOf(0, m.outputs(n)).Partitions...)
	}
	return next, found == len(plan.Inputs)
}
