package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
)

// Config is what a Member is made of. Durations that are zero take the protocol's defaults.
type Config struct {
	// Proxy names this process, "host:port".
	Proxy    string
	Backends *backend.Set
	Table    *partition.Table
	Log      zerolog.Logger
	// Refresh reads the newest maps and has Table apply them. It is called when a floor on a backend lies above what Table has applied.
	Refresh func(context.Context) error
	// Burn ends a closing for which no version has come in time, by inserting that version with nothing changed; nil leaves that to others.
	Burn func(ctx context.Context, ns string, v int64, home catalog.RecordedHome) error
	// Lost is told that this process's lease at a backend has ended: its transactions there are to be ended before Lost returns. May be nil.
	Lost func(ctx context.Context, backendID string)
	// Verify looks, before each registration, whether the server is the backend that it is taken for:
	// it may have been replaced or restored meanwhile. With an error nothing is registered, and no
	// request goes there. May be nil.
	Verify func(ctx context.Context, b *backend.Backend) error
	// Overdue is told of retired homes that are still in use at the drain limit: the cursors there are to be killed. May be nil.
	Overdue func([]partition.Home)
	// Abort aborts the transactions that have touched homes, which keep a closing from being answered. May be nil.
	Abort func([]partition.Home)
	// Undecided reports whether a transaction of this process at a backend may still be open. Nil: there are never any.
	Undecided func(backendID string) bool
	// Lease is how long a lease lasts; 0 is DefaultLease, or what the backend's election timeout needs. Renew is how often it is renewed (2 s), Margin what
	// clocks may differ by (1 s).
	Lease, Renew, Margin time.Duration
	// Patience is how long a closing may stand before this process burns the version that ends it (5 s).
	Patience time.Duration
	// DrainLimit is how long cursors on a retired home are left alone (1 h).
	DrainLimit time.Duration
}

// Member keeps this process registered at every backend of the set. Make one with New and run it with Run.
type Member struct {
	cfg Config

	// leases are the current ones by backend, *Lease; every request reads them, and they change with a joining only.
	leases sync.Map

	mu sync.Mutex
	// past are this process's instances at each backend that are not known to be gone.
	past map[string][]bson.ObjectID
	// joined is closed and replaced when a backend was joined.
	joined chan struct{}
}

// ended is the lease of a backend that was not joined.
var ended = &Lease{}

// New makes a member that is registered nowhere.
func New(cfg Config) *Member {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Renew, 2*time.Second)
	def(&cfg.Margin, time.Second)
	def(&cfg.Patience, 5*time.Second)
	def(&cfg.DrainLimit, time.Hour)
	return &Member{cfg: cfg, past: map[string][]bson.ObjectID{}, joined: make(chan struct{})}
}

// Lease returns the current lease at a backend; one that is not valid if there is none.
func (m *Member) Lease(backendID string) *Lease {
	if l, ok := m.leases.Load(backendID); ok {
		return l.(*Lease)
	}
	return ended
}

// WaitJoined waits until a backend was joined.
func (m *Member) WaitJoined(ctx context.Context, backendID string) error {
	for {
		m.mu.Lock()
		ch := m.joined
		m.mu.Unlock()
		if m.Lease(backendID).Valid() {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Keep keeps this process registered at one backend until ctx ends, joining again, as a new instance, whenever the lease was lost.
// When it returns the instance has been marked gone, if the backend could be reached and nothing of it is left there.
func (m *Member) Keep(ctx context.Context, b *backend.Backend) {
	for ctx.Err() == nil {
		err := m.session(ctx, b)
		if err == nil || ctx.Err() != nil {
			continue
		}
		m.cfg.Log.Warn().Err(err).Str("backend", b.ID()).Msg("not registered at the backend; trying again")
		select {
		case <-time.After(m.cfg.Renew / 4):
		case <-ctx.Done():
		}
	}
	m.leave(context.WithoutCancel(ctx), b)
}

// verifyLimit bounds one look whether a server is the backend that it is taken for.
const verifyLimit = 10 * time.Second

// session is the life of one instance. An instance whose lease was lost is not gone yet: what it sent may be in flight, and only the next one, which
// answers for all gates of this process, can speak for it.
func (m *Member) session(ctx context.Context, b *backend.Backend) error {
	length, err := m.leaseLength(ctx, b)
	if err != nil {
		return err
	}
	in := &instance{m: m, b: b, board: BoardOf(b), id: bson.NewObjectID(), lease: &Lease{length: length, margin: m.cfg.Margin}, seen: map[bson.ObjectID]bool{}}
	in.lease.mark = in.markTransactions
	if m.cfg.Verify != nil {
		vctx, cancel := context.WithTimeout(ctx, verifyLimit)
		err := m.cfg.Verify(vctx, b)
		cancel()
		if err != nil {
			return err
		}
	}
	inner, cancel := context.WithCancel(ctx)
	defer in.wg.Wait()
	defer cancel()
	defer in.lease.end()
	past := m.remember(b.ID(), in.id)
	stream, met, err := in.join(inner)
	if err != nil {
		return err
	}
	m.set(b.ID(), in.lease)
	in.wg.Go(func() { in.watch(inner, stream) })
	in.wg.Go(func() { in.bury(inner, met, past) })
	in.wg.Go(func() { in.mourn(inner) })
	err = in.renew(ctx)
	in.lease.end()
	if ctx.Err() == nil && m.cfg.Lost != nil {
		m.cfg.Lost(ctx, b.ID())
	}
	return err
}

// remember notes a new instance of this process and returns the earlier ones.
func (m *Member) remember(backendID string, id bson.ObjectID) (past []bson.ObjectID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	past = slices.Clone(m.past[backendID])
	m.past[backendID] = append(m.past[backendID], id)
	return past
}

// forget notes that instances are gone.
func (m *Member) forget(backendID string, gone []bson.ObjectID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.past[backendID] = slices.DeleteFunc(m.past[backendID], func(id bson.ObjectID) bool { return slices.Contains(gone, id) })
}

// leave marks all instances of this process at a backend gone. Its requests must be over.
func (m *Member) leave(ctx context.Context, b *backend.Backend) {
	if m.cfg.Undecided != nil && m.cfg.Undecided(b.ID()) {
		return // others end it and wait until the transaction has died
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m.mu.Lock()
	ids := slices.Clone(m.past[b.ID()])
	m.mu.Unlock()
	_ = BoardOf(b).Gone(ctx, ids)
}

func (m *Member) set(id string, l *Lease) {
	m.mu.Lock()
	m.leases.Store(id, l)
	close(m.joined)
	m.joined = make(chan struct{})
	m.mu.Unlock()
}

// instance is one registration.
type instance struct {
	m     *Member
	b     *backend.Backend
	board Board
	id    bson.ObjectID
	lease *Lease
	mu    sync.Mutex
	// seen are the closings that were met.
	seen map[bson.ObjectID]bool
	// wg counts what runs for the instance.
	wg sync.WaitGroup
}

// join registers the instance as the protocol says. The stream of closings, nil on a standalone, begins before they are read; met are the gates that
// were closed.
func (in *instance) join(ctx context.Context) (stream *mongo.ChangeStream, met []*partition.Gate, err error) {
	limited, cancel := context.WithTimeout(ctx, in.lease.length)
	defer cancel()
	sent := time.Now()
	doc := protocol.Instance{ID: in.id, Proxy: in.m.cfg.Proxy, PID: os.Getpid(), Started: time.Now().UTC(),
		Lease: (in.lease.length + in.lease.margin).Milliseconds()}
	registered := func() error {
		if !in.lease.renewed(sent, true) {
			return errors.New("the registration was confirmed after its lease had ended")
		}
		stream = in.stream(ctx)
		return nil
	}
	refreshed := false
	floor := func(f protocol.Floor) error {
		if in.m.cfg.Table.Applied(f.NS) < f.V && !refreshed && in.m.cfg.Refresh != nil {
			refreshed = true
			if err := in.m.cfg.Refresh(limited); err != nil {
				return err
			}
		}
		if v := in.m.cfg.Table.Applied(f.NS); v < f.V {
			return fmt.Errorf("the map of %s is known at version %d, and %d is the lowest that may be used", f.NS, v, f.V)
		}
		return nil
	}
	see := func(c protocol.Closing) {
		gates := in.meet(ctx, c)
		met = append(met, gates...)
		in.lease.joinedBehind(gates, c.Ends)
	}
	err = protocol.Join(limited, in.board, doc, registered, see, floor)
	if err != nil && stream != nil {
		_ = stream.Close(context.WithoutCancel(ctx))
	}
	return stream, met, err
}

// bury marks earlier instances of this process gone once nothing of theirs is behind a gate that was to be closed when this one joined;
// whatever is closed later waits for this one's answer.
func (in *instance) bury(ctx context.Context, met []*partition.Gate, past []bson.ObjectID) {
	for _, g := range met {
		if g.WaitQuiet(ctx) != nil {
			return
		}
	}
	if in.m.cfg.Undecided != nil && in.m.cfg.Undecided(in.b.ID()) {
		return // whoever ends them waits until the transaction has died
	}
	if in.board.Gone(ctx, past) == nil {
		in.m.forget(in.b.ID(), past)
	}
}

// markTransactions says, before the first transaction of the instance begins, that it may leave one open.
func (in *instance) markTransactions(ctx context.Context) error {
	ok, err := in.board.MarkTransactions(ctx, in.id)
	if err == nil && !ok {
		err = errors.New("the instance was ended by another proxy")
	}
	return err
}

// renew renews the lease until ctx ends or the lease is lost.
func (in *instance) renew(ctx context.Context) error {
	t := time.NewTicker(in.m.cfg.Renew)
	defer t.Stop()
	for confirmed := int64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		sent := time.Now()
		// While a set recovers from a failover a majority may take longer to confirm than from one renewal to the next.
		rctx, cancel := context.WithTimeout(ctx, max(in.m.cfg.Renew, in.lease.length/4))
		ok, err := in.board.RenewFrom(rctx, in.id, confirmed)
		cancel()
		switch {
		case err == nil && !ok:
			return errors.New("the instance was ended by another proxy, or the backend was restored from an older copy")
		case err == nil && !in.lease.renewed(sent, false):
			return errors.New("the lease had ended before its renewal was confirmed")
		case err != nil && !in.lease.Valid():
			return err
		case err == nil:
			confirmed++
		}
	}
}
