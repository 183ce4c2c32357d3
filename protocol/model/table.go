package model

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
)

// A proxy's gates are a real partition.Table. A world holds the number of one of its states; every call leads from a state to a state, is
// made once by repeating all calls that led there on a new Table, and is known from then on. States that look the same, by the fields of all gates, are one.

// call is a call of a table.
type call struct {
	what uint8
	// a, b: apply(map), enter(client, doc), leave(client), close(closing, its version), quiet/released(closing).
	a uint16
	b uint8
}

const (
	callApply uint8 = iota
	callEnter
	callLeave
	callClose
	callQuiet
	callReleased
)

type tableState struct {
	calls []call
	next  map[call]tableEdge
	// version is the applied one; open is which home each document's requests get into, −1 for none: closed, or dropped.
	version uint8
	open    [maxDocs]int8
	dropped bool
}

type tableEdge struct {
	to uint32
	ok bool
	// home and version are what enter gave.
	home uint8
}

type tables struct {
	m      *Model
	states []*tableState
	known  map[string]uint32
}

func newTables(m *Model) *tables {
	ts := &tables{m: m, known: map[string]uint32{}}
	ts.states = append(ts.states, nil) // 0 is a proxy that has none
	ts.intern(nil)
	return ts
}

// liveTable is a table with what the calls on it gave.
type liveTable struct {
	m       *Model
	t       *partition.Table
	tickets [maxClients][]*partition.Part
	met     [maxClosings][]*partition.Gate
}

var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (l *liveTable) do(c call) (ok bool, home uint8) {
	m := l.m
	switch c.what {
	case callApply:
		l.t.Apply(m.snapshot(c.a))
		return true, 0
	case callEnter:
		coll := l.t.View().Collection(namespace)
		if coll == nil || coll.Dropped() {
			return false, 0
		}
		p := coll.At(positions[c.b])
		// A context that has ended makes it a try.
		if err := partition.Enter(over, []*partition.Part{p}, partition.Write); err != nil {
			return false, 0
		}
		if c.a != noTicket {
			l.tickets[c.a] = []*partition.Part{p}
		} else {
			partition.Leave([]*partition.Part{p}, partition.Write)
		}
		return true, m.homeOf(p.Backend, p.Physical)
	case callLeave:
		partition.Leave(l.tickets[c.a], partition.Write)
		l.tickets[c.a] = nil
	case callClose:
		cl := m.closing(uint8(c.a), c.b)
		var homes []partition.Home
		for _, p := range cl.Physical {
			homes = append(homes, partition.Home{Backend: backends[c.a%maxBackends], DB: cl.DB, Physical: p})
		}
		ends := cl.Ends
		if m.variant == OlderVersionOpens {
			ends = l.t.Applied(cl.NS) + 1
			if l.t.Applied(cl.NS) >= cl.Ends {
				ends = 0
			}
		}
		gates, ok := l.t.Close(cl.NS, homes, ends, partition.ClosedAll)
		if ok {
			l.met[c.a] = gates
		}
		return ok, 0
	case callQuiet:
		for _, g := range l.met[c.a] {
			if g.WaitQuiet(over) != nil {
				return false, 0
			}
		}
		return true, 0
	case callReleased:
		if l.t.Applied(namespace) < int64(c.b) {
			return false, 0
		}
		for _, g := range l.met[c.a] {
			if g.WaitReleased(over) != nil {
				return false, 0
			}
		}
		return true, 0
	}
	return true, 0
}

const noTicket = 999

func (ts *tables) replay(calls []call) *liveTable {
	l := &liveTable{m: ts.m, t: partition.NewTable()}
	for _, c := range calls {
		l.do(c)
	}
	return l
}

// call makes a call in a state.
func (ts *tables) call(from uint32, c call) tableEdge {
	s := ts.states[from]
	if e, ok := s.next[c]; ok {
		return e
	}
	l := ts.replay(s.calls)
	ok, home := l.do(c)
	e := tableEdge{to: from, ok: ok, home: home}
	if ok && c.what < callQuiet {
		e.to = ts.intern(append(append([]call(nil), s.calls...), c))
	}
	s.next[c] = e
	return e
}

// intern finds the state to which calls lead.
func (ts *tables) intern(calls []call) uint32 {
	l := ts.replay(calls)
	s := &tableState{calls: calls, next: map[call]tableEdge{}, version: uint8(l.t.Applied(namespace))}
	if c := l.t.View().Collection(namespace); c != nil {
		s.dropped = c.Dropped()
	}
	for d := range positions {
		s.open[d] = -1
		if ok, h := l.do(call{callEnter, noTicket, uint8(d)}); ok {
			s.open[d] = int8(h)
		}
	}
	key := l.fingerprint()
	if id, ok := ts.known[key]; ok {
		return id
	}
	ts.states = append(ts.states, s)
	ts.known[key] = uint32(len(ts.states) - 1)
	return ts.known[key]
}

// fingerprint tells all that a table's further behaviour depends on.
func (l *liveTable) fingerprint() string {
	var b strings.Builder
	t := reflect.ValueOf(l.t).Elem()
	gates := t.FieldByName("gates")
	names := map[uintptr]string{}
	show := func(g reflect.Value) string {
		e := g.Elem()
		s := "{"
		for _, f := range gateFields {
			s += fmt.Sprint(e.FieldByName(f)) + " "
		}
		return s + "}"
	}
	for h := range l.m.cfg.Homes {
		k := l.m.cfg.Homes[h]
		g := gates.MapIndex(reflect.ValueOf(partition.Home{Backend: k.Backend, DB: database, Physical: k.Physical}))
		if g.IsValid() {
			names[g.Pointer()] = fmt.Sprint("g", h)
			fmt.Fprint(&b, "g", h, show(g), ";")
		}
	}
	of := func(g *partition.Gate) string {
		v := reflect.ValueOf(g)
		if n, ok := names[v.Pointer()]; ok {
			return n
		}
		return g.Home().Physical + show(v)
	}
	for c, ps := range l.tickets {
		for _, p := range ps {
			fmt.Fprint(&b, "t", c, of(p.Gate()), ";")
		}
	}
	for c, gs := range l.met {
		for _, g := range gs {
			fmt.Fprint(&b, "m", c, of(g), ";")
		}
	}
	fmt.Fprint(&b, "v", l.t.Applied(namespace), "s", l.snapshotID())
	return b.String()
}

// gateFields are the fields of a gate that what it does depends on.
var gateFields = []string{"version", "state", "ends", "held", "reads", "writes", "drains", "txns"}

func (l *liveTable) snapshotID() string {
	if c := l.t.View().Catalog.Maps[namespace]; c != nil {
		return l.m.mapKey(c)
	}
	return ""
}

var errGates = errors.New("partition.Gate has other fields than the model knows")

// checkGateFields fails when the fields of a gate have changed: whoever adds one must say whether its behaviour depends on it.
func checkGateFields() error {
	known := map[string]bool{"home": true, "ns": true, "mu": true, "brake": true, "changed": true, "since": true}
	for _, f := range gateFields {
		known[f] = true
	}
	t := reflect.TypeFor[partition.Gate]()
	for i := range t.NumField() {
		if !known[t.Field(i).Name] {
			return fmt.Errorf("%w: %s", errGates, t.Field(i).Name)
		}
	}
	return nil
}

// snapshot is the catalog with one map of the collection.
func (m *Model) snapshot(id uint16) *catalog.Snapshot {
	s := &catalog.Snapshot{Databases: map[string]*catalog.Database{database: {Name: database, Primary: backends[0]}}, Maps: map[string]*catalog.Map{}}
	if id != 0 {
		s.Maps[namespace] = m.mapped[id]
	}
	return s
}
