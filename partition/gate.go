package partition

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Mode says what a request does behind a gate.
type Mode uint8

const (
	// Read may pass a gate that is closed for writes only (a standalone's copy).
	Read Mode = iota
	// Write changes documents, indexes or options.
	Write
)

// Closed says how far a gate is closed.
type Closed uint8

const (
	// Open lets everything pass.
	Open Closed = iota
	// ClosedWrites holds writes; a standalone's copy needs no more.
	ClosedWrites
	// ClosedAll holds everything new.
	ClosedAll
	// Retired never opens again: the newest map does not name the home. Whoever waits plans again.
	Retired
)

// ErrReplan says that the map has changed since the request was planned: take the current View and
// plan again. Nothing is held.
var ErrReplan = errors.New("partition: the map has changed, plan again")

// Home names a physical collection: on which backend, in which database, under which physical name.
type Home struct {
	Backend  string
	DB       string
	Physical string
}

// Gate is the point every request to one home passes in this process.
// Its zero value is not usable; a Table makes gates.
type Gate struct {
	home Home
	// ns is the namespace whose home it is: a rename gives a home to another, which gets a gate of its own.
	ns string

	mu sync.Mutex
	// version is the version of the map that the gate is open for; 0 for a namespace without a map.
	version int64
	state   Closed
	// ends is the version that ends what closed the gate: an older one that is applied meanwhile does not open it.
	ends int64
	// since is when it was closed.
	since time.Time
	// held says that the database's namespaces without a map are all closed, this one with them.
	held bool
	// reads and writes are the requests inside.
	reads, writes int
	// drains counts the cursors, which outlive their request and pass a closed gate.
	drains int
	// txns counts the transactions that have touched the home and are not decided. They pass a closed gate, and an answer waits for them.
	txns int
	// brake is how long a write is held up after it has entered.
	brake time.Duration
	// changed is closed and replaced whenever anybody who waits should look again.
	changed chan struct{}
}

func newGate(ns string, h Home, version int64) *Gate {
	return &Gate{home: h, ns: ns, version: version, changed: make(chan struct{})}
}

// Home returns what the gate stands before.
func (g *Gate) Home() Home { return g.home }

// NS returns the namespace whose home it is.
func (g *Gate) NS() string { return g.ns }

// tryEnter enters if the gate is open for mode at version. When it must wait it returns the channel
// to wait on.
func (g *Gate) tryEnter(version int64, mode Mode) (wait <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.state == Retired || g.version > version:
		return nil, ErrReplan
	case g.held || g.state == ClosedAll || g.state == ClosedWrites && mode == Write:
		return g.changed, nil
	case g.version < version:
		// The view is newer than this gate: the table is between two steps of applying a map.
		return g.changed, nil
	}
	if mode == Write {
		g.writes++
	} else {
		g.reads++
	}
	return nil, nil
}

func (g *Gate) leave(mode Mode) {
	g.mu.Lock()
	if mode == Write {
		g.writes--
	} else {
		g.reads--
	}
	if g.state != Open || g.held {
		g.wakeLocked()
	}
	g.mu.Unlock()
}

func (g *Gate) wakeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Awaits reports whether the gate is closed and the version that is to end that, ends, has not been applied. A gate that is closed for its whole database awaits
// whatever version ends that.
func (g *Gate) Awaits(ends int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held || (g.state == ClosedWrites || g.state == ClosedAll) && g.version < ends
}

// SetBrake holds every write that enters up for d, 0 for not at all: a reshape that follows slower than the home is written to gains on it so.
func (g *Gate) SetBrake(d time.Duration) {
	g.mu.Lock()
	g.brake = d
	g.mu.Unlock()
}

// braked returns the brake, 0 unless the gate is open, and what is closed when it closes.
func (g *Gate) braked() (time.Duration, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Open || g.held {
		return 0, nil
	}
	return g.brake, g.changed
}

// Hold counts something that outlives its request, a cursor for instance, for the drain of the home.
// It may only be called inside the gate. Release it exactly once with Unhold.
func (g *Gate) Hold() {
	g.mu.Lock()
	g.drains++
	g.mu.Unlock()
}

// Unhold ends a Hold.
func (g *Gate) Unhold() {
	g.mu.Lock()
	g.drains--
	g.wakeLocked()
	g.mu.Unlock()
}

// Held is how many Holds have not ended.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drains
}

// BeginTransaction counts a transaction that touches the home, from its first request inside until it is known to be committed or aborted: its later
// requests need not enter, and no answer is given before its end. It may only be called inside the gate. End it exactly once with EndTransaction.
func (g *Gate) BeginTransaction() {
	g.mu.Lock()
	g.txns++
	g.mu.Unlock()
}

// EndTransaction ends a BeginTransaction.
func (g *Gate) EndTransaction() {
	g.mu.Lock()
	g.txns--
	g.wakeLocked()
	g.mu.Unlock()
}

// Transactions is how many transactions have touched the home and are not decided.
func (g *Gate) Transactions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.txns
}

// Close closes the gate as far as c says, ClosedWrites or ClosedAll, until version ends is applied; a gate is never opened by it.
// Requests inside go on. A retired gate stays retired.
func (g *Gate) Close(c Closed, ends int64) {
	g.mu.Lock()
	if g.state != Retired {
		if g.state == Open {
			g.since = time.Now()
		}
		g.state, g.ends = max(c, g.state), max(ends, g.ends)
		g.wakeLocked()
	}
	g.mu.Unlock()
}

// hold closes the gate, or lets go of it, for its database.
func (g *Gate) hold(on bool) {
	g.mu.Lock()
	if g.held != on {
		g.held = on
		g.wakeLocked()
	}
	g.mu.Unlock()
}

// open applies a map version, which must name the home, and reopens the gate unless it is closed until a later one. It returns how long the gate was closed if that has ended.
func (g *Gate) open(version int64) (closed time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == Retired {
		return 0
	}
	g.version = max(version, g.version)
	if version >= g.ends {
		closed = g.closedLocked()
		g.state = Open
	}
	g.wakeLocked()
	return closed
}

// retire closes the gate for good, so that whoever waits plans again. It returns how long the gate was closed before.
func (g *Gate) retire() (closed time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	closed = g.closedLocked()
	g.state = Retired
	g.wakeLocked()
	return closed
}

func (g *Gate) closedLocked() time.Duration {
	if g.state == Open || g.state == Retired {
		return 0
	}
	return time.Since(g.since)
}

// WaitQuiet waits until no request that the closing holds back is inside, writes for ClosedWrites,
// reads and writes for ClosedAll, and no transaction is open. Cursors do not count. It returns ctx's error when that ends first.
func (g *Gate) WaitQuiet(ctx context.Context) error {
	return g.wait(ctx, func() bool {
		return g.txns == 0 && g.writes == 0 && (g.reads == 0 || g.state == ClosedWrites && !g.held)
	})
}

// WaitReleased waits until the home is in use by the newest map, or retired and drained.
func (g *Gate) WaitReleased(ctx context.Context) error {
	return g.wait(ctx, func() bool {
		return g.state != Retired || g.emptyLocked()
	})
}

func (g *Gate) emptyLocked() bool {
	return g.writes == 0 && g.reads == 0 && g.drains == 0 && g.txns == 0
}

func (g *Gate) wait(ctx context.Context, done func() bool) error {
	for {
		g.mu.Lock()
		ok, ch := done(), g.changed
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
