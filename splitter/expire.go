package splitter

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// expireLike gives the indexes of a flipped reshape's outputs the time after which documents expire, as the inputs' have it: outputs are made without. One that has got such a time
// meanwhile keeps it. It may be done again; until it is done no DDL command of the namespace runs (awaitSettled), so that none is undone by it.
func (s *Splitter) expireLike(ctx context.Context, rec *catalog.Reshape) error {
	if len(rec.Inputs) == 0 || len(rec.Outputs) == 0 || s.cfg.Backends.Get(rec.Inputs[0].Backend) == nil {
		return nil
	}
	like, err := s.indexesOf(ctx, rec.NS, rec.Inputs[0])
	if err != nil {
		return err
	}
	for _, ix := range like {
		after := field(ix, "expireAfterSeconds")
		if after == nil {
			continue
		}
		for _, h := range rec.Outputs {
			if err := s.expire(ctx, rec.NS, h, field(ix, "name"), after); err != nil {
				return err
			}
		}
	}
	return nil
}

// expire gives the index of that name at h an expiry if it is there and has none. An error says that it is not known whether it has one.
func (s *Splitter) expire(ctx context.Context, ns string, h catalog.RecordedHome, name, after any) error {
	have, err := s.indexesOf(ctx, ns, h)
	if err != nil {
		return err
	}
	for _, ix := range have {
		if field(ix, "name") != name || field(ix, "expireAfterSeconds") != nil {
			continue
		}
		_, err := s.run(ctx, recordedHome(ns, h), bson.D{{Key: "collMod", Value: h.Physical},
			{Key: "index", Value: bson.D{{Key: "name", Value: name}, {Key: "expireAfterSeconds", Value: after}}}, majority})
		var we *wire.Error
		if errors.As(err, &we) && !unreached(we) {
			s.log.Warn().Err(err).Str("ns", ns).Str("backend", h.Backend).Str("physical", h.Physical).Msg("an index could not be given its expiry; collMod does it")
			err = nil // it would be refused for good
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// indexesOf lists the indexes of a recorded home but the one on _id; none for what is not there, or is a view.
func (s *Splitter) indexesOf(ctx context.Context, ns string, h catalog.RecordedHome) ([]bson.D, error) {
	all, err := s.indexes(ctx, recordedHome(ns, h))
	var we *wire.Error
	if errors.As(err, &we) && (we.Code == wire.NamespaceNotFound || we.Code == wire.CommandNotSupportedOnView) {
		return nil, nil
	}
	return all, err
}

func recordedHome(ns string, h catalog.RecordedHome) partition.Home {
	db, _ := catalog.SplitNS(ns)
	return partition.Home{Backend: h.Backend, DB: db, Physical: h.Physical}
}

// awaitSettled waits, if the newest map of ns is a flip of which not all has been done that follows at once, until it has: by its owner, or by who takes it over.
func (s *Splitter) awaitSettled(ctx context.Context, ns string) error {
	c := s.cfg.Table.View().Collection(ns)
	if c == nil || c.Map == nil || c.Map.Reshape.IsZero() {
		return nil
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		all, err := s.cfg.Catalog.Reshapes(ctx)
		if err != nil {
			return err
		}
		open := false
		for i := range all {
			open = open || all[i].ID == c.Map.Reshape && all[i].Phase == catalog.Closing
		}
		if !open {
			return nil
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}
