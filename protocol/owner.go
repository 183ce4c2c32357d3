package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
)

// Owner does what the owner of a change of a map does, one step after the other. Its fields are used as they are; it keeps no state: that is in
// the record.
type Owner struct {
	Maps    Maps
	Records Records
	// Board is a backend's; nil when the backend is not part of the fleet.
	Board func(backend string) Board
	// Pause waits between two looks at what others are to write; try counts from 0. It returns an error when the waiting is to end.
	Pause func(ctx context.Context, try int) error
	// Retry waits before what must not be given up is tried again; it returns an error when this process ends.
	Retry func(ctx context.Context, try int, why error) error
}

// Close closes the gates of homes until version ends, in this order: the record says so, then the closings are written, then the instances are read, all of
// which must answer. homes are physical names by backend; a backend without names is one where a database is closed. When Close fails the version must be burnt.
func (o *Owner) Close(ctx context.Context, rec *catalog.Reshape, ends int64, homes map[string][]string, like Closing) error {
	closings := map[string]Closing{}
	var recorded []catalog.RecordedClosing
	for _, backend := range sortedKeys(homes) {
		c := like
		c.ID, c.Reshape, c.Epoch, c.Ends, c.Physical = bson.NewObjectID(), rec.ID, rec.Epoch, ends, homes[backend]
		closings[backend] = c
		recorded = append(recorded, catalog.RecordedClosing{Backend: backend, ID: c.ID})
	}
	// A successor that finds the record closing burns the version it names, whether or not it sees a closing.
	err := o.Records.SwapReshape(ctx, rec, func(n *catalog.Reshape) {
		n.Phase, n.EndV, n.Closings = catalog.Closing, ends, append(slices.Clone(n.Closings), recorded...)
	})
	if err != nil {
		return err
	}
	for _, rc := range recorded {
		b := o.Board(rc.Backend)
		if b == nil {
			return fmt.Errorf("%w: %s", ErrUnreachable, rc.Backend)
		}
		if err := b.PutClosing(ctx, closings[rc.Backend]); err != nil {
			return err
		}
	}
	for _, rc := range recorded {
		if err := AwaitAnswers(ctx, o.Board(rc.Backend), rc.ID, o.Pause); err != nil {
			return err
		}
	}
	return nil
}

// Mark inserts markers on each stream's backend until one has nothing before it, and returns the times of those last ones. Only they count: what an
// earlier one showed may have been written by a request whose repetition the old home would answer.
func Mark(ctx context.Context, streams []Stream) ([]bson.Timestamp, error) {
	times := make([]bson.Timestamp, len(streams))
	for i, s := range streams {
		for {
			before, at, err := s.Mark(ctx)
			if err != nil {
				return nil, err
			}
			if before == 0 {
				times[i] = at
				break
			}
		}
	}
	return times, nil
}

// Flip inserts m, which must carry rec's id. When that fails, or is not answered, the version is burnt, and what stands at it decides: nil says that it is m.
// It does not return before some map stands at the version, unless this process ends.
func (o *Owner) Flip(ctx context.Context, rec *catalog.Reshape, m *catalog.Map) error {
	err := o.Maps.InsertMap(ctx, m)
	if err == nil {
		return nil
	}
	if berr := o.Burn(ctx, m.NS, m.V, firstHome(rec)); berr != nil {
		return errors.Join(err, berr)
	}
	flipped, ferr := o.Flipped(ctx, rec)
	switch {
	case ferr != nil:
		return errors.Join(err, ferr)
	case flipped:
		return nil
	}
	return err
}

// Burn sees to it that version v of ns's map exists: as a map with the newest one's partitions unless somebody was faster. Only that ends a closing. It
// goes on until it is known, or this process ends. home is where the closing stands: a namespace that has no map yet lives there as it is.
func (o *Owner) Burn(ctx context.Context, ns string, v int64, home catalog.RecordedHome) error {
	for try := 0; ; try++ {
		err := o.burn(ctx, ns, v, home)
		if err == nil {
			return nil
		}
		if rerr := o.Retry(ctx, try, err); rerr != nil {
			return fmt.Errorf("the closing of %s is left open for another proxy or the next start: %w", ns, errors.Join(rerr, err))
		}
	}
}

func (o *Owner) burn(ctx context.Context, ns string, v int64, home catalog.RecordedHome) error {
	newest, err := o.Maps.NewestMap(ctx, ns)
	if err != nil {
		return err
	}
	if newest != nil && newest.V >= v {
		return nil
	}
	err = o.Maps.InsertMap(ctx, Burnt(ns, v, newest, home))
	if errors.Is(err, catalog.ErrMapExists) {
		return nil
	}
	return err
}

// Burnt is version v of ns with nothing changed: the newest map's partitions, or home's if there is no map yet.
func Burnt(ns string, v int64, newest *catalog.Map, home catalog.RecordedHome) *catalog.Map {
	if newest == nil {
		return &catalog.Map{NS: ns, V: v, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(), Burnt: true,
			Partitions: []catalog.Partition{{Backend: home.Backend, Physical: home.Physical}}}
	}
	m := *newest
	m.V, m.Burnt, m.Reshape, m.Created = v, true, bson.NilObjectID, time.Time{}
	return &m
}

// firstHome is where the namespace of a record lives if it has no map yet.
func firstHome(rec *catalog.Reshape) catalog.RecordedHome {
	if len(rec.Inputs) == 0 {
		return catalog.RecordedHome{}
	}
	return rec.Inputs[0]
}

// Flipped reports whether the version that ends rec's closing is rec's own map. No map may come to stand at it later: whoever asks has burnt it.
func (o *Owner) Flipped(ctx context.Context, rec *catalog.Reshape) (bool, error) {
	if rec.EndV == 0 {
		return false, nil
	}
	for try := 0; ; try++ {
		m, err := o.Maps.MapAt(ctx, rec.NS, rec.EndV)
		if err == nil {
			return m != nil && m.Reshape == rec.ID, nil
		}
		if rerr := o.Retry(ctx, try, err); rerr != nil {
			return false, errors.Join(rerr, err)
		}
	}
}

// Unclose takes rec's closings off the backends. A version that ends them must exist; after a flip the floors must have been raised, since who joins later
// learns from a floor what it would have learnt from the closing.
func (o *Owner) Unclose(ctx context.Context, rec *catalog.Reshape) error {
	for _, rc := range rec.Closings {
		b := o.Board(rc.Backend)
		if b == nil {
			continue // it has left the fleet, and nothing is on it any more
		}
		if err := b.DropClosing(ctx, rc.ID); err != nil {
			return err
		}
	}
	return nil
}

// RaiseFloors makes the version that ends rec's closings the lowest that may be used on the backends where they stand.
func (o *Owner) RaiseFloors(ctx context.Context, rec *catalog.Reshape) error {
	for _, rc := range rec.Closings {
		if b := o.Board(rc.Backend); b != nil {
			if err := b.RaiseFloor(ctx, rec.NS, rec.EndV); err != nil {
				return err
			}
		}
	}
	return nil
}

// Release waits until no instance uses what rec's change replaced any more, and forgets the answers and markers.
func (o *Owner) Release(ctx context.Context, rec *catalog.Reshape) error {
	for _, rc := range rec.Closings {
		if b := o.Board(rc.Backend); b != nil {
			if err := AwaitReleased(ctx, b, rc.ID, o.Pause); err != nil {
				return err
			}
		}
	}
	return o.Forget(ctx, rec)
}

// Forget removes answers and markers of rec from the backends. Markers may be where no gate was closed, too: the owner asks with them how far a stream is. Those are left where
// that backend cannot be reached: nothing but a sweep waits for them to go.
func (o *Owner) Forget(ctx context.Context, rec *catalog.Reshape) error {
	closed := map[string]bool{}
	for _, rc := range rec.Closings {
		closed[rc.Backend] = true
		if b := o.Board(rc.Backend); b != nil {
			if err := b.Forget(ctx, rec.ID, rc.ID); err != nil {
				return err
			}
		}
	}
	for _, in := range rec.Inputs {
		if b := o.Board(in.Backend); b != nil && !closed[in.Backend] {
			closed[in.Backend] = true
			_ = b.Forget(ctx, rec.ID, ID{})
		}
	}
	return nil
}

// TakeOver makes owner the owner of a record whose owner has not renewed it, and ends its closing: the version that the record names is burnt
// whether or not a closing is to be seen, since the former owner may write one yet. flipped says that its own map stands there: what follows a
// flip is to be done. Otherwise its outputs are to be dropped, and a new attempt begins with fresh ones.
func (o *Owner) TakeOver(ctx context.Context, rec *catalog.Reshape, owner bson.ObjectID, server string) (flipped bool, err error) {
	err = o.Records.SwapReshape(ctx, rec, func(n *catalog.Reshape) {
		n.Owner, n.Server, n.Epoch, n.Renewals = owner, server, n.Epoch+1, 0
	})
	if err != nil {
		return false, err
	}
	switch rec.Phase {
	case catalog.Retiring:
		return true, nil
	case catalog.Closing:
		if err := o.Burn(ctx, rec.NS, rec.EndV, firstHome(rec)); err != nil {
			return false, err
		}
		return o.Flipped(ctx, rec)
	}
	return false, nil
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
