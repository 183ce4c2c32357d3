package model

import "fmt"

// Bounds of a world. All of it is of fixed size, so that a state is copied and compared as bytes.
const (
	maxThreads   = 14
	maxProxies   = 3
	maxBackends  = 2
	maxHomes     = 8
	maxWrites    = 4
	maxDocs      = 2
	maxClients   = 4
	maxInstances = 8
	maxVersions  = 6
	maxLog       = 16
	maxLate      = 4
	maxLateMsg   = 6
	maxRecords   = 4
	maxClosings  = maxRecords * maxBackends
)

// Fault is a kind of thing that goes wrong; each is paid for from a bound.
type Fault uint8

const (
	noFault Fault = iota
	// Crash ends a process; its last write may arrive later.
	Crash
	// Lapse is a process, at a backend, that stalls, or is cut off, for longer than its lease; it goes on as if nothing had happened.
	Lapse
	// LostAnswer is an operation of an owner or a member whose answer does not come; a write may arrive later.
	LostAnswer
	// Cut is a client's request whose connection breaks; it may arrive later.
	Cut
	// Usurp is a record taken over although its owner lives: it has stalled for longer than its lease.
	Usurp
	// Timeout is an owner that has waited for answers for longer than the pause budget.
	Timeout
	// Impatience is a proxy that burns a closing by itself.
	Impatience
	// Forgotten is an old version of a map that is deleted from the catalog.
	Forgotten
	faults
)

// record is a reshape's record.
type record struct {
	exists, retiring, closing bool
	owner, epoch, endV        uint8
	// on are the backends with recorded closings, as bits.
	on uint8
}

type instance struct {
	there, ended, gone, marked bool
	proxy                      uint8
	// frozen says that it is not renewed any more, since renewals; until then its count is the clock.
	frozen   bool
	renewals uint8
}

// lease is what a proxy knows of its own instance at a backend.
type lease struct {
	valid bool
	inst  uint8 // 0 for none
	// undecided are the transactions that may be open.
	undecided uint8
}

// board is what stands on a backend.
type board struct {
	insts    [maxInstances]instance
	closings [maxClosings]uint8 // the version that ends it; 0 for none
	answers  [maxClosings]uint8 // instances, as bits
	released [maxClosings]uint8
	floor    uint8
}

// home is a physical collection: how often each write was applied to it.
type home struct {
	exists bool
	n      [maxWrites]uint8
	// rec is what a client's session has on record there: transaction number, and after how much of the log it was executed.
	rec [maxClients]mark
}

type mark struct{ n, at uint8 }

// entry is an event of a backend's log: a home and a document, or a marker.
type entry struct{ home, doc uint8 }

// what a message asks for.
const (
	nothing uint8 = iota
	doWrite
	doRead
	doStatement
	doCommit
)

// replies.
const (
	pending uint8 = iota
	okay
	tooOld
	noTransaction
)

// message is a request of a client on its way to a backend, or its reply on the way back.
type message struct {
	kind, home, write, reply uint8
	// seen are the writes that a read has shown; need those it must show.
	seen, need uint8
}

// states of the transaction.
const (
	unbegun uint8 = iota
	openTx
	committed
	aborted
)

type transaction struct{ state, home, writes, inst uint8 }

// World is a state of everything but the threads' inner states, which their nodes stand for.
type World struct {
	nodes  [maxThreads]uint32
	tables [maxProxies]uint32
	late   [maxLate]uint32 // nodes whose write may still arrive
	maps   [maxVersions]uint16
	alive  [8]bool // processes

	recs    [maxRecords]record
	boards  [maxBackends]board
	homes   [maxHomes]home
	log     [maxBackends][maxLog]entry
	logN    [maxBackends]uint8
	msgs    [maxClients]message
	lateMsg [maxLateMsg]message
	tx      transaction
	leases  [maxProxies][maxBackends]lease
	clock   uint8
	left    [faults]uint8
	acked   uint8 // writes, as bits
	dropped uint8 // acknowledged writes that a drop of the collection took
	done    uint8 // clients, as bits
	bad     uint8 // what an operation found violated
}

// violations.
const (
	fine uint8 = iota
	lostWrite
	twice
	twoHomes
	staleRead
	droppedNamed
	twoFlips
	stuck
	overflow
)

var invariants = []string{"", "every acknowledged write is in the newest map's partition", "applied once", "never two writable homes for a position",
	"no read begun after an acknowledged write misses it", "nothing that the newest map names is dropped", "two owners never both flip",
	"some continuation opens every gate and ends everything", "the model's own bounds suffice"}

// newest is the highest version in the catalog.
func (w *World) newest() uint8 {
	for v := maxVersions - 1; v > 0; v-- {
		if w.maps[v] != 0 {
			return uint8(v)
		}
	}
	return 0
}

// logged appends to a backend's log and returns the event's time.
func (w *World) logged(b, home, doc uint8) uint8 {
	if int(w.logN[b]) == maxLog {
		w.bad = overflow
		return w.logN[b]
	}
	w.log[b][w.logN[b]] = entry{home, doc}
	w.logN[b]++
	return w.logN[b]
}

const markerHome = 255

// sendLate keeps a write whose answer was lost on its way.
func (w *World) sendLate(id uint32) {
	for i := range w.late {
		if w.late[i] == 0 {
			w.late[i] = id
			return
		}
	}
	w.bad = overflow
}

func (w *World) sendMsgLate(m message) {
	for i := range w.lateMsg {
		if w.lateMsg[i].kind == nothing {
			w.lateMsg[i] = m
			return
		}
	}
	w.bad = overflow
}

// renewals is what the registration of an instance shows.
func (w *World) renewals(in *instance) uint8 {
	if in.frozen {
		return in.renewals
	}
	return w.clock
}

// freeze ends the renewals of a proxy's instance at a backend.
func (w *World) freeze(p, b uint8) {
	l := &w.leases[p][b]
	l.valid = false
	if in := &w.boards[b].insts[l.inst]; l.inst != 0 && !in.frozen {
		in.frozen, in.renewals = true, w.clock
	}
}

// tick lets a lease's length pass: whoever is renewed goes on. A transaction of an instance that had been ended before has died by then.
func (w *World) tick() {
	w.clock++
	if w.tx.state == openTx {
		b := &w.boards[0]
		if in := &b.insts[w.tx.inst]; in.ended || in.gone {
			w.tx.state = aborted
		}
	}
}

// String shows what the stores hold, for a counterexample.
func (w *World) String() string {
	return fmt.Sprintf("maps %v recs %+v homes %+v boards %+v leases %+v", w.maps, w.recs, w.homes, w.boards, w.leases)
}
