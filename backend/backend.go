package backend

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"
)

// Kind is what a backend is.
type Kind int32

// The kinds.
const (
	// KindUnknown: no server of it has answered yet.
	KindUnknown Kind = iota
	// KindReplicaSet has sessions, retryable writes, transactions and change streams.
	KindReplicaSet
	// KindStandalone has none of them.
	KindStandalone
)

// String names the kind for logs.
func (k Kind) String() string {
	switch k {
	case KindReplicaSet:
		return "replica set"
	case KindStandalone:
		return "standalone"
	}
	return "unknown"
}

// Backend is one replica set or standalone. All methods are safe for concurrent use.
type Backend struct {
	// Static after Open.
	cfg       Config
	opts      *options.ClientOptions
	handshake *handshaker
	topo      *topology.Topology
	client    *mongo.Client
	dialer    net.Dialer

	// What is known of the servers, remembered while they are down.
	facts atomic.Pointer[facts]
	// barred says why the backend must not be used; nil where it may.
	barred atomic.Pointer[bar]

	// tick is a clock of whole seconds since Open, advanced by watch; pools stamp connections with it.
	tick atomic.Int64
	// selecting counts the requests waiting for a server to be found.
	selecting atomic.Int64
	stats     counters
	clock     clusterClock
	identity  identity

	poolsMu sync.Mutex                                // held to add or remove a pool
	pools   atomic.Pointer[map[address.Address]*pool] // copied on change
	// retired has the pools of hosts that have left the set while their connections were in use. Guarded by poolsMu.
	retired []*pool

	life     context.Context
	end      context.CancelFunc
	watching sync.WaitGroup
	tasks    tasks
	closing  atomic.Bool
}

// Open prepares the backend and starts to look for its servers. It does not wait for them: a backend
// may be down when the proxy starts, and recovers by itself. An error means that the configuration is wrong.
func Open(ctx context.Context, cfg Config) (*Backend, error) {
	opts, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	b := &Backend{cfg: cfg, opts: opts}
	b.dialer.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 6}
	b.pools.Store(&map[address.Address]*pool{})
	b.facts.Store(&facts{host: seedString(opts)})
	if b.handshake, err = newHandshaker(opts); err != nil {
		return nil, fmt.Errorf("backend %s: %w", cfg.ID, err)
	}
	opts.SetServerMonitor(&event.ServerMonitor{ServerDescriptionChanged: b.hostChanged})
	if err := b.discover(); err != nil {
		return nil, fmt.Errorf("backend %s: %w", cfg.ID, err)
	}
	b.life, b.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := b.watch(); err != nil {
		b.end()
		_ = b.client.Disconnect(ctx)
		return nil, fmt.Errorf("backend %s: %w", cfg.ID, err)
	}
	return b, nil
}

// discover starts the topology and the driver's client on top of it, which share one set of monitors.
func (b *Backend) discover() error {
	cfg, err := topology.NewConfig(b.opts, nil)
	if err != nil {
		return err
	}
	if b.topo, err = topology.New(cfg); err != nil {
		return err
	}
	shared := *b.opts
	if err := xoptions.SetInternalClientOptions(&shared, "deployment", deployment{b.topo, b}); err != nil {
		return err
	}
	b.client, err = mongo.Connect(&shared) // connects the topology
	return err
}

// Close ends the backend: waiting requests fail, requests in flight lose their connections, and all
// goroutines have ended when it returns. ctx bounds the wait for the driver's client.
func (b *Backend) Close(ctx context.Context) error {
	if !b.closing.CompareAndSwap(false, true) {
		return nil
	}
	b.end()
	b.poolsMu.Lock()
	for _, p := range *b.pools.Load() {
		p.close()
	}
	for _, p := range b.retired {
		p.close()
	}
	b.poolsMu.Unlock()
	err := b.client.Disconnect(ctx)
	b.watching.Wait()
	b.tasks.close()
	return err
}

// ID is the operator's name for the backend.
func (b *Backend) ID() string { return b.cfg.ID }

// URI is the connection string it was opened with. It may hold credentials: show HostString instead.
func (b *Backend) URI() string { return b.cfg.URI }

// SelectionTimeout is how long a request waits for a usable server.
func (b *Backend) SelectionTimeout() time.Duration { return b.cfg.SelectionTimeout }

// Kind tells replica set from standalone; KindUnknown until a server has answered for the first time.
func (b *Backend) Kind() Kind { return b.facts.Load().kind }

// HostString is the backend as config.shards shows it: "rs/h1:p,h2:p" or "h:p". Before a server has
// answered it is made of the connection string's hosts.
func (b *Backend) HostString() string { return b.facts.Load().host }

// MaxWireVersion is the lowest maxWireVersion of its servers, 0 until one has answered.
func (b *Backend) MaxWireVersion() int32 { return b.facts.Load().maxWire }

// SetName is the replica set's name; empty for a standalone, and until a server has answered.
func (b *Backend) SetName() string { return b.facts.Load().set }

// WireVersions are the lowest and the highest maxWireVersion of its servers, and a server that has the lowest; zero until one
// has answered.
func (b *Backend) WireVersions() (lowest, highest int32, oldest string) {
	f := b.facts.Load()
	return f.maxWire, f.newestWire, f.oldest
}

// Client returns the official driver's client for this backend, for what is not a client's command:
// change streams, the catalog, a reshape's catching up. It shares the backend's discovery and ends with Close.
func (b *Backend) Client() *mongo.Client { return b.client }

// kindTimeout bounds the wait for Kind once a server has been found; what a server said is noted a moment later.
const kindTimeout = time.Second

// Ready waits until a server that takes writes has been found, at most the selection timeout. Kind is known then, unless the
// server is neither of the kinds.
func (b *Backend) Ready(ctx context.Context) error {
	if _, _, err := b.selectServer(ctx, nil, time.Time{}, time.Time{}); err != nil {
		b.learn(b.topo.Description()) // servers that the driver does not speak to have told their version
		return err
	}
	for until := time.Now().Add(kindTimeout); b.Kind() == KindUnknown && time.Now().Before(until); {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.life.Done():
			return nil
		}
	}
	return nil
}

// poolFor returns the pool of a host, made on first use; nil when the backend is closed.
func (b *Backend) poolFor(addr address.Address) *pool {
	if p := (*b.pools.Load())[addr]; p != nil {
		return p
	}
	b.poolsMu.Lock()
	defer b.poolsMu.Unlock()
	if b.closing.Load() {
		return nil
	}
	old := *b.pools.Load()
	if p := old[addr]; p != nil {
		return p
	}
	next := make(map[address.Address]*pool, len(old)+1)
	for a, p := range old {
		next[a] = p
	}
	p := newPool(b, addr)
	next[addr] = p
	b.pools.Store(&next)
	return p
}

// forget drops the pool of a host that left the replica set; its connections in use end when they are returned.
func (b *Backend) forget(addr address.Address) {
	b.poolsMu.Lock()
	defer b.poolsMu.Unlock()
	old := *b.pools.Load()
	p := old[addr]
	if p == nil {
		return
	}
	next := make(map[address.Address]*pool, len(old))
	for a, q := range old {
		if a != addr {
			next[a] = q
		}
	}
	b.pools.Store(&next)
	p.retire()
	b.retired = append(slices.DeleteFunc(b.retired, (*pool).empty), p)
}
