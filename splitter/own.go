package splitter

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/wire"
)

// errTakenOver ends what this process was doing to a map: its record has another owner.
var errTakenOver = errors.New("the record was not renewed in time and has another owner")

// owner does the protocol's steps over the catalog and the backends.
func (s *Splitter) owner() *protocol.Owner {
	return &protocol.Owner{
		Maps:    s.cfg.Catalog,
		Records: s.cfg.Catalog,
		Board: func(id string) protocol.Board {
			if b := s.cfg.Backends.Get(id); b != nil {
				return member.BoardOf(b)
			}
			return nil
		},
		Pause: func(ctx context.Context, try int) error {
			return pause(ctx, min(time.Millisecond<<min(try, 10), 10*time.Millisecond))
		},
		Retry: func(ctx context.Context, try int, why error) error {
			if try%8 == 7 {
				s.log.Error().Err(why).Msg("a closing could not be ended yet")
			}
			select {
			case <-s.ctx.Done():
				return errors.New("this process ends")
			default:
			}
			return pause(ctx, min(10*time.Millisecond<<min(try, 10), 2*time.Second))
		},
	}
}

// awaitGone waits, with gates open, until every instance at the backends of homes that has been ended is gone.
func (s *Splitter) awaitGone(ctx context.Context, homes []partition.Home) error {
	seen := map[string]bool{}
	for _, h := range homes {
		b := s.cfg.Backends.Get(h.Backend)
		if seen[h.Backend] || b == nil {
			continue
		}
		seen[h.Backend] = true
		err := protocol.AwaitGone(ctx, member.BoardOf(b), func(ctx context.Context, try int) error {
			return pause(ctx, min(10*time.Millisecond<<min(try, 10), 500*time.Millisecond))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pause waits for d or until ctx ends, whose cause it returns then.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Burn ends a closing by inserting its version with nothing changed, unless somebody was faster. home is where the closing stands.
func (s *Splitter) Burn(ctx context.Context, ns string, v int64, home catalog.RecordedHome) error {
	return s.owner().Burn(ctx, ns, v, home)
}

// record writes the record of a change of ns's map. Nothing exists before it does, so that nothing is left that no record tells of. While another
// change has the namespace it waits.
func (s *Splitter) record(ctx context.Context, ns, kind string, inputs, outputs []partition.Home) (*catalog.Reshape, error) {
	rec := s.newRecord(ns, kind, inputs, outputs)
	if err := s.insertRecord(ctx, rec); err != nil {
		return rec, err
	}
	if err := s.announce(ctx, rec); err != nil {
		// Nothing was made.
		return rec, errors.Join(err, s.cfg.Catalog.DeleteReshape(context.WithoutCancel(ctx), rec))
	}
	return rec, nil
}

func (s *Splitter) newRecord(ns, kind string, inputs, outputs []partition.Home) *catalog.Reshape {
	return &catalog.Reshape{ID: bson.NewObjectID(), NS: ns, Kind: kind, Inputs: recorded(inputs), Outputs: recorded(outputs),
		Owner: s.id, Server: s.cfg.Server, Phase: catalog.Copying, Started: time.Now().UTC()}
}

func (s *Splitter) insertRecord(ctx context.Context, rec *catalog.Reshape) error {
	for try := 0; ; try++ {
		err := s.cfg.Catalog.InsertReshape(ctx, rec)
		if !errors.Is(err, catalog.ErrSlotTaken) {
			return err
		}
		if pause(ctx, min(time.Millisecond<<min(try, 10), 100*time.Millisecond)) != nil {
			return wire.Errorf(wire.LockTimeout, "another change of %s is going on: %v", rec.NS, context.Cause(ctx))
		}
	}
}

func recorded(homes []partition.Home) []catalog.RecordedHome {
	out := make([]catalog.RecordedHome, len(homes))
	for i, h := range homes {
		out[i] = catalog.RecordedHome{Backend: h.Backend, Physical: h.Physical}
	}
	return out
}

// keep renews a record until done is called, which waits for the renewing to end. The context that it returns ends when somebody asks for the change to be
// given up, or has taken it over. note, if not nil, adds how far the change is.
func (s *Splitter) keep(ctx context.Context, rec *catalog.Reshape, note func(*catalog.Reshape)) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	asked := make(chan struct{}, 1)
	s.mu.Lock()
	s.asked[rec.ID] = asked
	s.mu.Unlock()
	sign := *rec // its epoch and owner stay while this process has it
	go func() {
		defer close(ended)
		t := time.NewTicker(s.cfg.Renew)
		defer t.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-asked:
				cancel(errCancelled)
			case <-t.C:
			}
			if note != nil {
				note(&sign)
			}
			rctx, stop := context.WithTimeout(ctx, s.cfg.Lease)
			give, err := s.cfg.Catalog.RenewReshape(rctx, &sign)
			stop()
			switch {
			case errors.Is(err, catalog.ErrReshapeMoved):
				cancel(errTakenOver)
			case give:
				cancel(errCancelled)
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
		s.mu.Lock()
		delete(s.asked, rec.ID)
		s.mu.Unlock()
	}
}

// hear takes the news of a record: somebody may ask for a change of this process's to be given up.
func (s *Splitter) hear(r catalog.Reshape) {
	if !r.Cancel {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.asked[r.ID]; ch != nil {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
