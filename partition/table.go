package partition

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
)

// Table holds the gates of this process and the View that requests plan with.
// It is safe for concurrent use.
type Table struct {
	view atomic.Pointer[View]

	mu    sync.Mutex
	gates map[Home]*Gate
	// news is closed and replaced whenever a map was applied.
	news chan struct{}
	// applied is the version of each namespace's map that the gates are at.
	applied map[string]int64
	// opened is told of gates whose closing has ended; nil tells nobody.
	opened func(g *Gate, closed time.Duration)
	// closedPlain are the databases whose namespaces without a map are closed.
	closedPlain map[string]int64
}

// NewTable makes an empty table: its View knows no database until Apply.
func NewTable() *Table {
	t := &Table{gates: map[Home]*Gate{}, applied: map[string]int64{}, closedPlain: map[string]int64{}, news: make(chan struct{})}
	t.view.Store(&View{Catalog: &catalog.Snapshot{}, table: t, mapped: map[string]*Collection{}})
	return t
}

// OnOpen has f called for every gate whose closing has ended, whether it opens or is retired, with how long it was closed. f must be quick: requests wait. Call it before the table is used.
func (t *Table) OnOpen(f func(g *Gate, closed time.Duration)) { t.opened = f }

func (t *Table) tellOpen(g *Gate, closed time.Duration) {
	if closed > 0 && t.opened != nil {
		t.opened(g, closed)
	}
}

// View returns the current view. A request takes it once per plan.
func (t *Table) View() *View { return t.view.Load() }

// Gate returns the gate of a home, nil if nothing has used the home yet.
func (t *Table) Gate(h Home) *Gate {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gates[h]
}

// plainGate returns the gate of a namespace without a map, nil when v is not the current view: the home may have
// been retired, dropped and forgotten since.
func (t *Table) plainGate(v *View, h Home) *Gate {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view.Load() != v {
		return nil
	}
	g := t.gateLocked(h.DB+"."+h.Physical, h, 0)
	t.closeIfPlainLocked(g)
	return g
}

// Close closes the gates of homes of ns as far as c says, for a closing that version ends will end. It reports false,
// and closes nothing, when that version has already been applied. The gates are returned to wait on. A namespace that is a database's name
// closes the gates of all its namespaces without a map, those that come to be meanwhile too.
func (t *Table) Close(ns string, homes []Home, ends int64, c Closed) (gates []*Gate, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.applied[ns]
	if v >= ends {
		return nil, false
	}
	if _, coll := catalog.SplitNS(ns); coll == "" {
		return t.closePlainLocked(ns, ends), true
	}
	for _, h := range homes {
		g := t.gateLocked(ns, h, v)
		g.Close(c, ends)
		gates = append(gates, g)
	}
	return gates, true
}

// Applied returns the version of ns's map that the gates are at, 0 when none was applied.
func (t *Table) Applied(ns string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.applied[ns]
}

// gateLocked returns the gate of ns's home h. What was the home of another namespace, before a rename, gets a new one: the old
// gate retires with its namespace's map, whose versions are not this one's.
func (t *Table) gateLocked(ns string, h Home, version int64) *Gate {
	g := t.gates[h]
	if g == nil || g.ns != ns {
		g = newGate(ns, h, version)
		t.gates[h] = g
	}
	return g
}

// Apply makes s the snapshot that requests plan with. For each namespace whose map is newer than the one
// applied before, homes that the new map names are opened at its version (whatever closed them has ended: only a new map
// ends a closing), and all its other homes are retired. Apply must be called with snapshots in the order in which the catalog
// made them.
func (t *Table) Apply(s *catalog.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.view.Load()
	v := &View{Catalog: s, table: t, mapped: make(map[string]*Collection, len(s.Maps))}
	var changed []*Collection
	for ns, m := range s.Maps {
		if c := old.mapped[ns]; c != nil && c.Map.V == m.V && c.Absent.on(s) {
			v.mapped[ns] = c
			continue
		}
		c := t.collectionLocked(s, ns, m)
		v.mapped[ns] = c
		changed = append(changed, c)
	}
	// The view first: whoever is woken by a gate plans with the new one.
	t.view.Store(v)
	for _, c := range changed {
		t.settleLocked(old, c)
	}
	t.settlePrimariesLocked(old.Catalog, s)
	close(t.news)
	t.news = make(chan struct{})
}

// WaitApplied waits until a version of ns's map, or a later one, was applied. It returns ctx's cause when that ends first.
func (t *Table) WaitApplied(ctx context.Context, ns string, v int64) error {
	for {
		t.mu.Lock()
		done, news := t.applied[ns] >= v, t.news
		t.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *Table) collectionLocked(s *catalog.Snapshot, ns string, m *catalog.Map) *Collection {
	db, name := catalog.SplitNS(ns)
	c := &Collection{NS: ns, DB: db, Name: name, Map: m, Key: m.Key, Parts: make([]*Part, len(m.Partitions))}
	for i, p := range m.Partitions {
		h := Home{Backend: p.Backend, DB: db, Physical: p.Physical}
		c.Parts[i] = &Part{Home: h, Range: p.Range, Info: p, gate: t.gateLocked(ns, h, m.V), version: m.V}
	}
	c.Old = oldHomes(m, t.view.Load().mapped[ns])
	if d := s.Databases[db]; m.Dropped && d != nil {
		h := Home{Backend: d.Primary, DB: db, Physical: catalog.AbsentName(name)}
		c.Absent = &Part{Home: h, gate: t.gateLocked(ns, h, m.V), version: m.V}
		t.closeIfPlainLocked(c.Absent.gate)
	}
	return c
}

// oldHomes are those of a map, each since the moment at which the collection that the map takes the place of had it, or since now.
func oldHomes(m *catalog.Map, before *Collection) []OldHome {
	if len(m.Retired) == 0 {
		return nil
	}
	type change struct { // a home may be replaced, be the collection again, and be replaced again
		backend, physical string
		marker            bson.Timestamp
	}
	known := map[change]time.Time{}
	if before != nil {
		for _, o := range before.Old {
			known[change{o.Backend, o.Physical, o.Marker}] = o.Since
		}
	}
	now := time.Now()
	old := make([]OldHome, len(m.Retired))
	for i, o := range m.Retired {
		since, ok := known[change{o.Backend, o.Physical, o.Marker}]
		if !ok {
			since = now
		}
		old[i] = OldHome{OldHome: o, Since: since}
	}
	return old
}

// on reports whether the absent part of a collection is where s has its database's primary.
func (p *Part) on(s *catalog.Snapshot) bool {
	return p == nil || s.Databases[p.DB] != nil && s.Databases[p.DB].Primary == p.Backend
}

// settleLocked opens what the new map names and retires what the old one, or the absence of one, did.
func (t *Table) settleLocked(old *View, c *Collection) {
	keep := make(map[Home]bool, len(c.Parts))
	for _, p := range c.Parts {
		keep[p.Home] = true
		// A namespace that gets its map while its database's closing stands does not concern that any more: nobody would open it when the closing ends.
		p.gate.hold(false)
		t.tellOpen(p.gate, p.gate.open(c.Map.V))
	}
	if c.Absent != nil {
		t.tellOpen(c.Absent.gate, c.Absent.gate.open(c.Map.V))
	}
	var before []*Part
	if oc := old.mapped[c.NS]; oc != nil {
		before = oc.Parts
		if oc.Absent != nil && (c.Absent == nil || c.Absent.Home != oc.Absent.Home) {
			// The collection may be dropped again, and needs an open gate then.
			t.retireLocked(oc.Absent.gate)
		}
	} else if oc, ok := old.plain.Load(c.NS); ok {
		before = oc.(*Collection).Parts
	} else if d := old.Catalog.Databases[c.DB]; d != nil {
		h := Home{Backend: d.Primary, DB: c.DB, Physical: c.Name}
		if g := t.gates[h]; g == nil || g.ns == c.NS {
			before = []*Part{{Home: h, gate: t.gateLocked(c.NS, h, 0)}}
		}
	}
	for _, p := range before {
		if !keep[p.Home] {
			t.retireLocked(p.gate)
		}
	}
	t.applied[c.NS] = c.Map.V
}

// retireLocked closes a gate for good and forgets it: whoever is inside knows it, and a home that comes back, as a namespace that is dropped again, needs
// an open one.
func (t *Table) retireLocked(g *Gate) {
	t.tellOpen(g, g.retire())
	if t.gates[g.home] == g {
		delete(t.gates, g.home)
	}
}
