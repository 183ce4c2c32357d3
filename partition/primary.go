package partition

import "github.com/shardway/shardway/catalog"

// ClosePlain closes the gates of all of db's namespaces without a map, those that come to be meanwhile too, for a change of the database's
// primary: what writes there makes a collection. The gates are returned to wait on. open ends it: gates that no change of the primary has retired
// open again. Nobody else may close gates of these namespaces meanwhile.
func (t *Table) ClosePlain(db string) (gates []*Gate, open func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closedPlain[db] = true
	for h, g := range t.gates {
		if t.isPlainLocked(db, h, g) {
			g.Close(ClosedAll)
			gates = append(gates, g)
		}
	}
	return gates, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.closedPlain, db)
		for h, g := range t.gates {
			if t.isPlainLocked(db, h, g) {
				g.open(0)
			}
		}
	}
}

// isPlainLocked reports whether g is the gate of a namespace of db without a map.
func (t *Table) isPlainLocked(db string, h Home, g *Gate) bool {
	return h.DB == db && !catalog.IsPhysicalName(h.Physical) && t.view.Load().Catalog.Maps[g.ns] == nil
}

// movePrimariesLocked retires the gates that stood before a database's former primary, so that who waits there plans again. They are forgotten: the
// primary may come back, and needs open ones then.
func (t *Table) movePrimariesLocked(old, s *catalog.Snapshot) {
	for name, d := range old.Databases {
		now := s.Databases[name]
		if now == nil || now.Primary == d.Primary {
			continue
		}
		for h, g := range t.gates {
			if h.Backend == d.Primary && t.isPlainLocked(name, h, g) {
				g.retire()
				delete(t.gates, h)
			}
		}
	}
}
