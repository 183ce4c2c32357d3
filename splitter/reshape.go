package splitter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// output is a partition that a reshape makes.
type output struct {
	partition.Home
	rg shardkey.Range
	// made is the collection as it was when it had been made.
	made collectionInfo
}

// reshape is one running split, move or merge: it replaces inputs by outputs.
type reshape struct {
	s       *Splitter
	kind    string
	coll    *partition.Collection
	inputs  []*partition.Part
	outputs []output
	rec     *catalog.Reshape
	// id and started are the record's, for those who look while it changes.
	id      string
	started time.Time
	info    collectionInfo
	streams []*stream
	// behind says that a stream showed more than could be kept, so that it may still have much to read.
	behind bool
	cancel context.CancelCauseFunc
	// braked is how long the brake holds a write up.
	braked time.Duration
	// held says that writes wait until the copy is done.
	held bool
	// try counts the attempts, from 1.
	try int
	// pending are ids whose documents met an equal entry of a unique index in an output and are to be tried again.
	pending []bson.RawValue
	// doubting guards pending and doubles while the copy runs.
	doubting sync.Mutex
	// doubles are those of pending that were in two inputs when they were last read.
	doubles map[string]double
	// restless are ids whose documents changed again whenever they were compared; they are compared behind closed gates.
	restless []bson.RawValue
	// average is the size of the inputs' documents on average, in bytes.
	average int64
	// sessions, by backend, read what a stream has shown and nothing older.
	sessions map[string]*mongo.Session

	mu sync.Mutex
	// writing are, by backend, the sessions of insertions that have ended.
	writing map[string][]*writeSession
	// misplaced are the _ids of the misplaced documents that were logged.
	misplaced []string
	phase     string
	since     time.Time // when phase began
	took      bson.D    // milliseconds by phase, of those that are over
	docs      int64
	bytes     int64
	total     int64
	pause     time.Duration
}

// plan chooses inputs and outputs from the collection as it is now.
type plan func(c *partition.Collection) (inputs []*partition.Part, outputs []output, err error)

// onlySharded is a plan for collections with a shard key; others are 118 NamespaceNotSharded.
func onlySharded(p plan) plan {
	return func(c *partition.Collection) ([]*partition.Part, []output, error) {
		if !c.Sharded() {
			return nil, nil, wire.Errorf(wire.NamespaceNotSharded, "%s is not sharded", c.NS)
		}
		return p(c)
	}
}

// errCancelled ends a reshape that somebody has cancelled.
var errCancelled = wire.Errorf(wire.ConflictingOperationInProgress, "the reshape was cancelled")

// retryable says that an attempt failed in a way that another one may not.
type retryable struct{ error }

func (r retryable) Unwrap() error { return r.error }

// reshape runs one reshape of ns to its end: attempt after attempt with growing pauses while what failed may pass, at most for ten attempts.
func (s *Splitter) reshape(ctx context.Context, ns, kind string, choose plan) error {
	unlock, err := s.lock(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.cancels[ns] = cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.cancels, ns)
		s.mu.Unlock()
	}()
	wait := s.cfg.Backoff
	for attempt := 1; ; attempt++ {
		err := s.attempt(ctx, ns, kind, attempt, choose)
		var again retryable
		if err == nil || !errors.As(err, &again) || attempt == 10 || ctx.Err() != nil {
			return err
		}
		s.log.Warn().Err(err).Str("ns", ns).Str("kind", kind).Int("attempt", attempt).Dur("wait", wait).Msg("reshape attempt failed; trying again")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wait = min(2*wait, time.Minute)
	}
}

// attempt is one try with fresh outputs. Before the flip everything it made is taken back when it fails.
func (s *Splitter) attempt(ctx context.Context, ns, kind string, try int, choose plan) error {
	c, err := s.current(ctx, ns)
	if err != nil {
		return retryable{err}
	}
	if c == nil || c.Map == nil {
		return wire.Errorf(wire.NamespaceNotSharded, "%s is not sharded", ns)
	}
	inputs, outputs, err := choose(c)
	if err != nil {
		return err
	}
	r := &reshape{s: s, kind: kind, try: try, coll: c, inputs: inputs, outputs: outputs}
	if err := r.begin(ctx); err != nil {
		return err
	}
	kept, done := s.keep(ctx, r.rec, r.progress)
	defer done()
	kept, r.cancel = context.WithCancelCause(kept)
	defer r.cancel(nil)
	s.mu.Lock()
	s.running[r.rec.ID.Hex()] = r
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.running, r.rec.ID.Hex())
		s.mu.Unlock()
	}()
	err = r.run(kept)
	r.release()
	for _, st := range r.streams {
		st.close()
	}
	for _, session := range r.sessions {
		session.EndSession(context.WithoutCancel(ctx))
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(kept); errors.Is(cause, errTakenOver) || errors.Is(cause, errCancelled) {
		err = cause // not what failed because of it
	}
	return r.abandon(context.WithoutCancel(ctx), err)
}

// begin names the outputs and writes the record.
func (r *reshape) begin(ctx context.Context) error {
	number, err := r.s.cfg.Catalog.NextNumber(ctx)
	if err != nil {
		return retryable{err}
	}
	for i := range r.outputs {
		r.outputs[i].DB = r.coll.DB
		r.outputs[i].Physical = catalog.PhysicalName(r.coll.DB, r.coll.Name, number, 0, i)
	}
	r.rec, err = r.s.record(ctx, r.coll.NS, r.kind, homesOfParts(r.inputs), homesOfOutputs(r.outputs))
	if err == nil {
		r.id, r.started = r.rec.ID.Hex(), r.rec.Started
	}
	return err
}

// progress notes in the record how far the reshape is.
func (r *reshape) progress(rec *catalog.Reshape) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.Documents, rec.Bytes, rec.Total = r.docs, r.bytes, r.total
}

// run is one attempt from the copy to the flip and what follows it.
func (r *reshape) run(ctx context.Context) error {
	// Whoever had the namespace before may have changed it since it was looked at.
	now, err := r.s.current(ctx, r.coll.NS)
	if err != nil {
		return retryable{err}
	}
	if versionOf(now) != versionOf(r.coll) {
		return retryable{errMapMoved(r.coll.NS)}
	}
	r.enter("prepare")
	if err := r.s.answerable(ctx, homesOfParts(r.inputs)); err != nil {
		return err
	}
	if r.coll.Key == nil {
		info, err := r.s.inspectHome(ctx, r.inputs[0].Home)
		if err != nil {
			return retryable{err}
		}
		switch {
		case info.view:
			return r.runView(ctx)
		case info.special():
			return r.runPaused(ctx)
		}
	}
	if r.anyStandalone() {
		return r.runPaused(ctx)
	}
	if err := r.openStreams(ctx); err != nil {
		return retryable{err}
	}
	if err := r.createOutputs(ctx); err != nil {
		return err
	}
	r.enter("copy")
	if err := r.meanwhile(ctx, r.copyAll); err != nil {
		return err
	}
	r.enter("follow")
	if err := r.catchUp(ctx); err != nil {
		return err
	}
	if err := r.settleDoubles(ctx); err != nil {
		return err
	}
	r.enter("verify")
	if err := r.verify(ctx); err != nil {
		return err
	}
	if err := r.s.answerable(ctx, homesOfParts(r.inputs)); err != nil {
		return err // what the server refuses may have changed since the start
	}
	if err := r.s.identify(ctx, r.rec); err != nil {
		return retryable{err}
	}
	if err := r.s.awaitGone(ctx, homesOfParts(r.inputs)); err != nil {
		return retryable{err}
	}
	if err := r.align(ctx); err != nil {
		return err
	}
	if err := r.catchUpToClose(ctx); err != nil {
		return err
	}
	r.enter("close")
	if err := r.flip(ctx); err != nil {
		return err
	}
	r.enter("retire")
	return r.retire(ctx)
}

// runView moves a view, which has no documents: its definition is made anew.
func (r *reshape) runView(ctx context.Context) error {
	if err := r.createOutputs(ctx); err != nil {
		return err
	}
	if err := r.s.identify(ctx, r.rec); err != nil {
		return retryable{err}
	}
	r.enter("close")
	if err := r.flip(ctx); err != nil {
		return err
	}
	r.enter("retire")
	return r.retire(ctx)
}

func (r *reshape) anyStandalone() bool {
	for _, p := range r.inputs {
		if b := r.s.cfg.Backends.Get(p.Backend); b != nil && b.Kind() == backend.KindStandalone {
			return true
		}
	}
	return false
}

// enter notes the phase for whoever looks.
func (r *reshape) enter(phase string) {
	r.mu.Lock()
	if r.phase != "" {
		r.took = append(r.took, bson.E{Key: r.phase, Value: time.Since(r.since).Milliseconds()})
	}
	r.phase, r.since = phase, time.Now()
	docs, bytes := r.docs, r.bytes
	r.mu.Unlock()
	r.s.log.Info().Str("ns", r.coll.NS).Str("kind", r.kind).Str("reshape", r.rec.ID.Hex()).Str("phase", phase).
		Int64("documents", docs).Int64("bytes", bytes).Msg("reshape")
	if r.s.cfg.AtPhase != nil {
		r.s.cfg.AtPhase(phase)
	}
}

// abandon takes back what an attempt made and returns why it failed. If the flip has happened all the same, it goes on from there.
func (r *reshape) abandon(ctx context.Context, why error) error {
	if err := r.s.undo(ctx, r.rec, why); err == nil {
		return nil
	}
	r.s.cfg.Catalog.AppendChange(ctx, r.s.cfg.Server, changeName(r.kind)+".error", r.coll.NS, bson.D{{Key: "reshape", Value: r.rec.ID}, {Key: "errmsg", Value: why.Error()}, {Key: "note", Value: "aborted"}})
	return why
}

// changeName is the what of config.changelog for a kind.
func changeName(kind string) string {
	if kind == "move" {
		return "moveChunk"
	}
	return kind
}

// Split divides the partition that holds at into [lo, at) and [at, hi); the new one goes to the backend with the least data.
func (s *Splitter) Split(ctx context.Context, ns string, at shardkey.Position) error {
	return s.splitTo(ctx, ns, at, nil)
}

// errReplaced says that the partition that was to be split is another one's reshape's input, or was: what was measured of it does not hold for what came instead.
var errReplaced = wire.Errorf(wire.ConflictingOperationInProgress, "the partition was replaced while it was being measured; look at the collection again")

// splitTo splits the partition that holds at; one that is not measured's, if that is given, is left alone: errReplaced.
func (s *Splitter) splitTo(ctx context.Context, ns string, at shardkey.Position, measured *partition.Home) error {
	to, err := s.LeastLoaded(ctx)
	if err != nil {
		return err
	}
	return s.reshape(ctx, ns, "split", onlySharded(func(c *partition.Collection) ([]*partition.Part, []output, error) {
		p := c.At(at)
		if measured != nil && p.Home != *measured {
			return nil, nil, errReplaced
		}
		if !p.Range.CanSplitAt(at) {
			return nil, nil, wire.Errorf(wire.CannotSplit, "cannot split %s at %d: it is a bound of a partition already", ns, at.Int64())
		}
		lo, hi := p.Range.SplitAt(at)
		return []*partition.Part{p}, []output{
			{Home: partition.Home{Backend: p.Backend}, rg: lo}, {Home: partition.Home{Backend: to}, rg: hi}}, nil
	}))
}

// SplitMedian divides the partition that holds at into two with about half of its documents each; 87 CannotSplit when all have one shard key value.
func (s *Splitter) SplitMedian(ctx context.Context, ns string, at shardkey.Position) error {
	for tries := 3; ; tries-- {
		c := s.cfg.Table.View().Collection(ns)
		if c == nil || !c.Sharded() {
			return wire.Errorf(wire.NamespaceNotSharded, "%s is not sharded", ns)
		}
		p := c.At(at)
		median, err := s.median(ctx, c, p)
		if err != nil {
			return err
		}
		if err := s.splitTo(ctx, ns, median, &p.Home); !errors.Is(err, errReplaced) || tries == 1 {
			return err
		}
	}
}

// Move brings the partition with exactly the range rg to another backend; when it is there already nothing happens.
func (s *Splitter) Move(ctx context.Context, ns string, rg shardkey.Range, to string) error {
	if s.cfg.Backends.Get(to) == nil {
		return wire.Errorf(wire.ShardNotFound, "shard '%s' does not exist", to)
	}
	err := s.reshape(ctx, ns, "move", onlySharded(func(c *partition.Collection) ([]*partition.Part, []output, error) {
		for _, p := range c.Parts {
			if p.Range == rg {
				if p.Backend == to {
					return nil, nil, errThere
				}
				return []*partition.Part{p}, []output{{Home: partition.Home{Backend: to}, rg: rg}}, nil
			}
		}
		return nil, nil, wire.Errorf(656452, "no partition of %s has exactly the bounds %s", ns, rg)
	}))
	if errors.Is(err, errThere) {
		return nil
	}
	return err
}

// Merge makes one partition of the adjacent ones that cover exactly rg; it stays on the backend of the first.
func (s *Splitter) Merge(ctx context.Context, ns string, rg shardkey.Range) error {
	return s.reshape(ctx, ns, "merge", onlySharded(func(c *partition.Collection) ([]*partition.Part, []output, error) {
		var in []*partition.Part
		for _, p := range c.Parts {
			if rg.ContainsRange(p.Range) {
				in = append(in, p)
			}
		}
		if len(in) == 0 || in[0].Range.Lo != rg.Lo || in[len(in)-1].Range.Hi != rg.Hi {
			return nil, nil, wire.Errorf(wire.BadValue, "the bounds %s are not bounds of partitions of %s", rg, ns)
		}
		if len(in) == 1 {
			return nil, nil, wire.Errorf(wire.BadValue, "the bounds %s are one partition of %s: nothing to merge", rg, ns)
		}
		return in, []output{{Home: partition.Home{Backend: in[0].Backend}, rg: rg}}, nil
	}))
}

// Operations lists running reshapes as documents for currentOp.
func (s *Splitter) Operations() []bson.D {
	s.mu.Lock()
	all := make([]*reshape, 0, len(s.running))
	for _, r := range s.running {
		all = append(all, r)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *reshape) int { return a.started.Compare(b.started) })
	var out []bson.D
	for _, r := range all {
		out = append(out, r.describe())
	}
	return out
}

func (r *reshape) describe() bson.D {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := bson.D{{Key: "type", Value: "op"}, {Key: "op", Value: "command"}, {Key: "desc", Value: "reshape"}, {Key: "opid", Value: r.id}, {Key: "ns", Value: r.coll.NS},
		{Key: "kind", Value: r.kind}, {Key: "phase", Value: r.phase}, {Key: "active", Value: true},
		{Key: "secs_running", Value: int64(time.Since(r.started).Seconds())}, {Key: "microsecs_running", Value: time.Since(r.started).Microseconds()},
		{Key: "documentsCopied", Value: r.docs}, {Key: "bytesCopied", Value: r.bytes}, {Key: "documentsToCopy", Value: r.total}}
	if r.docs > 0 && r.total > r.docs && r.phase == "copy" {
		left := time.Duration(float64(time.Since(r.started)) * float64(r.total-r.docs) / float64(r.docs))
		d = append(d, bson.E{Key: "remainingOperationTimeEstimatedSecs", Value: int64(left.Seconds())})
	}
	return d
}

// Cancel ends the reshape with that id, if it has not flipped; it reports whether there is one.
func (s *Splitter) Cancel(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.running[id]
	if r == nil {
		return false
	}
	r.cancel(errCancelled)
	return true
}

// cancelNS ends the reshape of a namespace that is about to be dropped or renamed, also one that waits to try again.
func (s *Splitter) cancelNS(ns string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[ns]; cancel != nil {
		cancel(errCancelled)
	}
}
