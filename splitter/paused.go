package splitter

import (
	"context"
	"time"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/wire"
)

// runPaused is the reshape of inputs that cannot be followed, on standalones, which have no change stream, and of capped and time-series collections: writes are held before
// the copy, so that nothing changes meanwhile, then everything, then the map is inserted. It is a pause as long as the copy, and refused beyond StandalonePause.
func (r *reshape) runPaused(ctx context.Context) error {
	for _, p := range r.inputs {
		if b := r.s.cfg.Backends.Get(p.Backend); len(r.inputs) > 1 && b != nil && b.Kind() != backend.KindStandalone {
			return wire.Errorf(wire.CommandNotSupported, "partitions on a replica set and on a standalone cannot be merged; move one of them first")
		}
	}
	r.enter("copy")
	if err := r.createOutputs(ctx); err != nil {
		return err
	}
	if err := r.s.answerable(ctx, homesOfParts(r.inputs)); err != nil {
		return err
	}
	if err := r.s.awaitGone(ctx, homesOfParts(r.inputs)); err != nil {
		return retryable{err}
	}
	if err := r.s.identify(ctx, r.rec); err != nil {
		return retryable{err}
	}
	m := r.newMap()
	r.enter("close")
	began := time.Now()
	budget, cancel := context.WithTimeoutCause(ctx, r.s.cfg.StandalonePause, wire.Errorf(wire.ExceededTimeLimit,
		"the copy would hold the writes of %s for longer than %s; %s", r.coll.NS, r.s.cfg.StandalonePause, r.remedy()))
	defer cancel()
	err := r.copyClosed(budget, m)
	if err == nil {
		err = r.s.owner().Flip(context.WithoutCancel(ctx), r.rec, m)
	}
	r.mu.Lock()
	r.pause = time.Since(began)
	r.mu.Unlock()
	if err != nil {
		if cause := context.Cause(budget); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return err
	}
	r.s.log.Info().Str("ns", r.coll.NS).Str("kind", r.kind).Dur("pause", r.pause).Int64("v", m.V).Msg("flip")
	r.enter("retire")
	return r.retire(ctx)
}

// copyClosed copies and verifies while writes are held, and then holds reads too.
func (r *reshape) copyClosed(ctx context.Context, m *catalog.Map) error {
	patience := 2 * r.s.cfg.StandalonePause.Milliseconds() // whoever waits at a gate is not to burn it before
	if err := r.close(ctx, m.V, protocol.Closing{WritesOnly: true, Patience: patience}); err != nil {
		return err
	}
	r.held = true
	if !r.anyStandalone() {
		if err := r.openStreams(ctx); err != nil {
			return retryable{err}
		}
	}
	if err := r.copyAll(ctx); err != nil {
		return err
	}
	if err := r.settleDoubles(ctx); err != nil {
		return err
	}
	if err := r.compareClosed(ctx); err != nil {
		return err
	}
	if err := r.sameIndexes(ctx); err != nil {
		return err
	}
	if err := r.close(ctx, m.V, protocol.Closing{Patience: patience}); err != nil {
		return err
	}
	times, err := r.lastMarkers(ctx)
	if err != nil {
		return err
	}
	return r.stamp(ctx, m, times)
}
