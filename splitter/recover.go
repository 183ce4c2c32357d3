package splitter

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/catalog"
)

// takeOvers looks again and again, until ctx ends, for records that their owners do not renew any more, and takes them over: a record of which nothing has
// changed for a lease and a margin, by this process's own clock. Only time during which the records could be read counts: while the catalog has no primary no
// owner can renew.
func (s *Splitter) takeOvers(ctx context.Context) {
	seen := map[string]sighting{}
	last := time.Now()
	for pause(ctx, s.cfg.Renew/2) == nil {
		now := time.Now()
		all, err := s.cfg.Catalog.Reshapes(ctx)
		if err != nil {
			continue
		}
		read := time.Now()
		if read.Sub(last) > s.cfg.Lease/2 {
			clear(seen)
		}
		last = read
		there := map[string]bool{}
		for i := range all {
			rec := &all[i]
			there[rec.Slot] = true
			at := sighting{rec.Owner, rec.Epoch, rec.Renewals, rec.Phase, read}
			if old, ok := seen[rec.Slot]; ok && old.same(at) {
				at.since = old.since
			}
			seen[rec.Slot] = at
			// One of this process's own is taken over as well: it may be here because a swap was done whose answer was lost.
			if now.Sub(at.since) < s.cfg.Lease+s.cfg.Margin {
				continue
			}
			if err := s.takeOver(ctx, rec); err != nil && !errors.Is(err, catalog.ErrReshapeMoved) {
				s.log.Warn().Err(err).Str("ns", rec.NS).Str("kind", rec.Kind).Msg("a change that another process began could not be ended yet")
			}
		}
		for id := range seen {
			if !there[id] {
				delete(seen, id)
			}
		}
	}
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
