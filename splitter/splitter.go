package splitter

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
)

// Config is what a Splitter is made of.
type Config struct {
	// Server names this proxy in the history and in the records of reshapes.
	Server   string
	Backends *backend.Set
	Catalog  *catalog.Store
	Table    *partition.Table
	Log      zerolog.Logger
	// MaxPartitionBytes is the size beyond which a partition is split; 0 means 50 GB.
	MaxPartitionBytes int64
	// MonitorEvery is how often sizes are looked at; 0 means every 10 s, negative never.
	MonitorEvery time.Duration
	// SweepEvery is how often what changes that are over have left on backends is looked for; 0 means
	// every hour.
	SweepEvery time.Duration
	// SweepAfter is how long after a drop what late writes have made anew is looked for; 0 means 30 s.
	SweepAfter time.Duration
	// PauseBudget is how long gates may stay closed before the attempt is given up; 0 means 1 s.
	PauseBudget time.Duration
	// Backoff is the pause after a failed attempt, doubled up to a minute; 0 means 1 s.
	Backoff time.Duration
	// AtPhase, if not nil, is called as a reshape enters each phase; tests stop it there.
	AtPhase func(phase string)
	// StandalonePause is how long a standalone's writes may be held for a copy; 0 means 10 s.
	StandalonePause time.Duration
	// CopyBytesPerSecond bounds what all copies of this process write in a second; 0 does not.
	CopyBytesPerSecond int64
	// RetryWindow is how long old homes are remembered; 0 means 30 min.
	RetryWindow time.Duration
	// Lease is how long a change that is not renewed is left to its owner, with Margin (30 s and 1 s); Renew is how often it is renewed (2 s).
	Lease, Renew, Margin time.Duration
	// renewSessions is how often sessions with open cursors are renewed; 0 means every minute.
	renewSessions time.Duration
}

func (c *Config) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.MonitorEvery, 10*time.Second)
	def(&c.SweepEvery, time.Hour)
	def(&c.SweepAfter, 30*time.Second)
	def(&c.PauseBudget, time.Second)
	def(&c.Backoff, time.Second)
	def(&c.StandalonePause, 10*time.Second)
	def(&c.RetryWindow, 30*time.Minute)
	def(&c.Lease, 30*time.Second)
	def(&c.Renew, 2*time.Second)
	def(&c.Margin, time.Second)
	if c.MaxPartitionBytes == 0 {
		c.MaxPartitionBytes = 50 << 30
	}
}

// Splitter changes maps. It is safe for concurrent use; changes of one namespace happen one at a time, in this process by a lock, among processes by the
// slot of a record in the catalog. That is for economy: the protocol holds without.
type Splitter struct {
	cfg Config
	log zerolog.Logger
	// id is this process as the owner of changes.
	id catalog.ID

	// copies bounds the bytes that are copied.
	copies rate

	mu    sync.Mutex
	locks map[string]*nsLock
	// asked are told, by record, that somebody wants a change of this process's to be given up.
	asked map[catalog.ID]chan struct{}
	// running are the reshapes of this process by id.
	running map[string]*reshape
	// cancels end what reshapes a namespace, also between two attempts.
	cancels map[string]context.CancelCauseFunc
	// stuck are partitions over their limit that cannot be split.
	stuck map[partition.Home]unsplittable
	// dropped is told of homes that were dropped.
	dropped chan struct{}
	// reported is, by backend, what was last logged of collections that belong to nothing.
	reported sync.Map
	// plainDrops are the backends whose drop command takes no collectionUUID.
	plainDrops sync.Map
	// settled says, by namespace, of which reshape it is known that all is done that follows its flip at once.
	settled sync.Map
	// ctx ends with Close; wg counts what drains retired homes.
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
	// closed says that nothing new may begin in the background.
	closed bool
}

// New makes a Splitter. It must be closed.
func New(cfg Config) *Splitter {
	cfg.setDefaults()
	ctx, stop := context.WithCancel(context.Background())
	s := &Splitter{ctx: ctx, stop: stop, cfg: cfg, log: cfg.Log, id: bson.NewObjectID(), locks: map[string]*nsLock{}, asked: map[catalog.ID]chan struct{}{},
		running: map[string]*reshape{}, cancels: map[string]context.CancelCauseFunc{}, stuck: map[partition.Home]unsplittable{},
		dropped: make(chan struct{}, 1)}
	s.copies.perSecond = cfg.CopyBytesPerSecond
	cfg.Catalog.OnReshape(s.hear)
	return s
}

// nsLock serialises changes of one namespace's map in this process.
type nsLock struct {
	ch   chan struct{}
	uses int
}

// lock takes the namespace for a change of its map and returns what gives it back.
func (s *Splitter) lock(ctx context.Context, ns string) (unlock func(), err error) {
	s.mu.Lock()
	l := s.locks[ns]
	if l == nil {
		l = &nsLock{ch: make(chan struct{}, 1)}
		s.locks[ns] = l
	}
	l.uses++
	s.mu.Unlock()
	put := func() {
		s.mu.Lock()
		if l.uses--; l.uses == 0 {
			delete(s.locks, ns)
		}
		s.mu.Unlock()
	}
	select {
	case l.ch <- struct{}{}:
		return func() { <-l.ch; put() }, nil
	case <-ctx.Done():
		put()
		return nil, context.Cause(ctx)
	}
}

// Close ends what runs in the background and waits for it. Retired homes that are not drained yet are left to the next start.
func (s *Splitter) Close() {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel(errCancelled)
	}
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
}
