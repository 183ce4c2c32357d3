package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/admin"
	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
	"github.com/shardway/shardway/wire"
)

const (
	// catalogPause is between two looks at a catalog backend that is not there yet.
	catalogPause = time.Second
	// closeLimit is for closing the connections to the backends.
	closeLimit = 5 * time.Second
)

// serve is the daemon's life, from the first line of its log to the last. It returns nil when ctx ended it.
func serve(ctx context.Context, cfg config.Config, w io.Writer) error {
	recent := &router.RecentLog{}
	log := newLog(cfg.Log, w, recent)
	log.Info().Str("version", version()).Int("pid", os.Getpid()).Int("backends", len(cfg.Backends)).Msg("starting")
	err := serveUntil(ctx, cfg, log, recent)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // told to end while starting
	}
	log.Info().Err(err).Msg("ended")
	return err
}

func serveUntil(ctx context.Context, cfg config.Config, log zerolog.Logger, recent *router.RecentLog) error {
	ctx, told := context.WithCancel(ctx) // by a signal, or by the command shutdown
	defer told()
	// The fleet.
	backends, err := openBackends(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_ = closeBackends(closing, backends)
	}()

	// What the catalog knows of it, and what it is to know.
	catalogID, err := catalogBackend(cfg)
	if err != nil {
		return err
	}
	met := newAdmission(catalogID, log)
	store, err := openCatalog(ctx, backends.Get(catalogID), met, log)
	if err != nil {
		return err
	}
	late, err := joinFleet(ctx, cfg, store, backends, catalogID, met, log)
	if err != nil {
		return err
	}
	table := partition.NewTable()
	table.OnOpen(func(g *partition.Gate, closed time.Duration) {
		log.Debug().Str("ns", g.NS()).Str("backend", g.Home().Backend).Dur("closed", closed).Msg("gate opened")
	})
	store.OnChange(table.Apply)

	// What goes on beside requests; it ends after the last of them.
	var beside sync.WaitGroup
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer beside.Wait()
	defer end()
	beside.Go(func() { store.Run(background) })
	beside.Go(func() { store.Announce(background, serverName(cfg.Listen), router.AnnouncedVersion(backends)) })
	beside.Go(func() { giveBack(background) })

	// What changes maps.
	proxy := serverName(cfg.Listen)
	changes := splitter.New(splitter.Config{
		Server:            proxy,
		Backends:          backends,
		Catalog:           store,
		Table:             table,
		Log:               log,
		MaxPartitionBytes: int64(cfg.MaxPartitionBytes),
		MonitorEvery:      cfg.Reshape.CheckInterval,
		PauseBudget:       cfg.Reshape.BurnAfter,
		Backoff:           cfg.Reshape.BackoffMin,
		StandalonePause:   cfg.Reshape.StandalonePause,
		SweepEvery:        cfg.Reshape.SweepInterval,

		CopyBytesPerSecond: int64(cfg.Reshape.CopyBytesPerSecond),
		RetryWindow:        cfg.Reshape.RetryWindow,
		Lease:              cfg.Reshape.Lease,
		Renew:              cfg.Reshape.LeaseRenew,
		Margin:             cfg.Reshape.LeaseMargin,
	})
	defer changes.Close()

	// This process's right to use each backend.
	var served atomic.Pointer[router.Router] // made below; nothing is open before
	instances := member.New(member.Config{
		Proxy:    proxy,
		Backends: backends,
		Table:    table,
		Log:      log,
		Refresh:  store.Refresh,
		Verify:   func(ctx context.Context, b *backend.Backend) error { return member.Verify(ctx, store, b) },
		Burn:     changes.Burn,
		Lost: func(ctx context.Context, backendID string) {
			if r := served.Load(); r != nil {
				r.LeaseLost(ctx, backendID)
			}
		},
		Abort: func(homes []partition.Home) {
			if r := served.Load(); r != nil {
				n := r.AbortTransactionsOn(homes, "its partition is being replaced, and that has waited for it for too long")
				log.Info().Int("transactions", n).Msg("transactions that hold up a change of a map are aborted")
			}
		},
		Undecided: func(backendID string) bool {
			r := served.Load()
			return r != nil && r.TransactionsUndecided(backendID)
		},
		Overdue: func(homes []partition.Home) {
			if r := served.Load(); r != nil {
				r.DrainOverdue(homes)
			}
		},
		Lease:      cfg.Reshape.Lease,
		Renew:      cfg.Reshape.LeaseRenew,
		Margin:     cfg.Reshape.LeaseMargin,
		Patience:   cfg.Reshape.GateWait,
		DrainLimit: cfg.Reshape.DrainLimit,
	})
	roster := &router.Roster{
		Backends: backends,
		Catalog:  store,
		Table:    table,
		Member:   instances,
		Log:      log,

		CatalogBackend: catalogID,
		Open: func(ctx context.Context, id, uri string) (*backend.Backend, error) {
			return openBackend(ctx, cfg, id, uri, log)
		},
		Admit: met.admit,
	}
	for _, b := range backends.All() {
		roster.Keep(background, &beside, b)
	}
	beside.Go(func() { roster.Follow(background, &beside) })
	add := roster.Adder(background, &beside)
	for _, id := range late {
		beside.Go(func() { joinLater(background, id, cfg.Backends[id], store, add, log) })
	}
	awaitLeases(ctx, instances, backends, met, cmp.Or(cfg.Reshape.Lease, member.DefaultLease), log)

	if err := declare(ctx, cfg, store, table, changes, log); err != nil {
		return err
	}
	beside.Go(func() { changes.Run(background) })

	// Clients.
	requests := router.New(router.Config{
		Backends:       backends,
		Catalog:        store,
		Table:          table,
		Member:         instances,
		CatalogBackend: catalogID,
		Reshaper:       changes,
		Server:         proxy,
		Log:            log,
		SlowRequest:    cfg.Log.SlowRequest,
		RecentLog:      recent,
		AddBackend:     add,
		RemoveBackend:  roster.Remove,
		RetryWindow:    cfg.Reshape.RetryWindow,
		Stop:           told,

		TransactionLifetime: cfg.Transactions.Lifetime,
	})
	served.Store(requests)
	if err := serveAdmin(background, &beside, cfg.Admin, log); err != nil {
		return err
	}
	l, err := listen(cfg)
	if err != nil {
		return err
	}
	log.Info().Str("address", l.Addr().String()).Bool("tls", cfg.TLS.CertFile != "").Str("catalog", catalogID).Msg("listening")
	return serveClients(ctx, requests, l, cfg.DrainTimeout, log)
}

// serveAdmin answers operators until ctx ends, where that is configured.
func serveAdmin(ctx context.Context, beside *sync.WaitGroup, cfg config.Admin, log zerolog.Logger) error {
	if cfg.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	log.Info().Str("address", l.Addr().String()).Msg("answering operators")
	beside.Go(func() {
		if err := admin.Serve(ctx, l); err != nil {
			log.Error().Err(err).Msg("operators are not answered any more")
		}
	})
	return nil
}

// serveClients serves until ctx ends or the listener fails, and then lets requests in flight end.
func serveClients(ctx context.Context, requests *router.Router, l net.Listener, drain time.Duration, log zerolog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- requests.Serve(context.WithoutCancel(ctx), l) }()
	var failure error
	select {
	case <-ctx.Done():
		log.Info().Dur("limit", drain).Msg("draining")
	case failure = <-served:
		served <- failure
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	requests.Shutdown(draining)
	if err := <-served; !errors.Is(err, router.ErrClosed) {
		return err
	}
	return nil
}

// openCatalog waits for the catalog's backend, since nothing can be served without maps, and says
// what it waits for. One that must not be used ends the start.
func openCatalog(ctx context.Context, b *backend.Backend, met *admissions, log zerolog.Logger) (*catalog.Store, error) {
	for {
		err := b.Ready(ctx)
		if err == nil {
			err = met.admit(ctx, b)
		}
		if err == nil {
			if err := holdsCatalog(ctx, b); err != nil {
				return nil, err
			}
			return catalog.Open(ctx, b.Client(), log)
		}
		if err := refusal(b, err); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		log.Warn().Err(err).Str("backend", b.ID()).Msg("waiting for the catalog's backend")
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(catalogPause):
		}
	}
}

// holdsCatalog refuses to begin a catalog on a backend that belongs to a fleet, whose catalog must be
// elsewhere then, or was lost.
func holdsCatalog(ctx context.Context, b *backend.Backend) error {
	cluster, err := catalog.ReadClusterID(ctx, b.Client())
	if err != nil || !cluster.IsZero() {
		return err
	}
	id, err := member.ReadIdentity(ctx, b)
	if err != nil || id.Fleet.IsZero() {
		return err
	}
	return wire.Errorf(wire.OperationFailed, "backend '%s' (%s) belongs to the fleet with the clusterId %s, and there is no catalog on it: name the backend that holds that fleet's catalog (--catalog)",
		b.ID(), b.HostString(), id.Fleet.Hex())
}

// joinFleet brings configuration and catalog together: what is configured is registered, and what an
// earlier addShard registered is opened. Nothing is registered before every check of every backend
// that answers has passed. A backend that does not answer is looked at when it does: one that the
// catalog knows before it is used, others are returned, to be added then.
func joinFleet(ctx context.Context, cfg config.Config, store *catalog.Store, backends *backend.Set, catalogID string, met *admissions, log zerolog.Logger) (late []string, err error) {
	if err := openKnown(ctx, cfg, store, backends, log); err != nil {
		return nil, err
	}
	var up, fresh, aliases []*backend.Backend
	for _, b := range backends.All() {
		known := store.Snapshot().Backends[b.ID()]
		err := b.Ready(ctx)
		if err == nil {
			err = met.admit(ctx, b)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := refusal(b, err); err != nil {
				return nil, err
			}
			log.Warn().Err(err).Str("backend", b.ID()).Msg("not to be reached; requests that need it fail until it is")
		}
		switch {
		case known != nil && met.has(b) && cfg.Backends[b.ID()] == "" && isAlias(ctx, store, b, known):
			aliases = append(aliases, b)
		case met.has(b):
			up = append(up, b)
			if known == nil {
				fresh = append(fresh, b)
			}
		case known == nil:
			late = append(late, b.ID())
		default:
			log.Warn().Str("backend", b.ID()).Msg("has not been seen yet: databases on it that the catalog does not know are served after a later start")
		}
	}
	checked, err := member.Examine(ctx, store, up...)
	if err != nil {
		return nil, err
	}
	found, err := router.FindDatabases(ctx, store, up...)
	if err != nil {
		return nil, err
	}
	if len(found.Strays) > 0 {
		log.Warn().Strs("collections", found.Strays).Msg("collections of databases that live on other backends are left alone; nobody is served what is in them")
	}
	for _, b := range fresh {
		if err := router.ShareDefaults(ctx, backends.Get(catalogID), b); err != nil {
			return nil, err
		}
	}
	if err := checked.Register(ctx); err != nil {
		return nil, err
	}
	for _, id := range late {
		if b := backends.Remove(id); b != nil {
			_ = b.Close(ctx)
		}
	}
	for _, b := range aliases {
		log.Warn().Str("backend", b.ID()).Str("host", b.HostString()).Msg("an older version has registered a server under a second id; nothing is on that id, and it leaves the catalog")
		backends.Remove(b.ID())
		_ = b.Close(ctx)
		if err := store.RemoveBackend(ctx, b.ID()); err != nil {
			return nil, err
		}
	}
	return late, found.Register(ctx)
}

// isAlias reports whether a backend that the catalog knows is a second id of a server, as an older
// version let it be registered, with nothing placed on that id.
func isAlias(ctx context.Context, store *catalog.Store, b *backend.Backend, known *catalog.Backend) bool {
	if !known.Token.IsZero() || b.Kind() == backend.KindUnknown || store.Snapshot().Holds(b.ID()) {
		return false
	}
	_, err := member.Examine(ctx, store, b)
	var refusal *wire.Error
	return errors.As(err, &refusal) && refusal.Code == wire.IllegalOperation
}

// openKnown opens the backends that the catalog knows and the configuration does not name.
func openKnown(ctx context.Context, cfg config.Config, store *catalog.Store, backends *backend.Set, log zerolog.Logger) error {
	for id, known := range store.Snapshot().Backends {
		if backends.Get(id) != nil {
			continue
		}
		b, err := openBackend(ctx, cfg, id, known.URI, log)
		if err == nil {
			err = backends.Add(b)
		}
		if err != nil {
			return fmt.Errorf("a backend that the catalog knows: %w", err)
		}
		log.Info().Str("backend", id).Str("host", known.Host).Msg("is in the catalog and not in the configuration")
	}
	return nil
}

// lateEvery is between two tries to add a backend that did not answer when this process started.
const lateEvery = 5 * time.Second

// joinLater adds a backend of the configuration that the catalog does not know, when it answers. It
// goes on until the backend is in the catalog or ctx ends.
func joinLater(ctx context.Context, id, uri string, store *catalog.Store, add func(ctx context.Context, id, uri string) error, log zerolog.Logger) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lateEvery):
		}
		if store.Snapshot().Backends[id] != nil {
			return // another proxy has added it
		}
		err := add(ctx, id, uri)
		if err == nil {
			log.Info().Str("backend", id).Msg("has joined the fleet")
			return
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			log.Error().Err(err).Str("backend", id).Msg("has not joined the fleet yet; it is tried again")
		}
	}
}

// awaitLeases waits a while until every backend that is up has been joined: requests that come earlier
// would be answered with an error.
func awaitLeases(ctx context.Context, instances *member.Member, backends *backend.Set, met *admissions, limit time.Duration, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, b := range backends.All() {
		if !met.has(b) {
			continue
		}
		if err := instances.WaitJoined(ctx, b.ID()); err != nil {
			log.Warn().Err(err).Str("backend", b.ID()).Msg("not joined yet; requests that need it fail until it is")
		}
	}
}

// declare shards the collections of the configuration that are not sharded yet. One that is sharded by
// another key is an error: what the file says is not what is.
func declare(ctx context.Context, cfg config.Config, store *catalog.Store, table *partition.Table, changes *splitter.Splitter, log zerolog.Logger) error {
	for ns, declared := range cfg.Collections {
		raw, err := bson.Marshal(bson.D{{Key: declared.Key, Value: "hashed"}})
		if err != nil {
			return err
		}
		key, err := shardkey.ParsePattern(raw)
		if err != nil {
			return fmt.Errorf("collections.%s: %w", ns, err)
		}
		if err := declareOne(ctx, ns, declared, key, store, table, changes); err != nil {
			return fmt.Errorf("collections.%s: %w", ns, err)
		}
		log.Info().Str("ns", ns).Str("key", declared.Key).Msg("declared")
	}
	return nil
}

func declareOne(ctx context.Context, ns string, declared config.Collection, key shardkey.Pattern, store *catalog.Store, table *partition.Table, changes *splitter.Splitter) error {
	db, _ := catalog.SplitNS(ns)
	if table.View().Catalog.Database(db) == nil {
		primary, err := changes.LeastLoaded(ctx)
		if err != nil {
			return err
		}
		if err := store.CreateDatabase(ctx, db, primary); err != nil {
			return err
		}
	}
	partitions := declared.Partitions
	if table.View().Collection(ns).Sharded() {
		partitions = 0 // how many it began with is history
	}
	err := changes.ShardCollection(ctx, ns, key, partitions)
	var refused *wire.Error
	if partitions > 0 && errors.As(err, &refused) && refused.Code == wire.InvalidOptions {
		err = changes.ShardCollection(ctx, ns, key, 0) // it is not empty, so it begins with one
	}
	if err != nil {
		return err
	}
	settings := store.Snapshot().Collections[ns]
	if declared.MaxPartitionBytes == 0 || settings.MaxPartitionBytes == int64(declared.MaxPartitionBytes) {
		return nil
	}
	settings.NS, settings.MaxPartitionBytes = ns, int64(declared.MaxPartitionBytes)
	return store.SetCollection(ctx, settings)
}

// serverName names this proxy to clients and in histories: its host and the port it listens on.
func serverName(listen string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	_, port, _ := net.SplitHostPort(listen)
	return net.JoinHostPort(host, port)
}
