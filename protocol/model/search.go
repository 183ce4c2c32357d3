package model

import (
	"fmt"
	"math/rand/v2"
)

// Search explores a configuration, breadth or depth first, up to limit states. A violation ends it.
func (m *Model) Search(limit int, deep bool) Result {
	type link struct {
		parent uint32
		act    action
	}
	var (
		links []link
		edges [][2]uint32
		ends  []uint32
		queue []World
		ids   []uint32
		acts  []action
		r     Result
	)
	known := map[uint64]uint32{}
	put := func(w *World, parent uint32, a action) uint32 {
		h := hash(w)
		if id, ok := known[h]; ok {
			return id
		}
		id := uint32(len(links))
		known[h] = id
		links = append(links, link{parent, a})
		queue, ids = append(queue, *w), append(ids, id)
		return id
	}
	trace := func(id uint32, what uint8) Result {
		r.Broken = invariants[what]
		var path []action
		for id != 0 {
			path = append(path, links[id].act)
			id = links[id].parent
		}
		w := m.start()
		for i := len(path) - 1; i >= 0; i-- {
			r.Trace = append(r.Trace, m.describe(&w, path[i]))
			m.do(&w, path[i])
		}
		r.Bad = w.String()
		return r
	}
	first := m.start()
	put(&first, 0, action{})
	head := 0
	for head < len(queue) {
		var w World
		var id uint32
		if deep {
			n := len(queue) - 1
			w, id = queue[n], ids[n]
			queue, ids = queue[:n], ids[:n]
		} else {
			w, id = queue[head], ids[head]
			if head++; head > 4096 && head*2 > len(queue) {
				queue, ids, head = append([]World(nil), queue[head:]...), append([]uint32(nil), ids[head:]...), 0
			}
		}
		r.States++
		if m.ended(&w) {
			ends = append(ends, id)
		}
		acts = m.actions(&w, acts[:0])
		for _, a := range acts {
			next := w
			m.do(&next, a)
			r.Steps++
			to := put(&next, id, a)
			if next.bad != fine {
				r.States, r.Locals, r.Tables = len(links), len(m.auto.nodes), len(m.tables.states)
				return trace(to, next.bad)
			}
			// Whoever waits for too long ends it: that is not something that has to go wrong.
			if a.fault == noFault || a.fault == Timeout || a.fault == Impatience {
				edges = append(edges, [2]uint32{id, to})
			}
		}
		if len(links) > limit {
			r.States, r.Locals, r.Tables = len(links), len(m.auto.nodes), len(m.tables.states)
			return r
		}
	}
	r.Whole, r.Locals, r.Tables = true, len(m.auto.nodes), len(m.tables.states)
	if id, ok := stuckState(len(links), edges, ends); ok {
		return trace(id, stuck)
	}
	return r
}

// stuckState finds a state from which no state of ends is reached.
func stuckState(n int, edges [][2]uint32, ends []uint32) (uint32, bool) {
	start := make([]uint32, n+2)
	for _, e := range edges {
		start[e[1]+2]++
	}
	for i := 2; i < len(start); i++ {
		start[i] += start[i-1]
	}
	from := make([]uint32, len(edges))
	for _, e := range edges {
		from[start[e[1]+1]] = e[0]
		start[e[1]+1]++
	}
	good := make([]bool, n)
	todo := append([]uint32(nil), ends...)
	for _, e := range ends {
		good[e] = true
	}
	for len(todo) > 0 {
		x := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range from[start[x]:start[x+1]] {
			if !good[p] {
				good[p] = true
				todo = append(todo, p)
			}
		}
	}
	for i, ok := range good {
		if !ok {
			return uint32(i), true
		}
	}
	return 0, false
}

// Walk takes random ways through a configuration, each to an end or of at most depth steps, from a seed. Each way's last part takes no faults, and must come to an end.
func (m *Model) Walk(seed uint64, walks, depth int) Result {
	var r Result
	var acts []action
	for i := range walks {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		w := m.start()
		r.Trace = r.Trace[:0]
		for step := 0; ; step++ {
			if step > depth {
				r.Broken = invariants[stuck]
				r.Bad = fmt.Sprint("walk ", i, ": ", w.String())
				return r
			}
			if acts = m.actions(&w, acts[:0]); len(acts) == 0 {
				if !m.ended(&w) {
					r.Broken, r.Bad = invariants[stuck], w.String()
					return r
				}
				break
			}
			a, ok := draw(rng, acts)
			if !ok && m.ended(&w) {
				break // what could go wrong now comes too late
			}
			r.Trace = append(r.Trace, m.describe(&w, a))
			m.do(&w, a)
			r.Steps++
			if w.bad != fine {
				r.Broken, r.Bad = invariants[w.bad], fmt.Sprint("walk ", i, ": ", w.String())
				return r
			}
		}
	}
	r.Trace, r.Whole, r.Locals, r.Tables = nil, true, len(m.auto.nodes), len(m.tables.states)
	return r
}

// draw takes one of the actions; only every twentieth is something that goes wrong. It reports false when nothing else is there.
func draw(rng *rand.Rand, acts []action) (a action, ok bool) {
	wrong, right := 0, 0
	for _, x := range acts {
		if x.fault != noFault {
			wrong++
		} else {
			right++
		}
	}
	fault := right == 0 || wrong > 0 && rng.IntN(20) == 0
	k := rng.IntN(max(1, right))
	if fault {
		k = rng.IntN(wrong)
	}
	for _, x := range acts {
		if (x.fault != noFault) != fault {
			continue
		}
		if k == 0 {
			return x, right > 0
		}
		k--
	}
	return acts[0], right > 0
}
