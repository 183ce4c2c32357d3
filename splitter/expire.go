package splitter

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// expireLike gives the indexes of a flipped reshape's outputs the time after which documents expire, as the inputs' have it: outputs are made without. One that has got such a time
// meanwhile keeps it. It may be done again; until it is done no DDL command of the namespace runs (awaitSettled), so that none is undone by it.
func (s *Splitter) expireLike(ctx context.Context, rec *catalog.Reshape) error {
	if len(rec.Inputs) == 0 || len(rec.Outputs) == 0 || !copies(rec.Kind) || s.cfg.Backends.Get(rec.Inputs[0].Backend) == nil {
		return nil
	}
	all, err := s.indexesOf(ctx, rec.NS, rec.Inputs[0])
	if err != nil {
		return err
	}
	like := map[any]any{}
	for _, ix := range all {
		if after := field(ix, "expireAfterSeconds"); after != nil {
			like[field(ix, "name")] = after
		}
	}
	if len(like) == 0 {
		return nil
	}
	for _, h := range rec.Outputs {
		if err := s.expire(ctx, rec.NS, h, like); err != nil {
			return err
		}
	}
	return nil
}

// copies reports whether changes of that kind fill outputs that are made without an expiry.
func copies(kind string) bool { return kind == "split" || kind == "move" || kind == "merge" }

// expire gives the indexes at h that have no expiry the one that like has for their names. An error says that it is not known whether they have it.
func (s *Splitter) expire(ctx context.Context, ns string, h catalog.RecordedHome, like map[any]any) error {
	have, err := s.indexesOf(ctx, ns, h)
	if err != nil {
		return err
	}
	for _, ix := range have {
		name := field(ix, "name")
		after := like[name]
		if after == nil || field(ix, "expireAfterSeconds") != nil {
			continue
		}
		err := s.changeHome(ctx, recordedHome(ns, h), bson.D{{Key: "collMod", Value: h.Physical},
			{Key: "index", Value: bson.D{{Key: "name", Value: name}, {Key: "expireAfterSeconds", Value: after}}}}, 0)
		var we *wire.Error
		if errors.As(err, &we) && !passing(err) && we.Code != wire.LockTimeout && we.Code != wire.Interrupted {
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

const (
	// settleWait is how long a DDL command waits for what follows a flip, settleRead for the catalog if it can do without.
	settleWait = 30 * time.Second
	settleRead = 2 * time.Second
)

// awaitSettled waits, if the newest map of ns is a flip of which not all has been done that follows at once, until it has: by its owner, or by who takes it over. With
// lenient a catalog that cannot be reached is no error.
func (s *Splitter) awaitSettled(ctx context.Context, ns string, lenient bool) error {
	c := s.cfg.Table.View().Collection(ns)
	if c == nil || c.Map == nil || c.Map.Reshape.IsZero() {
		return nil
	}
	if id, ok := s.settled.Load(ns); ok && id == c.Map.Reshape {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settleWait, wire.Errorf(wire.LockTimeout,
		"the last change of the partitions of %s is not finished yet: a backend that it concerns may be out of reach; try again later", ns))
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		settled, err := s.isSettled(ctx, c.Map.Reshape, lenient)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && lenient:
			return nil
		case err != nil:
			return err
		case settled:
			s.settled.Store(ns, c.Map.Reshape)
			return nil
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func (s *Splitter) isSettled(ctx context.Context, id catalog.ID, lenient bool) (bool, error) {
	if lenient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settleRead)
		defer cancel()
	}
	all, err := s.cfg.Catalog.Reshapes(ctx)
	return !slices.ContainsFunc(all, func(r catalog.Reshape) bool { return r.ID == id && r.Phase != catalog.Retiring }), err
}
