package model

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/shardkey"
)

const (
	database  = "d"
	namespace = "d.c"
)

var (
	backends = [maxBackends]string{"A", "B"}
	// positions are those of the documents: the lowest of each half.
	positions = [maxDocs]shardkey.Position{0, 1 << 63}
	halves    = [maxDocs]shardkey.Range{{Hi: 1 << 63}, {Lo: 1 << 63}}
)

// Home is a physical collection of a configuration.
type Home struct{ Backend, Physical string }

// Place is an output: a home, and the range it takes.
type Place struct {
	Home  uint8
	Range shardkey.Range
}

// Plan is what one record is to do.
type Plan struct {
	Inputs  []uint8
	Outputs []Place
	// Drop says that the next map is that of a dropped collection; nothing is copied.
	Drop bool
}

// Write is a client's retryable write of a document.
type Write struct{ Doc, Client, N uint8 }

// Step is what a client does: a write (with retries at Proxies, one after the other), a read, or a transaction that writes and commits.
type Step struct {
	Kind    StepKind
	Write   uint8 // the write; for a read its document
	Proxies []uint8
}

// StepKind says what a step is.
type StepKind uint8

// Kinds of steps.
const (
	StepWrite StepKind = iota
	StepRead
	StepTransaction
)

// Owner is a process that changes maps: it runs Plans, one after the other, or it first takes over what another began.
type Owner struct {
	Plans    []uint8
	TakeOver bool
}

// Config is what is explored.
type Config struct {
	Name   string
	Homes  []Home
	First  []Place // the map at the start; none for a collection without a map, which is home 0
	Plans  []Plan  // 1.. ; Plans[0] is not used
	Writes []Write
	// Clients are the clients' steps.
	Clients [][]Step
	Owners  []Owner
	// Copied says that the first owner has recorded its first plan and copied all there was, which is nothing, at the start.
	Copied  bool
	Proxies int
	// Joiner says that the last proxy knows the first map and is registered nowhere yet.
	Joiner bool
	// Watched are the backends at which members watch closings, as bits; 0 is the first.
	Watched uint8
	// Swept says that the first proxy sweeps once.
	Swept bool
	// Mourned says that somebody ends instances that are not renewed.
	Mourned bool
	// Crashable are the processes that may crash.
	Crashable []uint8
	// Lapsable are the proxies whose lease at the first backend may lapse.
	Lapsable []uint8
	// SendsAgain says that a write whose reply was cut, or came when its lease had ended, is sent again from within its gate, once.
	SendsAgain bool
	// Brief says that inputs are not drained and dropped: what follows the removal of the closings is another configuration's.
	Brief bool
	// Deaf says that members' operations may lose their answers too, not the owners' only.
	Deaf   bool
	Bounds [faults]uint8
}

// Model explores one configuration, whole or with a rule broken.
type Model struct {
	cfg     *Config
	variant Variant
	auto    *automaton
	tables  *tables
	mapped  []*catalog.Map
	mapIDs  map[string]uint16
	threads []thread
}

// thread is a slot of the world's threads: which process it belongs to.
type thread struct {
	name string
	proc uint8
	// faulty says that its operations' answers may be lost.
	faulty bool
	// mustEnd says that everything has not ended before it has.
	mustEnd bool
}

// Processes: proxies first, then owners.
const firstOwner = maxProxies

func newModel(cfg *Config, v Variant) *Model {
	m := &Model{cfg: cfg, variant: v, mapIDs: map[string]uint16{"": 0}, mapped: []*catalog.Map{nil}}
	m.auto = newAutomaton(m)
	m.tables = newTables(m)
	return m
}

// oid makes the identity of the n-th of a kind.
func oid(kind, n uint8) bson.ObjectID { return bson.ObjectID{0: 0xAA, 1: kind, 11: n} }

const (
	kindReshape uint8 = iota + 1
	kindProcess
	kindInstance
	kindClosing
)

func num(id bson.ObjectID) uint8 { return id[11] }

func canonical(id bson.ObjectID) bool { return id[0] == 0xAA && id[2] == 0 && id[3] == 0 && id[4] == 0 }

// closingNumber is the number of the closing of a record on a backend.
func closingNumber(rec, b uint8) uint8 { return rec*maxBackends + b }

// closing is the document of a closing that stands on a backend until version ends.
func (m *Model) closing(n, ends uint8) protocol.Closing {
	rec, b := n/maxBackends, n%maxBackends
	c := protocol.Closing{ID: oid(kindClosing, n), NS: namespace, DB: database, Ends: int64(ends), Reshape: oid(kindReshape, rec)}
	for _, h := range m.cfg.Plans[rec].Inputs {
		if m.cfg.Homes[h].Backend == backends[b] {
			c.Physical = append(c.Physical, m.cfg.Homes[h].Physical)
		}
	}
	return c
}

func (m *Model) homeOf(backend, physical string) uint8 {
	for i, h := range m.cfg.Homes {
		if h.Backend == backend && h.Physical == physical {
			return uint8(i)
		}
	}
	panic("no home " + backend + "/" + physical)
}

func backendOf(name string) uint8 {
	for i, b := range backends {
		if b == name {
			return uint8(i)
		}
	}
	panic("no backend " + name)
}

func (m *Model) at(h uint8) uint8 { return backendOf(m.cfg.Homes[h].Backend) }

// mapKey tells what matters of a map.
func (m *Model) mapKey(c *catalog.Map) string {
	var b strings.Builder
	fmt.Fprint(&b, c.V, c.Dropped, c.Burnt, num(c.Reshape))
	for _, p := range c.Partitions {
		fmt.Fprint(&b, " ", p.Range.Lo, m.homeOf(p.Backend, p.Physical))
	}
	for _, r := range c.Retired {
		fmt.Fprint(&b, " r", r.Range.Lo, m.homeOf(r.Backend, r.Physical), r.Marker.T)
	}
	return b.String()
}

// mapID is the number of a map.
func (m *Model) mapID(c *catalog.Map) uint16 {
	key := m.mapKey(c)
	if id, ok := m.mapIDs[key]; ok {
		return id
	}
	n := *c
	n.NS, n.UUID, n.Epoch = namespace, bson.Binary{}, bson.ObjectID{}
	m.mapped = append(m.mapped, &n)
	m.mapIDs[key] = uint16(len(m.mapped) - 1)
	return m.mapIDs[key]
}

// current is the newest map of a world, nil if there is none.
func (m *Model) current(w *World) *catalog.Map { return m.mapped[w.maps[w.newest()]] }

// holder is the home of a document by a map; the collection's own name if there is no map. None when it was dropped.
func (m *Model) holder(c *catalog.Map, doc uint8) (h uint8, ok bool) {
	if c == nil {
		return 0, true
	}
	if c.Dropped {
		return 0, false
	}
	p := c.Partitions[c.Index(positions[doc])]
	return m.homeOf(p.Backend, p.Physical), true
}

// mapOf makes a map of places.
func (m *Model) mapOf(v int64, places []Place) *catalog.Map {
	c := &catalog.Map{NS: namespace, V: v}
	for _, p := range places {
		h := m.cfg.Homes[p.Home]
		c.Partitions = append(c.Partitions, catalog.Partition{Range: p.Range, Backend: h.Backend, Physical: h.Physical})
	}
	return c
}

// record is a record's document as a world has it.
func (m *Model) record(n uint8, r *record) catalog.Reshape {
	plan := m.cfg.Plans[n]
	rec := catalog.Reshape{ID: oid(kindReshape, n), NS: namespace, Slot: namespace, Owner: oid(kindProcess, r.owner), Epoch: int64(r.epoch), EndV: int64(r.endV), Phase: catalog.Copying}
	switch {
	case r.retiring:
		rec.Phase, rec.Slot = catalog.Retiring, rec.ID.Hex()
	case r.closing:
		rec.Phase = catalog.Closing
	}
	for _, h := range plan.Inputs {
		rec.Inputs = append(rec.Inputs, catalog.RecordedHome{Backend: m.cfg.Homes[h].Backend, Physical: m.cfg.Homes[h].Physical})
	}
	for _, p := range plan.Outputs {
		rec.Outputs = append(rec.Outputs, catalog.RecordedHome{Backend: m.cfg.Homes[p.Home].Backend, Physical: m.cfg.Homes[p.Home].Physical})
	}
	for b := range uint8(maxBackends) {
		if r.on&(1<<b) != 0 {
			rec.Closings = append(rec.Closings, catalog.RecordedClosing{Backend: backends[b], ID: oid(kindClosing, closingNumber(n, b))})
		}
	}
	return rec
}
