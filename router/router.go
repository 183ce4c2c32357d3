package router

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
)

// Config is what a Router is made of. All fields but Member are needed.
type Config struct {
	Backends *backend.Set
	Catalog  *catalog.Store
	Table    *partition.Table
	// Member gives leases; nil means that none are looked at (tests of the router alone).
	Member *member.Member
	// CatalogBackend is the id of the backend on which the catalog, and so the database admin, lives.
	CatalogBackend string
	// Reshaper runs splits, moves, merges and other changes of maps.
	Reshaper Reshaper
	// Server names this proxy to clients and in the history, "host:port".
	Server string
	Log    zerolog.Logger
	// SlowRequest is how long a request may take before it is logged; 0 logs none.
	SlowRequest time.Duration
	// RecentLog is what getLog shows; nil shows nothing.
	RecentLog *RecentLog
	// AddBackend has a backend join the fleet under a free id (addShard), RemoveBackend has one leave it that nothing lives on
	// any more (removeShard). Roster has both; nil refuses the command.
	AddBackend    func(ctx context.Context, id, uri string) error
	RemoveBackend func(ctx context.Context, id string) error
	// RetryWindow is how long after a flip a repeated write is looked up at the homes that were replaced, and how long a drained backend stays in the fleet for it;
	// 0 means 30 min.
	RetryWindow time.Duration
	// Stop has the process end as SIGTERM does, and returns at once (the command shutdown); nil refuses the command.
	Stop func()
	// TransactionLifetime is how long a transaction may be open before it is aborted; 0 means 60 s. Backends have limits of their own.
	TransactionLifetime time.Duration
}

// Router serves clients. Make one with New.
type Router struct {
	cfg      Config
	log      zerolog.Logger
	commands map[string]*Command
	// points are the commands that the hot path answers.
	points  []pointKind
	started time.Time
	// processID is hello's topologyVersion.processId.
	processID bson.ObjectID

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*Conn]struct{}
	closing   bool
	wg        sync.WaitGroup
	// sweepDone is closed when the sweeper of idle cursors, which stopSweep ends, has ended.
	stopSweep context.CancelFunc
	sweepDone chan struct{}
	// drain is closed when the router begins to shut down: hello says so, and that it lasts until drainEnds (set before).
	drain     chan struct{}
	drainEnds time.Time

	stats   stats
	params  params
	cursors cursors
	ahead   aheadBudget
	// life ends when Shutdown may wait no longer.
	life    context.Context
	endLife context.CancelFunc
	// sessionNews counts the news of sessions that are under way to backends.
	sessionNews atomic.Int64
	// special answers aggregates whose first stage is not about documents ($collStats, $currentOp, …).
	special map[string]aggregateFunc

	// derived, retries and histories are what this process remembers of clients' sessions (session_*.go).
	derived derivedSessions
	retries retryMemory
	// times are those for shard keys that a server would replace by its own (write_emptyts.go).
	times     timestamps
	histories histories
	// asker asks the backends about them, unanswered counts what could not be asked.
	asker      *records.Asker
	unanswered unansweredQuestions
	crowded    crowdedBackends
	// txns are the clients' transactions (txn*.go).
	txns transactions
	// views remembers what the databases' views read.
	views viewCache
}

// ErrClosed is what Serve returns after Shutdown.
var ErrClosed = errors.New("router: closed")

// New makes a router that serves nobody yet.
func New(cfg Config) *Router {
	r := &Router{
		cfg:       cfg,
		log:       cfg.Log,
		started:   time.Now(),
		processID: bson.NewObjectID(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*Conn]struct{}{},
		drain:     make(chan struct{}),
	}
	r.life, r.endLife = context.WithCancel(context.Background())
	r.asker = records.NewAsker(r.life, func(f func()) { r.wg.Go(f) })
	r.special = map[string]aggregateFunc{
		"$collStats": r.aggregateStats, "$indexStats": r.aggregateStats, "$planCacheStats": r.aggregateStats,
		"$currentOp": r.aggregateCurrentOp, "$shardedDataDistribution": r.aggregateDistribution,
		"$listLocalSessions": r.aggregateSessions, "$listSessions": r.aggregateSessions,
	}
	r.commands = joinTables(r)
	r.points = pointKinds(r)
	ctx, stop := context.WithCancel(context.Background())
	r.stopSweep, r.sweepDone = stop, make(chan struct{})
	go func() {
		defer close(r.sweepDone)
		var gone sync.WaitGroup
		gone.Go(func() { r.watchClients(ctx) })
		gone.Go(func() { r.renewSessions(ctx) })
		r.cursors.sweep(ctx)
		gone.Wait()
	}()
	return r
}

// Serve accepts clients on l until Shutdown; it then returns ErrClosed. It closes l.
func (r *Router) Serve(ctx context.Context, l net.Listener) error {
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		_ = l.Close()
		return ErrClosed
	}
	r.listeners[l] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.listeners, l)
		r.mu.Unlock()
		_ = l.Close()
	}()
	return r.acceptLoop(ctx, l)
}

// lingerLimit is how long Shutdown leaves idle connections open, so that monitors hear of it before requests meet closed ones.
const lingerLimit = time.Second

// lastAborts is how long Shutdown goes on aborting the transactions of the clients it has cut.
const lastAborts = time.Second

// Shutdown stops listening, tells monitors through hello (91), serves the open connections a moment longer, lets requests in flight
// end until ctx does, and then cuts what is left. It ends the cursors and returns when no goroutine of the router is left. A router that
// served nobody must be shut down too.
func (r *Router) Shutdown(ctx context.Context) {
	ends, limited := ctx.Deadline()
	if !limited {
		ends = time.Now().Add(lingerLimit)
	}
	r.mu.Lock()
	for l := range r.listeners {
		_ = l.Close() // before monitors hear of it, so that no client connects anew who knows better
	}
	if !r.closing {
		r.closing = true
		r.drainEnds = ends
		close(r.drain)
	}
	r.mu.Unlock()
	r.waitConns(ctx, min(lingerLimit, time.Until(ends)/4))
	r.stopSweep()
	<-r.sweepDone
	late := time.AfterFunc(time.Until(ends)+lastAborts, r.endLife)
	defer late.Stop()
	r.wg.Wait()
	r.endLife()
}

// waitConns waits for the connections' goroutines; it closes what is idle after linger and cuts what is left when ctx ends.
func (r *Router) waitConns(ctx context.Context, linger time.Duration) {
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		select {
		case <-done:
			return
		case <-idle.C:
			r.eachConn((*Conn).stopWhenIdle)
		case <-ctx.Done():
			r.endLife()
			r.eachConn((*Conn).cut)
			<-done
			return
		}
	}
}

// eachConn calls f for every open connection.
func (r *Router) eachConn(f func(*Conn)) {
	r.mu.Lock()
	conns := make([]*Conn, 0, len(r.conns))
	for c := range r.conns {
		conns = append(conns, c)
	}
	r.mu.Unlock()
	for _, c := range conns {
		f(c)
	}
}
