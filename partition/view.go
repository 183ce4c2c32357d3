package partition

import (
	"sync"
	"time"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/shardkey"
)

// Part is one partition as a request uses it: where it lives and its gate. Immutable.
type Part struct {
	Home
	// Range is the positions it holds; whole for an unsharded collection.
	Range shardkey.Range
	// Info is the map's entry; its zero value for a namespace without a map.
	Info catalog.Partition

	gate    *Gate
	version int64
}

// Current reports whether the map has not changed since the part was planned with.
func (p *Part) Current() bool {
	g := p.gate
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state != Retired && g.version <= p.version
}

// Gate returns the gate before the part's home.
func (p *Part) Gate() *Gate { return p.gate }

// Collection is a namespace as a request plans with it. Immutable; take it anew for each request.
type Collection struct {
	// NS is "DB.Name".
	NS, DB, Name string
	// Map is the newest map; nil for a namespace that has none and lives under its own name on its
	// database's primary backend.
	Map *catalog.Map
	// Key is the shard key; nil for an unsharded collection.
	Key *shardkey.Pattern
	// Parts are its partitions in order of position: exactly one for an unsharded collection, none when
	// the map says that it was dropped.
	Parts []*Part
	// Absent is the gate of a dropped collection: who answers that it does not exist passes it, since making it anew closes it. Nil for all others.
	Absent *Part
	// Old are the homes that the map remembers its changes to have replaced: Map.Retired.
	Old []OldHome
}

// OldHome is a home that a change of the map replaced.
type OldHome struct {
	catalog.OldHome
	// Since is when this process learnt of it.
	Since time.Time
}

// clockSkew is more than clocks of machines differ by.
const clockSkew = 24 * time.Hour

// Matters reports whether what the old home has on record may still answer a write that is repeated within a window after the change. That counts from when this process
// learnt of it, since clocks of two machines are not compared; only what is older than any of them could be wrong by is forgotten by a process that has just begun, too.
func (o *OldHome) Matters(window time.Duration) bool {
	return time.Since(o.Since) < window && time.Since(o.FlippedAt) < window+clockSkew
}

// Sharded reports whether the collection has a shard key.
func (c *Collection) Sharded() bool { return c.Key != nil }

// Dropped reports whether the newest map says that the collection does not exist.
func (c *Collection) Dropped() bool { return c.Map != nil && c.Map.Dropped }

// At returns the part that holds a position. The collection must not be dropped.
func (c *Collection) At(p shardkey.Position) *Part { return c.Parts[c.index(p)] }

// Only returns the part that holds a position, as a slice that is the collection's. The collection must not be dropped.
func (c *Collection) Only(p shardkey.Position) []*Part {
	i := c.index(p)
	return c.Parts[i : i+1 : i+1]
}

func (c *Collection) index(p shardkey.Position) int {
	if c.Map == nil || len(c.Parts) == 1 {
		return 0
	}
	return c.Map.Index(p)
}

// Targets returns the parts that hold the positions of t, in order, each once; all of them when t is
// not bound. A bound target without positions (a filter that nothing can match) gives the first part, so that the reply has
// the shape a server gives it. dst is reused.
func (c *Collection) Targets(dst []*Part, t *shardkey.Target) []*Part {
	if !c.Sharded() || !t.Bound {
		return append(dst, c.Parts...)
	}
	if len(t.Positions) == 0 {
		return append(dst, c.Parts[0])
	}
	last := -1
	for _, pos := range t.Positions {
		if i := c.index(pos); i != last {
			dst = append(dst, c.Parts[i])
			last = i
		}
	}
	return dst
}

// View is what requests plan with: the catalog's snapshot and each namespace's parts with their gates.
type View struct {
	// Catalog is the snapshot the view was made from.
	Catalog *catalog.Snapshot

	table  *Table
	mapped map[string]*Collection
	// plain caches the collections without a map, made at first use.
	plain sync.Map
}

// Sharded returns the collection ns if it is sharded, nil otherwise. It does not keep ns.
func (v *View) Sharded(ns []byte) *Collection {
	if c := v.mapped[string(ns)]; c != nil && c.Sharded() {
		return c
	}
	return nil
}

// Collection returns how to reach ns. It is nil when the database is not known (reads find nothing
// there; a write registers the database first).
func (v *View) Collection(ns string) *Collection {
	if c := v.mapped[ns]; c != nil {
		return c
	}
	if c, ok := v.plain.Load(ns); ok {
		return c.(*Collection)
	}
	db, name := catalog.SplitNS(ns)
	d := v.Catalog.Databases[db]
	if d == nil {
		return nil
	}
	g := v.table.plainGate(v, Home{Backend: d.Primary, DB: db, Physical: name})
	if g == nil {
		return v.table.View().Collection(ns)
	}
	c := &Collection{NS: ns, DB: db, Name: name, Parts: []*Part{{Home: g.home, gate: g}}}
	actual, _ := v.plain.LoadOrStore(ns, c)
	return actual.(*Collection)
}

// Mapped calls yield for each namespace that has a map, dropped ones too, in no order.
func (v *View) Mapped(yield func(*Collection) bool) {
	for _, c := range v.mapped {
		if !yield(c) {
			return
		}
	}
}
