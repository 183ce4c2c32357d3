package model

import "github.com/shardway/shardway/catalog"

// sweeper looks once for physical collections that nothing names, and drops them: what the splitter's sweep does.
type sweeper struct{ p uint8 }

func (x sweeper) Run(t *Thread) Program {
	m := t.m
	there := t.do(Op{Name: "list collections", Do: func(w *World) Res {
		var bits uint8
		for h := range m.cfg.Homes {
			if w.homes[h].exists {
				bits |= 1 << h
			}
		}
		return bits
	}}).(uint8)
	known := t.do(Op{Name: "look at the snapshot", Do: func(w *World) Res { return w.maps[m.version(w, x.p)] }}).(uint16)
	for h, k := range m.cfg.Homes {
		if there&(1<<h) == 0 || !catalog.IsPhysicalName(k.Physical) || m.mapped[known].Names(k.Backend, k.Physical) {
			continue
		}
		named := func() bool {
			if m.variant == DropUnread {
				return false // the snapshot does not name it
			}
			now, _ := catalogOf{t}.NewestMap(ctx, namespace)
			return now.Names(k.Backend, k.Physical)
		}
		recorded := func() bool {
			return t.do(Op{Name: "records", Do: func(w *World) Res { return m.recorded(w, uint8(h)) }}).(bool)
		}
		// Records first: what a record names moves into the map, never the other way.
		if m.variant == MapBeforeRecords {
			if named() || recorded() {
				continue
			}
		} else if recorded() || named() {
			continue
		}
		t.do(Op{Name: "sweep " + k.Physical, Do: func(w *World) Res {
			w.homes[h] = home{rec: w.homes[h].rec}
			return nil
		}})
	}
	return nil
}

// recorded reports whether a live record names a home.
func (m *Model) recorded(w *World, h uint8) bool {
	for n, r := range w.recs {
		if !r.exists {
			continue
		}
		for _, in := range m.cfg.Plans[n].Inputs {
			if in == h {
				return true
			}
		}
		for _, out := range m.outputs(uint8(n)) {
			if out.Home == h {
				return true
			}
		}
	}
	return false
}
