package router

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// joinLimit is how long addShard waits for a backend to be reached and joined.
const joinLimit = 15 * time.Second

// Roster lets backends join and leave the fleet while it is in use. Add and Remove are safe for concurrent use.
type Roster struct {
	Backends *backend.Set
	Catalog  *catalog.Store
	Table    *partition.Table
	Member   *member.Member
	// CatalogBackend is the id of the catalog's backend, whose default concerns those that join get.
	CatalogBackend string
	// Open opens a backend; it need not wait for it.
	Open func(ctx context.Context, id, uri string) (*backend.Backend, error)
	// Log is told of a backend that refuses what must be asked of it; the zero Logger is silent.
	Log zerolog.Logger
	// Admit says whether a backend that can be reached may be used: whether its version is supported and this process may do
	// there what it has to. nil admits every one.
	Admit func(ctx context.Context, b *backend.Backend) error

	mu sync.Mutex // held while a backend joins or leaves
	// aliases are ids in the catalog under which an older version has registered a server a second
	// time, with the connection strings. They are not opened.
	aliases sync.Map
	keep    sync.Map // id to what ends the registration and waits for that
}

// Keep registers this process at a backend and keeps it so until ctx ends or the backend is removed.
func (o *Roster) Keep(ctx context.Context, wg *sync.WaitGroup, b *backend.Backend) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	o.keep.Store(b.ID(), func() { cancel(); <-done })
	var beating sync.WaitGroup
	beating.Go(func() { o.beat(ctx, b) })
	wg.Go(func() {
		defer close(done)
		defer beating.Wait()
		defer cancel()
		if o.awaitAdmission(ctx, b) {
			o.Member.Keep(ctx, b)
		}
	})
	wg.Go(func() { o.probe(ctx, b) })
}

// probeEvery is how often a backend that does not answer is asked again whether it tells what
// sessions did.
const probeEvery = 10 * time.Second

// probe asks a backend, until it has an answer or ctx ends, whether it tells what sessions did on
// it. One that refuses serves all the same: nothing on it was replaced without that answer, unless
// what it grants this proxy has changed since, and nothing will be. The log says so, before a
// split, a drop or a retried write does.
func (o *Roster) probe(ctx context.Context, b *backend.Backend) {
	for {
		err := b.Ready(ctx)
		if err == nil && b.Kind() == backend.KindReplicaSet {
			err = records.Probe(ctx, b)
		}
		if records.Lasting(err) {
			o.Log.Error().Err(err).Str("backend", b.ID()).Msg("the backend refuses to tell which retryable writes it has executed: its partitions cannot be split, moved, dropped or renamed, " +
				"and retryable writes that an earlier change concerns are refused; the user of its connection string needs to read config.transactions and local.oplog.rs (role clusterMonitor)")
		}
		if err == nil || records.Lasting(err) {
			return
		}
		select {
		case <-time.After(probeEvery):
		case <-ctx.Done():
			return
		}
	}
}

// admitPause is between two looks at a backend that is not admitted.
const admitPause = time.Second

// awaitAdmission returns true when a backend is admitted, false when ctx has ended. A backend that was down when the process
// started is looked at when it comes; until it is admitted there is no lease for it, so that nothing is sent to it.
func (o *Roster) awaitAdmission(ctx context.Context, b *backend.Backend) bool {
	for o.Admit != nil {
		err := b.Ready(ctx)
		if err == nil {
			err = o.Admit(ctx, b)
		}
		if err == nil {
			break
		}
		select {
		case <-time.After(admitPause):
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// beatEvery is how often a backend's pulse is counted: a copy of it that is older than that is
// noticed when it is put into its place.
const beatEvery = time.Minute

// beat counts a backend's pulse while this process is registered there, until ctx ends.
func (o *Roster) beat(ctx context.Context, b *backend.Backend) {
	if o.Member.WaitJoined(ctx, b.ID()) != nil {
		return
	}
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		if o.Member.Lease(b.ID()).Valid() {
			bctx, cancel := context.WithTimeout(ctx, joinLimit)
			_ = member.Beat(bctx, b, o.Catalog) // one that is left out makes the notice coarser
			cancel()
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Adder returns what Config.AddBackend wants; what it starts ends with life and is counted in wg.
func (o *Roster) Adder(life context.Context, wg *sync.WaitGroup) func(ctx context.Context, id, uri string) error {
	return func(ctx context.Context, id, uri string) error { return o.add(ctx, life, wg, id, uri) }
}

func (o *Roster) add(ctx, life context.Context, wg *sync.WaitGroup, id, uri string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	b, err := o.Open(life, id, uri)
	if err != nil {
		return wire.Errorf(wire.OperationFailed, "shard '%s' cannot be opened: its connection string is not one that drivers take", id)
	}
	joined := false
	defer func() {
		if !joined {
			_ = b.Close(context.WithoutCancel(ctx))
		}
	}()
	if err := b.Ready(ctx); err != nil {
		return wire.Errorf(wire.OperationFailed, "shard '%s' cannot be reached, or is not the replica set that it is said to be", id)
	}
	if o.Admit != nil {
		if err := o.Admit(ctx, b); err != nil {
			return err
		}
	}
	if b.Kind() == backend.KindReplicaSet {
		switch err := records.Probe(ctx, b); {
		case records.Lasting(err):
			return records.Unanswerable(id, err)
		case err != nil:
			return wire.Errorf(wire.OperationFailed, "whether shard '%s' tells which retryable writes it has executed cannot be found out: %v", id, err)
		}
	}
	if err := o.Catalog.Refresh(ctx); err != nil {
		return err
	}
	checked, err := member.Examine(ctx, o.Catalog, b)
	if err != nil {
		return err
	}
	if err := o.isNew(ctx, b); err != nil {
		return err
	}
	found, err := FindDatabases(ctx, o.Catalog, b)
	if err != nil {
		return err
	}
	if len(found.Strays) > 0 {
		return wire.Errorf(wire.OperationFailed, "shard '%s' has collections of databases that live on other shards: %s; drop or rename them there first", id, strings.Join(found.Strays, ", "))
	}
	if err := ShareDefaults(ctx, o.Backends.Get(o.CatalogBackend), b); err != nil {
		return err
	}
	if err := checked.Register(ctx); err != nil {
		return err
	}
	if err := o.Backends.Add(b); err != nil {
		return wire.Errorf(wire.IllegalOperation, "shard '%s' exists already", id)
	}
	joined = true
	o.Keep(life, wg, b)
	// Requests for what is adopted need the lease; one that is late costs them a retry and is no reason to fail.
	_ = o.Member.WaitJoined(ctx, id)
	return o.registerDatabases(context.WithoutCancel(ctx), b, found)
}

// Remove takes a backend out of the catalog and out of the set, and closes it. Nothing may live on it any more.
func (o *Roster) Remove(ctx context.Context, id string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.Catalog.RemoveBackend(ctx, id); err != nil {
		return err
	}
	if b := o.Backends.Get(id); b != nil {
		// Where it fails, another fleet that takes the backend is told what to do.
		_ = member.Disown(ctx, b, o.Table.View().Catalog)
	}
	o.close(ctx, id)
	return nil
}

// Follow opens and joins backends that other proxies add to the fleet, and closes those that they remove, until life ends. What it starts is counted in wg.
func (o *Roster) Follow(life context.Context, wg *sync.WaitGroup) {
	changed := make(chan struct{}, 1)
	o.Catalog.OnChange(func(s *catalog.Snapshot) {
		if o.follows(s) {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	for {
		select {
		case <-life.Done():
			return
		case <-changed:
			o.catchUp(life, wg)
		}
	}
}

// follows reports whether the set has the backends of a snapshot and no others.
func (o *Roster) follows(s *catalog.Snapshot) bool {
	all := o.Backends.All()
	for _, b := range all {
		if s.Backends[b.ID()] == nil {
			return false
		}
	}
	n := len(all)
	for id, known := range s.Backends {
		if o.isAlias(known) && o.Backends.Get(id) == nil {
			n++
		}
	}
	return n == len(s.Backends)
}

// isAlias reports whether a backend in the catalog was found to be another one under a second id.
func (o *Roster) isAlias(known *catalog.Backend) bool {
	uri, ok := o.aliases.Load(known.ID)
	return ok && uri == known.URI && known.Token.IsZero()
}

// lookLimit bounds the look at a backend that nobody has looked at when it was registered.
const lookLimit = 3 * time.Second

// findAlias looks whether a backend that an older version has registered is another one under a
// second id. One that does not answer is looked at before it is used.
func (o *Roster) findAlias(ctx context.Context, b *backend.Backend, known *catalog.Backend) bool {
	if !known.Token.IsZero() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if b.Ready(ctx) != nil || o.Admit != nil && o.Admit(ctx, b) != nil {
		return false
	}
	_, err := member.Examine(ctx, o.Catalog, b)
	var refusal *wire.Error
	if !errors.As(err, &refusal) || refusal.Code != wire.IllegalOperation {
		return false
	}
	o.aliases.Store(known.ID, known.URI)
	return true
}

func (o *Roster) catchUp(life context.Context, wg *sync.WaitGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.Catalog.Snapshot()
	for id, known := range s.Backends {
		if o.Backends.Get(id) != nil || o.isAlias(known) {
			continue
		}
		b, err := o.Open(life, id, known.URI)
		if err != nil {
			continue // said by Open; the next change of the catalog tries again
		}
		if o.findAlias(life, b, known) || o.Backends.Add(b) != nil {
			_ = b.Close(life)
			continue
		}
		o.Keep(life, wg, b)
	}
	for _, b := range o.Backends.All() {
		if s.Backends[b.ID()] == nil {
			o.close(life, b.ID())
		}
	}
}

// close takes a backend out of the set, ends its registration and closes it.
func (o *Roster) close(ctx context.Context, id string) {
	b := o.Backends.Remove(id)
	if stop, ok := o.keep.LoadAndDelete(id); ok {
		stop.(func())()
	}
	if b == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = b.Close(closing)
}

// isNew refuses a server that is in the fleet under another id, whatever address it was given by.
// Its mark would tell; but a member of the fleet may not have been marked yet.
func (o *Roster) isNew(ctx context.Context, b *backend.Backend) error {
	for _, other := range o.Backends.All() {
		same, err := member.SameServer(ctx, b, other)
		if err != nil {
			return err
		}
		if same {
			return wire.Errorf(wire.IllegalOperation, "the new shard (%s) is the shard '%s' (%s) already", b.HostString(), other.ID(), other.HostString())
		}
	}
	return nil
}

// hostsOf lists the hosts of "rs/h1:p,h2:p" or "h:p".
func hostsOf(host string) []string {
	if _, list, ok := strings.Cut(host, "/"); ok {
		host = list
	}
	return slices.DeleteFunc(strings.Split(strings.ToLower(host), ","), func(h string) bool { return h == "" })
}

// registerDatabases registers databases found on a new backend.
func (o *Roster) registerDatabases(ctx context.Context, b *backend.Backend, found *Adoption) error {
	errs := []error{found.Register(ctx)}
	for db := range found.primaries {
		if d := o.Catalog.Snapshot().Databases[db]; d == nil || d.Primary != b.ID() {
			errs = append(errs, wire.Errorf(wire.OperationFailed, "database '%s' was made on another shard at this moment; what '%s' has of it is not served", db, b.ID()))
		}
	}
	return errors.Join(errs...)
}
