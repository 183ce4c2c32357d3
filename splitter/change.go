package splitter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/wire"
)

// patientTries is how many attempts wait for open transactions before one asks for them to be aborted.
const patientTries = 3

// changeLimit is how long a change of a map that copies nothing may take with all its attempts.
const changeLimit = time.Minute

// edit is a change of one namespace's map that copies nothing.
type edit struct {
	// m is the next map; its version and its reshape are filled in.
	m *catalog.Map
	// outputs are physical collections that it names and that make makes; they are dropped if m is not inserted.
	outputs []partition.Home
	make    func(context.Context) error
	// check looks, behind closed gates, whether the change may be made. May be nil.
	check func(context.Context) error
	// fresh says that the namespace never had a document: there is nothing on record of it.
	fresh bool
}

// change makes one change of ns's map through closed gates, in attempts: one that a proxy does not answer in time is burnt, and begun anew after a while. build
// says what is to be done with the collection as it is; nil for nothing.
func (s *Splitter) change(ctx context.Context, ns, kind string, build func(context.Context, *partition.Collection) (*edit, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, changeLimit, wire.Errorf(wire.LockTimeout, "the collection %s is too busy to change its map", ns))
	defer cancel()
	unlock, err := s.lock(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	for wait, try := s.cfg.Backoff, 1; ; wait, try = min(2*wait, 5*time.Second), try+1 {
		err := s.changeOnce(ctx, ns, kind, try, build)
		var again retryable
		if err == nil || !errors.As(err, &again) {
			return err
		}
		s.log.Warn().Err(err).Str("ns", ns).Str("kind", kind).Msg("a change of a map is begun anew")
		if perr := pause(ctx, wait); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// current returns ns as the newest map has it, whatever this process has heard of so far; nil for an unknown database.
func (s *Splitter) current(ctx context.Context, ns string) (*partition.Collection, error) {
	if err := s.cfg.Catalog.RefreshMap(ctx, ns); err != nil {
		return nil, err
	}
	return s.cfg.Table.View().Collection(ns), nil
}

func (s *Splitter) changeOnce(ctx context.Context, ns, kind string, try int, build func(context.Context, *partition.Collection) (*edit, error)) error {
	c, err := s.current(ctx, ns)
	if err != nil {
		return err
	}
	e, err := build(ctx, c)
	if err != nil || e == nil {
		return err
	}
	rec, err := s.record(ctx, ns, kind, homesOfParts(gated(c)), e.outputs)
	if err != nil {
		return err
	}
	kept, done := s.keep(ctx, rec, nil)
	defer done()
	err = s.runEdit(kept, rec, c, e, try)
	if err != nil {
		return s.undo(context.WithoutCancel(ctx), rec, err)
	}
	s.finish(context.WithoutCancel(ctx), rec)
	return nil
}

// gated are the parts whose gates a change of a collection's map closes.
func gated(c *partition.Collection) []*partition.Part {
	if c.Absent != nil {
		return []*partition.Part{c.Absent}
	}
	return c.Parts
}

// runEdit is a change from the record to the flip.
func (s *Splitter) runEdit(ctx context.Context, rec *catalog.Reshape, c *partition.Collection, e *edit, try int) error {
	if err := s.answerable(ctx, homesOfParts(gated(c))); err != nil {
		return err
	}
	if err := s.awaitGone(ctx, homesOfParts(gated(c))); err != nil {
		return retryable{err}
	}
	// Whoever had the namespace before may have changed it since it was looked at.
	now, err := s.current(ctx, c.NS)
	if err != nil {
		return retryable{err}
	}
	if versionOf(now) != versionOf(c) || !samePlace(now, c) {
		return retryable{errMapMoved(c.NS)}
	}
	if e.make != nil {
		if err := e.make(ctx); err != nil {
			return ifPassing(err)
		}
	}
	if err := s.identify(ctx, rec); err != nil {
		return retryable{err}
	}
	e.m.V, e.m.Reshape = versionOf(c)+1, rec.ID
	if err := s.closeGates(ctx, rec, e.m.V, gated(c), try); err != nil {
		return err
	}
	if err := s.primaryStands(ctx, c); err != nil {
		return err
	}
	// The marker first: what the check finds nothing of was not written before it, so no old home's record can answer for it.
	old, err := s.replaced(ctx, rec, e.m, gated(c))
	if err != nil {
		return err
	}
	if e.check != nil {
		if err := e.check(ctx); err != nil {
			return err
		}
	}
	if !e.fresh {
		e.m.Retired = newest(old, e.m.Retired)
	}
	// Whether the insert happened must be found out, whatever becomes of the request.
	err = s.owner().Flip(context.WithoutCancel(ctx), rec, e.m)
	if errors.Is(err, catalog.ErrMapExists) {
		return retryable{errMapMoved(c.NS)}
	}
	return err
}

// closeGates closes the gates of parts within the pause budget; an attempt that fails may be repeated.
func (s *Splitter) closeGates(ctx context.Context, rec *catalog.Reshape, ends int64, parts []*partition.Part, try int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PauseBudget, errors.New("the gates were closed for longer than the pause budget"))
	defer cancel()
	homes := map[string][]string{}
	for _, p := range parts {
		homes[p.Backend] = append(homes[p.Backend], p.Physical)
	}
	db, _ := catalog.SplitNS(rec.NS)
	if err := s.owner().Close(ctx, rec, ends, homes, protocol.Closing{NS: rec.NS, DB: db, Abort: try > patientTries}); err != nil {
		return retryable{err}
	}
	return nil
}

// primaryStands looks, behind closed gates, whether a namespace that is gated on its database's primary is gated on the right backend: no change of the
// primary may be under way, and none may have been made. A change of the primary looks for changes like this one; one of the two sees the other.
func (s *Splitter) primaryStands(ctx context.Context, c *partition.Collection) error {
	if c.Map != nil && c.Absent == nil {
		return nil
	}
	all, err := s.cfg.Catalog.ReshapesNow(ctx)
	if err != nil {
		return retryable{err}
	}
	for _, r := range all {
		if r.NS == c.DB && r.Phase != catalog.Retiring {
			return retryable{wire.Errorf(wire.ConflictingOperationInProgress, "the primary of database '%s' is being changed", c.DB)}
		}
	}
	m, err := s.cfg.Catalog.NewestMap(ctx, c.DB)
	if err != nil {
		return retryable{err}
	}
	if m != nil && m.Partitions[0].Backend != gated(c)[0].Backend {
		return retryable{wire.Errorf(wire.ConflictingOperationInProgress, "the primary of database '%s' was changed", c.DB)}
	}
	return nil
}

func versionOf(c *partition.Collection) int64 {
	if c == nil || c.Map == nil {
		return 0
	}
	return c.Map.V
}

func samePlace(a, b *partition.Collection) bool {
	return a != nil && b != nil && (a.Map != nil || a.Parts[0].Home == b.Parts[0].Home)
}

// undo takes back what a change made that was not inserted, and returns why it was not. Its closings are ended first, by the version that they name. If
// the change was made after all it is finished.
func (s *Splitter) undo(ctx context.Context, rec *catalog.Reshape, why error) error {
	o := s.owner()
	if rec.Phase == catalog.Closing {
		if err := o.Burn(ctx, rec.NS, rec.EndV, firstInput(rec)); err != nil {
			return errors.Join(why, err)
		}
		flipped, err := o.Flipped(ctx, rec)
		switch {
		case err != nil:
			return errors.Join(why, err) // neither side may be dropped: whoever takes the record over knows
		case flipped:
			s.finish(ctx, rec)
			return nil
		}
	}
	if err := s.clean(ctx, rec); err != nil {
		s.log.Warn().Err(err).Str("ns", rec.NS).Str("kind", rec.Kind).Msg("what a change made that was given up is left to be taken over")
	}
	return why
}

// clean drops the outputs of a change that was not made, and everything that tells of it.
func (s *Splitter) clean(ctx context.Context, rec *catalog.Reshape) error {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	if err := s.owner().Unclose(ctx, rec); err != nil {
		return err
	}
	if err := s.owner().Forget(ctx, rec); err != nil {
		return err
	}
	if err := s.dropRecorded(ctx, rec, rec.Outputs, abandoned); err != nil {
		return err
	}
	return s.cfg.Catalog.DeleteReshape(ctx, rec)
}

func firstInput(rec *catalog.Reshape) catalog.RecordedHome {
	if len(rec.Inputs) == 0 {
		return catalog.RecordedHome{}
	}
	return rec.Inputs[0]
}

func errMapMoved(ns string) error {
	return wire.Errorf(wire.ConflictingOperationInProgress, "the map of %s was changed by another operation meanwhile; try again", ns)
}

func homesOf(db string, parts []catalog.Partition) []partition.Home {
	homes := make([]partition.Home, len(parts))
	for i, p := range parts {
		homes[i] = partition.Home{Backend: p.Backend, DB: db, Physical: p.Physical}
	}
	return homes
}

func homesOfParts(parts []*partition.Part) []partition.Home {
	homes := make([]partition.Home, len(parts))
	for i, p := range parts {
		homes[i] = p.Home
	}
	return homes
}

// dropRecorded drops physical collections of a change that is over, each on evidence (see evidence.go).
// What has none is left alone and reported.
func (s *Splitter) dropRecorded(ctx context.Context, rec *catalog.Reshape, homes []catalog.RecordedHome, from []member.State) error {
	db, _ := catalog.SplitNS(rec.NS)
	var errs []error
	for _, r := range homes {
		h := partition.Home{Backend: r.Backend, DB: db, Physical: r.Physical}
		err := s.dropIfUnnamed(ctx, rec, h, from)
		if errors.Is(err, errNoEvidence) {
			s.log.Warn().Str("backend", h.Backend).Str("db", h.DB).Str("physical", h.Physical).Str("kind", rec.Kind).Msg("a collection that a change is done with is left alone: nothing on record says that it may be dropped")
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("on backend %s: %w", h.Backend, err))
		}
	}
	return errors.Join(errs...)
}

// dropIfUnnamed drops a physical collection unless the newest map of any namespace names it. A plain name that belongs to a namespace without
// a map is the collection itself.
func (s *Splitter) dropIfUnnamed(ctx context.Context, rec *catalog.Reshape, h partition.Home, from []member.State) error {
	if catalog.IsAbsentName(h.Physical) || h.Physical == catalog.PrimaryHome {
		return nil // nothing is there
	}
	if !catalog.IsPhysicalName(h.Physical) {
		m, err := s.cfg.Catalog.NewestMap(ctx, h.DB+"."+h.Physical)
		if err != nil || m == nil {
			return err
		}
	}
	return s.dropOnEvidence(ctx, h, rec.ID, from)
}

// dropLimit is how long one try of a drop may take. It changes names and waits for locks; what it is about can be tried again.
const dropLimit = 20 * time.Second

// majority is the write concern of everything that the proxy writes on its own account.
var majority = bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
