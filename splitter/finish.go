package splitter

import (
	"context"
	"errors"
	"time"

	"github.com/shardway/shardway/catalog"
)

// finish does what follows a flip, in this order: the floors are raised, the closings go, documents expire in the outputs, the record frees its namespace, and, in the background, what the
// change replaced is dropped once no proxy uses it any more. What fails is tried again in the background; a process that ends leaves it to its successor.
func (s *Splitter) finish(ctx context.Context, rec *catalog.Reshape) {
	err := s.settle(ctx, rec)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wg.Go(func() { s.drain(rec, err) })
}

// settle is what follows a flip at once.
func (s *Splitter) settle(ctx context.Context, rec *catalog.Reshape) error {
	if rec.Phase == catalog.Retiring {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o := s.owner()
	if err := o.RaiseFloors(ctx, rec); err != nil {
		return err
	}
	if err := o.Unclose(ctx, rec); err != nil {
		return err
	}
	if err := s.recordUsed(ctx, rec); err != nil {
		return err
	}
	if err := s.expireLike(ctx, rec); err != nil {
		return err
	}
	return s.cfg.Catalog.SwapReshape(ctx, rec, func(n *catalog.Reshape) { n.Phase, n.Slot = catalog.Retiring, n.ID.Hex() })
}

// drain goes on with what follows a flip until it is done, the record is another's, or this process ends. err is why the first try of settle failed.
func (s *Splitter) drain(rec *catalog.Reshape, err error) {
	ctx, done := s.keep(s.ctx, rec, nil)
	defer done()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		if err == nil {
			err = s.drop(ctx, rec)
		}
		if err == nil || errors.Is(err, catalog.ErrReshapeMoved) || ctx.Err() != nil {
			return
		}
		s.log.Warn().Err(err).Str("ns", rec.NS).Str("kind", rec.Kind).Msg("what a change of a map replaced is not dropped yet")
		if pause(ctx, wait) != nil {
			return
		}
		err = s.settle(ctx, rec)
	}
}

// drop waits until nobody uses what a change replaced, and drops it.
func (s *Splitter) drop(ctx context.Context, rec *catalog.Reshape) error {
	if err := s.owner().Release(ctx, rec); err != nil {
		return err
	}
	if err := s.dropRecorded(ctx, rec, rec.Inputs, replaced); err != nil {
		return err
	}
	return s.cfg.Catalog.DeleteReshape(ctx, rec)
}
