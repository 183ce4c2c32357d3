package splitter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
)

// flip closes the gates of the inputs, applies what is left, and inserts the new map. When that does not work within the pause budget
// the version is burnt, which opens the gates.
func (r *reshape) flip(ctx context.Context) error {
	m := r.newMap()
	began := time.Now()
	budget, cancel := context.WithTimeoutCause(ctx, r.s.cfg.PauseBudget, errors.New("the gates were closed for longer than the pause budget"))
	defer cancel()
	err := r.closeAndMark(budget, m)
	if err == nil {
		// Whether the insert happened must be found out, whatever the budget.
		err = r.s.owner().Flip(context.WithoutCancel(ctx), r.rec, m)
	} else if r.rec.Phase == catalog.Closing {
		// At once: the gates are closed.
		if berr := r.s.owner().Burn(context.WithoutCancel(ctx), r.rec.NS, m.V, firstInput(r.rec)); berr != nil {
			return errors.Join(err, berr)
		}
	}
	r.mu.Lock()
	r.pause = time.Since(began)
	r.mu.Unlock()
	if err != nil {
		if budget.Err() != nil && ctx.Err() == nil {
			err = errors.Join(context.Cause(budget), err) // the driver's words for it help nobody
		}
		var again retryable
		if !errors.As(err, &again) && ctx.Err() == nil {
			err = retryable{err}
		}
		return err
	}
	r.s.log.Info().Str("ns", r.coll.NS).Str("kind", r.kind).Dur("pause", r.pause).Int64("v", m.V).Msg("flip")
	return nil
}

// newMap is the map that the flip inserts, but for birth and marker times.
func (r *reshape) newMap() *catalog.Map {
	m := r.s.nextMap(r.coll)
	m.Key, m.Hash, m.Reshape = r.coll.Map.Key, r.coll.Map.Hash, r.rec.ID
	put := false
	for i, p := range r.coll.Map.Partitions {
		if !r.isInput(r.coll.Parts[i].Home) {
			m.Partitions = append(m.Partitions, p)
			continue
		}
		if put {
			continue
		}
		put = true
		for _, o := range r.outputs {
			m.Partitions = append(m.Partitions, catalog.Partition{Range: o.rg, Backend: o.Backend, Physical: o.Physical})
		}
	}
	return m
}

func (r *reshape) isInput(h partition.Home) bool {
	for _, p := range r.inputs {
		if p.Home == h {
			return true
		}
	}
	return false
}

// closeAndMark does all that is done while the gates are closed.
func (r *reshape) closeAndMark(ctx context.Context, m *catalog.Map) error {
	if err := r.close(ctx, m.V, protocol.Closing{}); err != nil {
		return err
	}
	same := make(chan error, 1)
	go func() { same <- r.sameIndexes(ctx) }()
	last := &markers{r: r}
	_, err := protocol.Mark(ctx, []protocol.Stream{last})
	if differ := <-same; err == nil {
		err = differ
	}
	if err == nil {
		err = r.verifyRestless(ctx)
	}
	if err != nil {
		return err
	}
	return r.stamp(ctx, m, last.times)
}

// close closes the gates of the inputs until version ends.
func (r *reshape) close(ctx context.Context, ends int64, like protocol.Closing) error {
	homes := map[string][]string{}
	for _, p := range r.inputs {
		homes[p.Backend] = append(homes[p.Backend], p.Physical)
	}
	like.NS, like.DB, like.Abort = r.coll.NS, r.coll.DB, r.try > patientTries
	if err := r.s.owner().Close(ctx, r.rec, ends, homes, like); err != nil {
		return retryable{err}
	}
	return nil
}

// sameIndexes compares indexes and options of inputs and outputs: DDL that came to the inputs
// meanwhile, or an output that is not what was made, makes the attempt begin anew. When documents
// expire may differ; the outputs' indexes get that after the flip.
func (r *reshape) sameIndexes(ctx context.Context) error {
	checks := make([]func() error, 0, len(r.inputs)+len(r.outputs))
	for _, p := range r.inputs {
		checks = append(checks, func() error {
			now, err := r.s.inspectHome(ctx, p.Home)
			if err == nil && r.info.differs(now) {
				err = errors.New("indexes or options of the collection changed while the gates were being closed")
			}
			return err
		})
	}
	for _, o := range r.outputs {
		checks = append(checks, func() error { return r.stands(ctx, o) })
	}
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks { // at once: the gates are closed
		wg.Go(func() { errs[i] = check() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return retryable{err}
	}
	return nil
}

// stands compares an output with what was made, and with the inputs.
func (r *reshape) stands(ctx context.Context, o output) error {
	now, err := r.s.inspectHome(ctx, o.Home)
	switch {
	case err != nil:
		return err
	case !now.sameCollection(o.made):
		return fmt.Errorf("'%s.%s' on backend '%s' is not the collection that was made for the copy", o.DB, o.Physical, o.Backend)
	}
	if what := now.lacks(r.info, r.coll.Key); what != "" {
		return fmt.Errorf("'%s.%s' on backend '%s' is not like the collection that was copied: %s", o.DB, o.Physical, o.Backend, what)
	}
	return nil
}

// stamp sets the outputs' birth times and remembers the inputs with their last markers' times.
func (r *reshape) stamp(ctx context.Context, m *catalog.Map, markers map[string]bson.Timestamp) error {
	births := map[string]bson.Timestamp{}
	for _, o := range r.outputs {
		if _, known := births[o.Backend]; known {
			continue
		}
		body, err := r.s.cfg.Backends.Get(o.Backend).Run(ctx, "admin", bson.D{{Key: "ping", Value: 1}})
		if err != nil {
			return retryable{err}
		}
		var at struct {
			T bson.Timestamp `bson:"operationTime"`
		}
		_ = bson.Unmarshal(body, &at) // a standalone has none
		births[o.Backend] = at.T
	}
	for i := range m.Partitions {
		for _, o := range r.outputs {
			if m.Partitions[i].Physical == o.Physical && m.Partitions[i].Backend == o.Backend {
				m.Partitions[i].Birth = births[o.Backend]
			}
		}
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, p := range r.inputs {
		m.Retired = append([]catalog.OldHome{{Range: p.Range, Backend: p.Backend, Physical: p.Physical, Marker: markers[p.Backend], FlippedAt: now}}, m.Retired...)
	}
	return nil
}

// retire is what is left after the flip: what finish does.
func (r *reshape) retire(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	r.history(ctx)
	r.s.finish(ctx, r.rec)
	return nil
}

func homesOfOutputs(outputs []output) []partition.Home {
	homes := make([]partition.Home, len(outputs))
	for i, o := range outputs {
		homes[i] = o.Home
	}
	return homes
}

// history writes what happened for people to read.
func (r *reshape) history(ctx context.Context) {
	details := bson.D{{Key: "reshape", Value: r.rec.ID}, {Key: "note", Value: "success"}, {Key: "pauseMillis", Value: r.pause.Milliseconds()},
		{Key: "millis", Value: r.sinceStart().Milliseconds()}, {Key: "phaseMillis", Value: r.took}, {Key: "documents", Value: r.docs}, {Key: "bytes", Value: r.bytes},
		{Key: "min", Value: r.inputs[0].Range.Lo.Int64()}, {Key: "from", Value: r.inputs[0].Backend}, {Key: "to", Value: r.outputs[len(r.outputs)-1].Backend}}
	what := changeName(r.kind)
	if r.kind == "move" {
		r.s.cfg.Catalog.AppendChange(ctx, r.s.cfg.Server, what+".from", r.coll.NS, details)
		what += ".commit"
	}
	r.s.cfg.Catalog.AppendChange(ctx, r.s.cfg.Server, what, r.coll.NS, details)
}
