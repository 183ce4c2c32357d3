package splitter

import (
	"context"
	"errors"
	"reflect"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
)

// flip closes the gates of the inputs, applies what is left, and inserts the new map. When that does not work within the pause budget
// the version is burnt, which opens the gates.
func (r *reshape) flip(ctx context.Context) error {
	m := r.newMap()
	if err := r.s.cfg.Catalog.SwapReshape(ctx, &r.rec, func(n *catalog.Reshape) { n.Phase, n.EndV = catalog.Closing, m.V }); err != nil {
		return err
	}
	began := time.Now()
	budget, cancel := context.WithTimeoutCause(ctx, r.s.cfg.PauseBudget, errors.New("the gates were closed for longer than the pause budget"))
	defer cancel()
	err := r.closeAndMark(budget, m)
	if err == nil {
		// Whether the insert happened must be found out, whatever the budget.
		err = r.s.cfg.Catalog.InsertMap(context.WithoutCancel(ctx), m)
	}
	if err != nil {
		if berr := r.s.burn(context.WithoutCancel(ctx), r.coll, m.V); berr != nil {
			return errors.Join(err, berr)
		}
		known, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if flipped, ferr := r.flipped(known); ferr == nil && flipped {
			err = nil
		}
	}
	r.mu.Lock()
	r.pause = time.Since(began)
	r.mu.Unlock()
	if err != nil {
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
	m := nextMap(r.coll)
	m.Key, m.Hash, m.Reshape = r.coll.Map.Key, r.coll.Map.Hash, r.rec.ID
	m.Retired = nil
	for _, o := range r.coll.Map.Retired {
		if time.Since(o.FlippedAt) < r.s.cfg.RetryWindow {
			m.Retired = append(m.Retired, o)
		}
	}
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
	if err := r.close(ctx, m.V, false); err != nil {
		return err
	}
	same := make(chan error, 1)
	go func() { same <- r.sameIndexes(ctx) }()
	times, err := r.mark(ctx)
	if differ := <-same; err == nil {
		err = differ
	}
	if err == nil {
		err = r.verifyRestless(ctx)
	}
	if err != nil {
		return err
	}
	return r.stamp(ctx, m, times)
}

// close writes the closing on each input's backend, then reads the instances there, and waits until all that are not gone have answered.
func (r *reshape) close(ctx context.Context, ends int64, writesOnly bool) error {
	by := map[string]*member.Closing{}
	for _, p := range r.inputs {
		c := by[p.Backend]
		if c == nil {
			c = &member.Closing{ID: bson.NewObjectID(), NS: r.coll.NS, Ends: ends, Reshape: r.rec.ID, Epoch: r.rec.Epoch, DB: p.DB, WritesOnly: writesOnly}
			by[p.Backend] = c
		}
		c.Physical = append(c.Physical, p.Physical)
	}
	for id, c := range by {
		if _, err := member.DB(r.s.cfg.Backends.Get(id)).Collection(member.Closings).InsertOne(ctx, c); err != nil {
			return retryable{err}
		}
	}
	for id, c := range by {
		if err := r.answered(ctx, id, c.ID); err != nil {
			return retryable{err}
		}
	}
	return nil
}

// answered waits for the answers to one closing.
func (r *reshape) answered(ctx context.Context, backendID string, closing bson.ObjectID) error {
	db := member.DB(r.s.cfg.Backends.Get(backendID))
	for wait := time.Millisecond; ; wait = min(2*wait, 10*time.Millisecond) {
		var live []member.Instance
		cur, err := db.Collection(member.Instances).Find(ctx, bson.D{{Key: "gone", Value: false}})
		if err == nil {
			err = cur.All(ctx, &live)
		}
		if err != nil {
			return err
		}
		n, err := db.Collection(member.Answers).CountDocuments(ctx, bson.D{
			{Key: "_id.closing", Value: closing}, {Key: "_id.instance", Value: bson.D{{Key: "$in", Value: instanceIDs(live)}}}})
		if err != nil {
			return err
		}
		if int(n) == len(live) {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), errors.New("proxies that have not answered: "+proxies(live)))
		}
	}
}

func instanceIDs(live []member.Instance) bson.A {
	ids := bson.A{}
	for _, in := range live {
		ids = append(ids, in.ID)
	}
	return ids
}

func proxies(live []member.Instance) string {
	s := ""
	for _, in := range live {
		s += in.Proxy + " "
	}
	return s
}

// sameIndexes compares the indexes of inputs and outputs: DDL that came meanwhile makes the attempt begin anew. When documents expire may
// have changed; the outputs' indexes get it after the flip.
func (r *reshape) sameIndexes(ctx context.Context) error {
	want := map[string]bson.D{}
	for _, ix := range withoutExpiry(r.info.indexes) {
		want[field(ix, "name").(string)] = ix
	}
	for _, p := range r.inputs {
		now, err := r.s.inspectHome(ctx, p.Home)
		if err != nil {
			return retryable{err}
		}
		have := map[string]bson.D{}
		for _, ix := range withoutExpiry(now.indexes) {
			have[field(ix, "name").(string)] = ix
		}
		if !reflect.DeepEqual(have, want) || !reflect.DeepEqual(now.options, r.info.options) {
			return retryable{errors.New("indexes or options of the collection changed during the reshape")}
		}
		r.expiring = now.indexes
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

// removeClosings takes the reshape's closings and answers off the backends; the version that ends them must exist.
func (r *reshape) removeClosings(ctx context.Context) {
	done := map[string]bool{}
	for _, p := range r.inputs {
		if b := r.s.cfg.Backends.Get(p.Backend); b != nil && !done[p.Backend] {
			done[p.Backend] = true
			cleanClosings(ctx, member.DB(b), r.rec.ID)
		}
	}
}

// retire is what is left after the flip: floors, then the closings go, then the inputs, once nothing uses them any more.
func (r *reshape) retire(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	newest, err := r.s.cfg.Catalog.NewestMap(ctx, r.coll.NS)
	if err != nil || newest == nil {
		return err
	}
	for _, p := range r.inputs {
		if err := r.s.raiseFloor(ctx, p.Backend, r.coll.NS, newest.V); err != nil {
			r.s.log.Warn().Err(err).Str("backend", p.Backend).Msg("a floor could not be raised; the closing stays until the next start")
			return nil
		}
	}
	r.removeClosings(ctx)
	r.s.expire(ctx, r.expiring, homesOfOutputs(r.outputs))
	_ = r.s.cfg.Catalog.SwapReshape(ctx, &r.rec, func(n *catalog.Reshape) { n.Phase = catalog.Retiring })
	r.history(ctx)
	r.s.wg.Add(1)
	go func() {
		defer r.s.wg.Done()
		r.drain()
	}()
	return nil
}

// raiseFloor makes v the lowest version of ns's map that may be used on a backend, unless a higher one is already.
func (s *Splitter) raiseFloor(ctx context.Context, backendID, ns string, v int64) error {
	b := s.cfg.Backends.Get(backendID)
	if b == nil {
		return nil
	}
	_, err := member.DB(b).Collection(member.Floors).UpdateByID(ctx, ns, bson.D{{Key: "$max", Value: bson.D{{Key: "v", Value: v}}}}, options.UpdateOne().SetUpsert(true))
	return err
}

// drain drops the inputs once no cursor is on them, or at the drain limit.
func (r *reshape) drain() {
	ctx, cancel := context.WithTimeout(r.s.ctx, r.s.cfg.DrainLimit)
	defer cancel()
	var homes []partition.Home
	for _, p := range r.inputs {
		if err := p.Gate().WaitDrained(ctx); err != nil && r.s.ctx.Err() != nil {
			return // the next start drops them
		}
		homes = append(homes, p.Home)
	}
	r.s.dropUnnamed(r.s.ctx, r.coll.NS, homes)
	if err := r.s.cfg.Catalog.DeleteReshape(r.s.ctx, r.rec.ID); err != nil && r.s.ctx.Err() == nil {
		r.s.log.Warn().Err(err).Msg("the record of a reshape is left for the next start")
	}
}

// expire gives indexes of outputs the time after which documents expire, as it is in like.
func (s *Splitter) expire(ctx context.Context, like []bson.D, outputs []partition.Home) {
	for _, ix := range like {
		after := field(ix, "expireAfterSeconds")
		if after == nil {
			continue
		}
		for _, h := range outputs {
			_, err := s.run(ctx, h, bson.D{{Key: "collMod", Value: h.Physical},
				{Key: "index", Value: bson.D{{Key: "name", Value: field(ix, "name")}, {Key: "expireAfterSeconds", Value: after}}}, majority})
			if err != nil {
				s.log.Warn().Err(err).Str("backend", h.Backend).Msg("an index could not be given its expiry")
			}
		}
	}
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
		{Key: "millis", Value: r.sinceStart().Milliseconds()}, {Key: "documents", Value: r.docs}, {Key: "bytes", Value: r.bytes},
		{Key: "min", Value: r.inputs[0].Range.Lo.Int64()}, {Key: "from", Value: r.inputs[0].Backend}, {Key: "to", Value: r.outputs[len(r.outputs)-1].Backend}}
	what := changeName(r.kind)
	if r.kind == "move" {
		r.s.cfg.Catalog.AppendChange(ctx, r.s.cfg.Server, what+".from", r.coll.NS, details)
		what += ".commit"
	}
	r.s.cfg.Catalog.AppendChange(ctx, r.s.cfg.Server, what, r.coll.NS, details)
}
