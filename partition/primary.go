package partition

import "github.com/shardway/shardway/catalog"

// closePlainLocked closes the gates of all of db's namespaces without a map, for a change of the database's primary that version ends of its map ends: what
// writes there makes a collection. Namespaces that come to be meanwhile find their gates closed.
func (t *Table) closePlainLocked(db string, ends int64) (gates []*Gate) {
	t.closedPlain[db] = max(ends, t.closedPlain[db])
	for h, g := range t.gates {
		if t.isPlainLocked(db, h, g) {
			g.hold(true)
			gates = append(gates, g)
		}
	}
	return gates
}

// closeIfPlainLocked closes a new gate if all like it are closed.
func (t *Table) closeIfPlainLocked(g *Gate) {
	if t.closedPlain[g.home.DB] > 0 {
		g.hold(true)
	}
}

// isPlainLocked reports whether g is the gate of a namespace of db without a map, or of one that was dropped.
func (t *Table) isPlainLocked(db string, h Home, g *Gate) bool {
	return h.DB == db && (catalog.IsAbsentName(h.Physical) || !catalog.IsPhysicalName(h.Physical) && t.view.Load().Catalog.Maps[g.ns] == nil)
}

// settlePrimariesLocked ends closings of databases whose version has come, and retires the gates that stood before a database's former primary, so that
// who waits there plans again. They are forgotten: the primary may come back, and needs open ones then.
func (t *Table) settlePrimariesLocked(old, s *catalog.Snapshot) {
	for db, m := range s.Primaries {
		if t.applied[db] >= m.V {
			continue
		}
		t.applied[db] = m.V
		closed := t.closedPlain[db]
		if closed > 0 && m.V >= closed {
			delete(t.closedPlain, db)
		}
		now := s.Databases[db]
		for h, g := range t.gates {
			switch {
			case now == nil || !t.isPlainLocked(db, h, g):
			case h.Backend != now.Primary:
				t.retireLocked(g)
			case closed > 0 && m.V >= closed:
				g.hold(false)
			}
		}
	}
}
