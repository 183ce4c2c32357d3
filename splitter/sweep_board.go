package splitter

import (
	"context"

	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/protocol"
)

// sweepBoard takes off a backend what changes of maps that are over have left there: a message may arrive at any later time, also after what it is about was
// taken away. Closings, answers and markers are read before the records: a record names its closings, and is there, before any of them is.
func (s *Splitter) sweepBoard(ctx context.Context, b member.Board) error {
	closings, err := b.Closings(ctx)
	if err != nil {
		return err
	}
	answered, marked, err := b.Leftovers(ctx)
	if err != nil || len(closings)+len(answered)+len(marked) == 0 {
		return err
	}
	records, err := s.cfg.Catalog.ReshapesNow(ctx)
	if err != nil {
		return err
	}
	live := map[protocol.ID]bool{} // changes and their closings
	for _, r := range records {
		live[r.ID] = true
		for _, c := range r.Closings {
			live[c.ID] = true
		}
	}
	for _, c := range closings {
		if live[c.ID] || live[c.Reshape] {
			continue
		}
		// Only the version that it names ends a closing.
		if m, err := s.cfg.Catalog.NewestMap(ctx, c.NS); err != nil {
			return err
		} else if m == nil || m.V < c.Ends {
			continue
		}
		if err := b.DropClosing(ctx, c.ID); err != nil {
			return err
		}
	}
	for id := range answered {
		if live[id] {
			continue
		}
		if err := b.Forget(ctx, protocol.ID{}, id); err != nil {
			return err
		}
	}
	for id := range marked {
		if live[id] {
			continue
		}
		if err := b.Forget(ctx, id, protocol.ID{}); err != nil {
			return err
		}
	}
	return nil
}
