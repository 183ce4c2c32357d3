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
	"github.com/shardway/shardway/partition"
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
	// Lease is how long a lease lasts (10 s), Renew how often it is renewed (2 s), Margin what clocks may differ by (1 s).
	Lease, Renew, Margin time.Duration
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
	def(&cfg.Lease, 10*time.Second)
	def(&cfg.Renew, 2*time.Second)
	def(&cfg.Margin, time.Second)
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
// When it returns the instance has been marked gone, if the backend could be reached. In a fleet with one proxy the first joining
// marks all earlier instances gone: they are this process's predecessors.
func (m *Member) Keep(ctx context.Context, b *backend.Backend) {
	first := true
	for ctx.Err() == nil {
		joined, err := m.session(ctx, b, first)
		first = first && !joined
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

// session is the life of one instance. It reports whether the backend was joined. An instance whose lease was lost is not gone yet: what
// it sent may be in flight, and only the next one, which answers for all gates of this process, can speak for it.
func (m *Member) session(ctx context.Context, b *backend.Backend, first bool) (joined bool, err error) {
	in := &instance{m: m, b: b, db: DB(b), id: bson.NewObjectID(), lease: &Lease{length: m.cfg.Lease, margin: m.cfg.Margin}, seen: map[bson.ObjectID]bool{}}
	inner, cancel := context.WithCancel(ctx)
	defer in.wg.Wait()
	defer cancel()
	defer in.lease.end()
	past := m.remember(b.ID(), in.id)
	stream, met, err := in.join(inner, first)
	if err != nil {
		return false, err
	}
	m.set(b.ID(), in.lease)
	in.wg.Add(2)
	go func() {
		defer in.wg.Done()
		in.watch(inner, stream)
	}()
	go func() {
		defer in.wg.Done()
		in.bury(inner, met, past)
	}()
	return true, in.renew(ctx)
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
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m.mu.Lock()
	ids := slices.Clone(m.past[b.ID()])
	m.mu.Unlock()
	_ = markGone(ctx, DB(b), ids)
}

// markGone says of instances that nothing of theirs can reach the backend any more.
func markGone(ctx context.Context, db *mongo.Database, ids []bson.ObjectID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := db.Collection(Instances).UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "gone", Value: true}}}})
	return err
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
	db    *mongo.Database
	id    bson.ObjectID
	lease *Lease
	// seen are the closings that were met.
	seen map[bson.ObjectID]bool
	// wg counts what runs for the instance.
	wg sync.WaitGroup
}

// join registers, then reads the closings, then the floors, in this order: a closing that is not seen has been ended by a version that a
// floor tells of. Only then may the lease be used. The stream of closings, nil on a standalone, begins before they
// are read; met are the gates that were closed.
func (in *instance) join(ctx context.Context, first bool) (stream *mongo.ChangeStream, met []*partition.Gate, err error) {
	limited, cancel := context.WithTimeout(ctx, in.m.cfg.Lease)
	defer cancel()
	sent := time.Now()
	doc := Instance{ID: in.id, Proxy: in.m.cfg.Proxy, PID: os.Getpid(), Started: time.Now().UTC()}
	if first {
		_, err := in.db.Collection(Instances).UpdateMany(limited, bson.D{{Key: "gone", Value: false}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "gone", Value: true}}}})
		if err != nil {
			return nil, nil, err
		}
	}
	if _, err := in.db.Collection(Instances).InsertOne(limited, doc); err != nil {
		return nil, nil, err
	}
	if !in.lease.renewed(sent, true) {
		return nil, nil, errors.New("the registration was confirmed after its lease had ended")
	}
	stream = in.stream(ctx)
	met, err = in.readClosings(ctx)
	if err == nil {
		err = in.readFloors(limited)
	}
	if err != nil && stream != nil {
		_ = stream.Close(context.WithoutCancel(ctx))
	}
	return stream, met, err
}

// readFloors sees to it that no map below a floor of the backend is used.
func (in *instance) readFloors(ctx context.Context) error {
	cur, err := in.db.Collection(Floors).Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var all []Floor
	if err := cur.All(ctx, &all); err != nil {
		return err
	}
	below := func(f Floor) bool { return in.m.cfg.Table.Applied(f.NS) < f.V }
	if !slices.ContainsFunc(all, below) {
		return nil
	}
	if in.m.cfg.Refresh != nil {
		if err := in.m.cfg.Refresh(ctx); err != nil {
			return err
		}
	}
	if i := slices.IndexFunc(all, below); i >= 0 {
		return fmt.Errorf("the map of %s is known at version %d, and %d is the lowest that may be used", all[i].NS, in.m.cfg.Table.Applied(all[i].NS), all[i].V)
	}
	return nil
}

// bury marks earlier instances of this process gone once nothing of theirs is behind a gate that was to be closed when this one joined;
// whatever is closed later waits for this one's answer.
func (in *instance) bury(ctx context.Context, met []*partition.Gate, past []bson.ObjectID) {
	for _, g := range met {
		if g.WaitQuiet(ctx) != nil {
			return
		}
	}
	if markGone(ctx, in.db, past) == nil {
		in.m.forget(in.b.ID(), past)
	}
}

// renew renews the lease until ctx ends or the lease is lost.
func (in *instance) renew(ctx context.Context) error {
	t := time.NewTicker(in.m.cfg.Renew)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		sent := time.Now()
		rctx, cancel := context.WithTimeout(ctx, in.m.cfg.Renew)
		res, err := in.db.Collection(Instances).UpdateOne(rctx, bson.D{{Key: "_id", Value: in.id}, {Key: "gone", Value: false}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "renewals", Value: int64(1)}}}})
		cancel()
		switch {
		case err == nil && res.MatchedCount == 0:
			return errors.New("the instance was ended by another proxy")
		case err == nil && !in.lease.renewed(sent, false):
			return errors.New("the lease had ended before its renewal was confirmed")
		case err != nil && !in.lease.Valid():
			return err
		}
	}
}
