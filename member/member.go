package member

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

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
	// Lease is how long a lease lasts (10 s), Renew how often it is renewed (2 s), Margin what clocks may differ by (1 s).
	Lease, Renew, Margin time.Duration
}

// Member keeps this process registered at every backend of the set. Make one with New and run it with Run.
type Member struct {
	cfg Config

	mu     sync.Mutex
	leases map[string]*Lease
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
	return &Member{cfg: cfg, leases: map[string]*Lease{}, joined: make(chan struct{})}
}

// Lease returns the current lease at a backend; one that is not valid if there is none.
func (m *Member) Lease(backendID string) *Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.leases[backendID]; l != nil {
		return l
	}
	return ended
}

// WaitJoined waits until a backend was joined.
func (m *Member) WaitJoined(ctx context.Context, backendID string) error {
	for {
		m.mu.Lock()
		l, ch := m.leases[backendID], m.joined
		m.mu.Unlock()
		if l != nil && l.Valid() {
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
		if err := m.session(ctx, b, &first); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn().Err(err).Str("backend", b.ID()).Msg("not registered at the backend; trying again")
			select {
			case <-time.After(m.cfg.Renew / 4):
			case <-ctx.Done():
			}
		}
	}
}

// session is the life of one instance. The process's first joining clears *first: a later one, after a lost lease, ends nobody.
func (m *Member) session(ctx context.Context, b *backend.Backend, first *bool) error {
	db := DB(b)
	in := &instance{m: m, b: b, db: db, lease: &Lease{length: m.cfg.Lease, margin: m.cfg.Margin}}
	sent := time.Now()
	if err := in.join(ctx, *first); err != nil {
		return err
	}
	*first = false
	if !in.lease.renewed(sent, true) {
		return errors.New("the registration was confirmed after its lease had ended")
	}
	m.set(b.ID(), in.lease)
	inner, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		in.watch(inner)
	}()
	err := in.renew(ctx)
	in.lease.end()
	cancel()
	wg.Wait()
	in.wg.Wait()
	in.leave(context.WithoutCancel(ctx))
	return err
}

func (m *Member) set(id string, l *Lease) {
	m.mu.Lock()
	m.leases[id] = l
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
	// wg counts the closings being answered.
	wg sync.WaitGroup
}

// join registers, then reads the closings, then the floors, in this order: a closing that is not seen has been ended by a floor that is.
func (in *instance) join(ctx context.Context, first bool) error {
	ctx, cancel := context.WithTimeout(ctx, in.m.cfg.Lease)
	defer cancel()
	in.id = bson.NewObjectID()
	doc := Instance{ID: in.id, Proxy: in.m.cfg.Proxy, PID: os.Getpid(), Started: time.Now().UTC()}
	if first {
		_, err := in.db.Collection(Instances).UpdateMany(ctx, bson.D{{Key: "gone", Value: false}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "gone", Value: true}}}})
		if err != nil {
			return err
		}
	}
	if _, err := in.db.Collection(Instances).InsertOne(ctx, doc); err != nil {
		return err
	}
	return nil
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

// leave marks the instance gone: nothing of it is in flight, since whoever waits for a reply finds the lease ended.
func (in *instance) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _ = in.db.Collection(Instances).UpdateOne(ctx, bson.D{{Key: "_id", Value: in.id}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "gone", Value: true}}}}, options.UpdateOne())
}
