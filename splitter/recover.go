package splitter

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/catalog"
)

// takeOvers looks again and again, until ctx ends, for records that their owners do not renew any more, and takes them over: a record of which nothing has
// changed for a lease and a margin, by this process's own clock.
func (s *Splitter) takeOvers(ctx context.Context) {
	watch := recordWatch{lease: s.cfg.Lease + s.cfg.Margin}
	for pause(ctx, s.cfg.Renew/2) == nil {
		began := time.Now()
		all, err := s.cfg.Catalog.Reshapes(ctx)
		if err != nil {
			continue
		}
		// One of this process's own is taken over as well: it may be here because a swap was done whose answer was lost.
		for _, rec := range watch.look(began, time.Now(), all) {
			if err := s.takeOver(ctx, rec); err != nil && !errors.Is(err, catalog.ErrReshapeMoved) {
				s.log.Warn().Err(err).Str("ns", rec.NS).Str("kind", rec.Kind).Msg("a change that another process began could not be ended yet")
			}
		}
	}
}

// recordWatch finds out whose records are not renewed. It measures as protocol.Mourner does: from the end of the first reading to the beginning of the last one, and
// anew when nothing could be read for half a lease, since no owner can renew while the catalog has no primary. Its zero value but for lease is ready for use.
type recordWatch struct {
	lease time.Duration // with the margin
	seen  map[string]sighting
	last  time.Time
}

// look takes the records that a reading found, and returns those of which nothing has changed for a lease.
func (w *recordWatch) look(began, ended time.Time, all []catalog.Reshape) (silent []*catalog.Reshape) {
	before := w.seen
	if !w.last.IsZero() && ended.Sub(w.last) > w.lease/2 {
		before = nil
	}
	w.seen, w.last = make(map[string]sighting, len(all)), ended
	for i := range all {
		rec := &all[i]
		at := sighting{rec.Owner, rec.Epoch, rec.Renewals, rec.Phase, ended}
		if old, ok := before[rec.Slot]; ok && old.same(at) {
			at.since = old.since
		}
		w.seen[rec.Slot] = at
		if began.Sub(at.since) >= w.lease {
			silent = append(silent, rec)
		}
	}
	return silent
}

// sighting is how a record looked, and since when.
type sighting struct {
	owner    catalog.ID
	epoch    int64
	renewals int64
	phase    catalog.Phase
	since    time.Time
}

func (a sighting) same(b sighting) bool {
	return a.owner == b.owner && a.epoch == b.epoch && a.renewals == b.renewals && a.phase == b.phase
}

// takeOver ends a change whose owner is silent: forward if it has flipped, back otherwise. The monitor begins anew what is still to be done, with fresh outputs.
func (s *Splitter) takeOver(ctx context.Context, rec *catalog.Reshape) error {
	phase, former := rec.Phase, rec.Server
	flipped, err := s.owner().TakeOver(ctx, rec, s.id, s.cfg.Server)
	if err != nil {
		return err
	}
	s.log.Info().Str("ns", rec.NS).Str("kind", rec.Kind).Str("phase", string(phase)).Str("from", former).Time("began", rec.Started).Bool("flipped", flipped).Msg("a change of another process is taken over and ended")
	kept, done := s.keep(ctx, rec, nil)
	defer done()
	if rec.Kind == kindDDL {
		return s.finishDDL(kept, rec)
	}
	if !flipped {
		return s.clean(kept, rec)
	}
	s.finish(context.WithoutCancel(ctx), rec)
	return nil
}
