package splitter

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// maxRemembered bounds the old homes in a map that changes without a copy have replaced: who drops and makes a collection again and again, as test suites do, does not have
// its map grow for the whole retry window. Those of the last change are all kept; where they are many, what an earlier one replaced is forgotten, and the repetition of a write
// that only that has on record would be done again.
const maxRemembered = 256

// replaced are the homes that m, which is about to be inserted, does not name any more, each with the time of a marker on its backend: as old homes of m they answer for what
// they have on record, so that it is not applied again in what takes their place. The gates must be closed, and answered. Whether there is anything in those homes is to be
// looked at after this: a write that arrives late, once its client's connection is cut, comes before the marker and is seen, or behind it and does not count.
func (s *Splitter) replaced(ctx context.Context, rec *catalog.Reshape, m *catalog.Map, parts []*partition.Part) ([]catalog.OldHome, error) {
	var replaced []catalog.OldHome
	times := map[string]*bson.Timestamp{}
	for _, p := range parts {
		if catalog.IsAbsentName(p.Physical) || m.Names(p.Backend, p.Physical) {
			continue
		}
		replaced = append(replaced, catalog.OldHome{Backend: p.Backend, Physical: p.Physical})
		times[p.Backend] = new(bson.Timestamp)
	}
	if len(replaced) == 0 {
		return nil, nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for id, at := range times {
		wg.Go(func() {
			t, err := s.mark(ctx, rec, id)
			mu.Lock()
			defer mu.Unlock()
			if *at = t; err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, retryable{failed}
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	for i := range replaced {
		replaced[i].Marker, replaced[i].FlippedAt = *times[replaced[i].Backend], now
	}
	return replaced, nil
}

// newest are old homes, those of the last change first, of which earlier ones are forgotten when they are too many.
func newest(replaced, before []catalog.OldHome) []catalog.OldHome {
	room := max(0, maxRemembered-len(replaced))
	return append(replaced, before[:min(len(before), room)]...)
}

// mark inserts a marker on a backend and returns its time; a standalone has neither.
func (s *Splitter) mark(ctx context.Context, rec *catalog.Reshape, backendID string) (bson.Timestamp, error) {
	b := s.cfg.Backends.Get(backendID)
	if b == nil {
		return bson.Timestamp{}, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", backendID)
	}
	if b.Kind() == backend.KindStandalone {
		return bson.Timestamp{}, nil
	}
	return member.BoardOf(b).Mark(ctx, bson.NewObjectID(), rec.ID, rec.Epoch)
}

// wholly makes old homes concern all positions: the key by which their ranges are meant is not the collection's any more, or may not stay it.
func wholly(old []catalog.OldHome) {
	for i := range old {
		old[i].Range = shardkey.Range{}
	}
}
