package splitter

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// keepMaps is how long versions of maps are kept that are not the newest: longer than any process is likely to stall.
const keepMaps = 2 * time.Hour

// trimEvery is how often those are looked for.
const trimEvery = time.Hour

// Run looks at sizes until ctx ends: it splits partitions that are over their limit, one at a time, and moves everything off backends that
// are being drained. It does none of that while the balancer is stopped. It also ends what other processes, dead ones, began.
func (s *Splitter) Run(ctx context.Context) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { s.takeOvers(ctx) })
	beside.Go(func() { s.sweeps(ctx) })
	if s.cfg.MonitorEvery < 0 {
		<-ctx.Done()
		return
	}
	t := time.NewTicker(s.cfg.MonitorEvery)
	defer t.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-trim.C:
			if err := s.cfg.Catalog.TrimMaps(ctx, time.Now().Add(-keepMaps)); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("old versions of maps are not trimmed")
			}
		case <-t.C:
			if !s.cfg.Catalog.Snapshot().BalancerStopped {
				s.Drain(ctx)
			}
			if s.splits() {
				s.splitFull(ctx)
			}
		}
	}
}

// splits reports whether partitions are to be split automatically.
func (s *Splitter) splits() bool {
	snap := s.cfg.Catalog.Snapshot()
	return !snap.BalancerStopped && snap.AutoSplit != catalog.SwitchOff
}

// splitFull splits what is over its limit until nothing is, or nothing can be.
func (s *Splitter) splitFull(ctx context.Context) {
	s.forgetReplaced()
	for again := true; again && ctx.Err() == nil; {
		again = false
		s.cfg.Table.View().Mapped(func(c *partition.Collection) bool {
			if !c.Sharded() || s.cfg.Catalog.Snapshot().Collections[c.NS].NoBalance {
				return true
			}
			for _, p := range c.Parts {
				if ctx.Err() != nil || !s.splits() {
					return false
				}
				if s.splitIfFull(ctx, c, p) {
					again = true
					break // the collection's other parts are looked at with its new map
				}
			}
			return true
		})
	}
}

// splitIfFull splits one partition if it is over its limit, and reports whether it was split.
func (s *Splitter) splitIfFull(ctx context.Context, c *partition.Collection, p *partition.Part) bool {
	size, err := s.size(ctx, p.Home)
	limit := s.MaxPartitionBytes(c.NS)
	if err != nil || size <= limit || !s.mayBeSplit(ctx, c, p, size) {
		return false
	}
	at, err := s.median(ctx, c, p)
	if err == nil {
		err = s.splitTo(ctx, c.NS, at, &p.Home)
	}
	var we *wire.Error
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil:
	case errors.Is(err, errReplaced): // by another proxy, which saw the same
		return true
	case errors.As(err, &we) && we.Code == wire.CannotSplit:
		if !s.cannotSplit(ctx, c, p, size) {
			return false
		}
		s.log.Warn().Str("ns", c.NS).Str("backend", p.Backend).Int64("bytes", size).Int64("limit", limit).Msg("a partition is over its limit and cannot be split: all its documents have one shard key value")
		s.cfg.Catalog.AppendChange(ctx, s.cfg.Server, "split.error", c.NS, bson.D{{Key: "errmsg", Value: we.Message}, {Key: "bytes", Value: size}, {Key: "note", Value: "aborted"}})
	default:
		s.log.Warn().Err(err).Str("ns", c.NS).Msg("a full partition was not split; it is tried again")
	}
	return false
}

// size is collStats.size of a physical collection, in bytes.
func (s *Splitter) size(ctx context.Context, h partition.Home) (int64, error) {
	body, err := s.run(ctx, h, bson.D{{Key: "collStats", Value: h.Physical}})
	if err != nil {
		return 0, err
	}
	var st struct {
		Size int64 `bson:"size"`
	}
	err = bson.Unmarshal(body, &st)
	return st.Size, err
}

// Drain moves partitions off backends that removeShard has named, one at a time, and notes since when one is empty. A database's primary stays
// until movePrimary moves it. Run calls it.
func (s *Splitter) Drain(ctx context.Context) {
	for id, b := range s.cfg.Catalog.Snapshot().Backends {
		if !b.Draining {
			continue
		}
		s.cfg.Table.View().Mapped(func(c *partition.Collection) bool {
			for _, p := range c.Parts {
				if p.Backend == id && ctx.Err() == nil && !s.cfg.Catalog.Snapshot().BalancerStopped {
					s.moveOff(ctx, c, p)
				}
			}
			return true
		})
		empty := s.isEmpty(id)
		if empty != b.DrainedAt.IsZero() || ctx.Err() != nil {
			continue
		}
		at := time.Time{}
		if empty {
			at = time.Now().UTC()
		}
		if err := s.cfg.Catalog.SetDrained(ctx, id, at); err != nil {
			s.log.Warn().Err(err).Str("backend", id).Msg("not noted whether the backend is empty")
		}
	}
}

// moveOff moves one partition off its draining backend.
func (s *Splitter) moveOff(ctx context.Context, c *partition.Collection, p *partition.Part) {
	var err error
	if c.Sharded() {
		var to string
		if to, err = s.LeastLoaded(ctx); err == nil {
			err = s.Move(ctx, c.NS, p.Range, to)
		}
	} else if d := s.cfg.Catalog.Snapshot().Databases[c.DB]; d != nil && d.Primary != p.Backend {
		err = s.moveUnsharded(ctx, c.NS, d.Primary)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn().Err(err).Str("ns", c.NS).Str("backend", p.Backend).Msg("a partition could not be moved off a draining backend yet")
	}
}

// isEmpty reports whether no map names a backend and no database has it as its primary.
func (s *Splitter) isEmpty(id string) bool {
	snap := s.cfg.Catalog.Snapshot()
	for _, m := range snap.Maps {
		for _, p := range m.Partitions {
			if p.Backend == id {
				return false
			}
		}
	}
	for _, d := range snap.Databases {
		if d.Primary == id {
			return false
		}
	}
	return true
}
