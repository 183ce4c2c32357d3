package model

import (
	"iter"
)

// Res is what an operation gave its thread: a comparable value, all that the thread learns.
type Res any

// Op is one thing that a thread may do next: a single read or write of a store, or of what its process has in memory.
type Op struct {
	Name string
	// On says when it can be done; nil is always.
	On func(*World) bool
	// Do does it.
	Do func(*World) Res
	// Lost is the result when the answer is lost; nil for what cannot be lost. A write whose answer is lost may arrive at any later time, or never.
	Lost  Res
	Write bool
	// Fault is what the operation is paid from when it is something that goes wrong; zero otherwise.
	Fault Fault
	// Paid says whether it must be paid for in a state; nil is always.
	Paid func(*World) bool
	// Rewind takes the thread back to where it was so many operations ago: what it has learnt in a look that found nothing is nothing.
	Rewind int
}

// Program is what a thread runs from a point on at which its state is exactly this value. It returns what it goes on as; nil when it ends.
type Program interface {
	Run(t *Thread) Program
}

// Thread is a program on its way: every operation hands control to the explorer.
type Thread struct {
	m     *Model
	yield func([]Op) bool
	feed  Res
	next  Program
	ids   map[[12]byte]uint8
	// saw is what the last look at instances and answers gave.
	saw [2]Res
	// looked is the board that it was at, lookedFor the closing.
	looked    boardOn
	lookedFor uint8
	// ends is the version that ends the closing that it makes.
	ends uint8
}

type unwound struct{}

// do offers operations and returns which of them was done, and what it gave.
func (t *Thread) choose(ops ...Op) (int, Res) {
	if !t.yield(ops) {
		panic(unwound{})
	}
	f := t.feed.(fed)
	return int(f.alt), f.res
}

func (t *Thread) do(op Op) Res {
	_, res := t.choose(op)
	return res
}

// fed is a result on its way into a thread.
type fed struct {
	alt uint8
	res Res
}

// node is a state of a thread: a program, and all that it has learnt since its start. Programs are deterministic given that, so each node's next operations and
// each edge are found out once, by running the program, and known from then on.
type node struct {
	prog   Program
	parent uint32
	in     fed
	depth  int
	alts   []Op
	done   bool
	next   map[fed]uint32
}

// automaton has the nodes of all threads. Node 0 is a thread that has ended, or died.
type automaton struct {
	m     *Model
	nodes []*node
	roots map[Program]uint32
}

func newAutomaton(m *Model) *automaton {
	return &automaton{m: m, nodes: []*node{{done: true}}, roots: map[Program]uint32{}}
}

// root is the node at which a program begins.
func (a *automaton) root(p Program) uint32 {
	if p == nil {
		return 0
	}
	if id, ok := a.roots[p]; ok {
		return id
	}
	id := a.add(&node{prog: p})
	a.roots[p] = id
	if to, same := a.run(id); !same {
		a.roots[p] = to
		return to
	}
	return id
}

func (a *automaton) add(n *node) uint32 {
	n.next = map[fed]uint32{}
	a.nodes = append(a.nodes, n)
	return uint32(len(a.nodes) - 1)
}

// step is the node after an operation gave a result.
func (a *automaton) step(id uint32, alt int, res Res, lost bool) uint32 {
	n := a.nodes[id]
	if back := n.alts[alt].Rewind; back > 0 && !lost {
		for range back {
			id = a.nodes[id].parent
		}
		return id
	}
	in := fed{uint8(alt), res}
	if to, ok := n.next[in]; ok {
		return to
	}
	to := a.add(&node{prog: n.prog, parent: id, in: in, depth: n.depth + 1})
	if other, same := a.run(to); !same {
		to = other
	}
	n.next[in] = to
	return to
}

// run finds out what a node does next. It reports false, and where the thread is instead, when its program has come to an end.
func (a *automaton) run(id uint32) (uint32, bool) {
	n := a.nodes[id]
	past := make([]fed, n.depth)
	for x := n; x.depth > 0; x = a.nodes[x.parent] {
		past[x.depth-1] = x.in
	}
	t := &Thread{m: a.m, ids: map[[12]byte]uint8{}}
	next, stop := iter.Pull(func(yield func([]Op) bool) {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(unwound); !ok {
					panic(r)
				}
			}
		}()
		t.yield = yield
		t.next = n.prog.Run(t)
	})
	defer stop()
	ops, going := next()
	for _, f := range past {
		t.feed = f
		ops, going = next()
	}
	if !going {
		return a.root(t.next), false
	}
	n.alts = ops
	return id, true
}
