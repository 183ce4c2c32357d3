package splitter

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
)

const (
	// followBatch is how many changed documents are brought over at once.
	followBatch = 500
	// quickRound is how long a round of following may take for the gates to be closed: what is left then takes about as long.
	quickRound = 40 * time.Millisecond
	// maxBrake is the longest that the brake holds a write up.
	maxBrake = 32 * time.Millisecond
	// followLimit is how long writes may be faster than the following.
	followLimit = 5 * time.Minute
)

// catchUp applies what the streams have shown until a round is quick. It holds up no write: what is then left is brought over after the comparison.
func (r *reshape) catchUp(ctx context.Context) error {
	return r.gain(ctx, r.round, func(time.Duration) {})
}

// catchUpToClose brings over what the streams have shown, and then what they show until a marker comes through them, until that is quick: what is left when the
// gates are closed then takes about as long. Only a marker tells: a stream that has nothing to show may have much of other collections to read, this
// reshape's own copies among it.
func (r *reshape) catchUpToClose(ctx context.Context) error {
	if err := r.gain(ctx, r.round, r.brake); err != nil {
		return err
	}
	patience := r.s.cfg.PauseBudget
	if r.behind {
		patience = followLimit
	}
	return r.gain(ctx, func(ctx context.Context) (int, error) {
		_, n, err := r.passWithin(ctx, patience)
		return n, err
	}, r.brake)
}

// gain repeats round until one is quick. Under heavy writing rounds do not get shorter than what the writes of
// one round take; then, with the brake on, one within a quarter of the pause budget must do.
func (r *reshape) gain(ctx context.Context, round func(context.Context) (int, error), brake func(took time.Duration)) error {
	began := time.Now()
	last, stalled := time.Duration(0), 0
	for {
		at := time.Now()
		n, err := round(ctx)
		if err != nil {
			return err
		}
		took := time.Since(at)
		if took > last*4/5 {
			stalled++
			brake(took)
		}
		last = took
		switch {
		case n == 0, took <= quickRound, stalled >= 5 && took <= r.s.cfg.PauseBudget/4:
			return nil
		case time.Since(began) > followLimit:
			return retryable{errors.New("writes are faster than they can be followed")}
		}
	}
}

// brake holds each write to the inputs up for a moment, twice as long each time, so that following gains on writes that are as fast as it is.
func (r *reshape) brake(took time.Duration) {
	if took <= quickRound {
		return
	}
	r.braked = min(max(2*r.braked, time.Millisecond), maxBrake)
	for _, p := range r.inputs {
		p.Gate().SetBrake(r.braked)
	}
}

// release ends the brake.
func (r *reshape) release() {
	for _, p := range r.inputs {
		p.Gate().SetBrake(0)
	}
}

// round applies what each stream has ready and reports how many documents that were.
func (r *reshape) round(ctx context.Context) (int, error) {
	total := 0
	for _, st := range r.streams {
		var c changes
		// One batch of the server's: what is written while it is read belongs to the next round. A stream that gives
		// nothing is asked twice: the first time may not have asked the server.
		for empty := 0; empty < 2 && (c.n == 0 || st.cs.RemainingBatchLength() > 0); {
			got, _, err := st.read(ctx, &c, bson.NilObjectID, false)
			if err != nil {
				return total, err
			}
			if !got {
				empty++
			}
		}
		if err := r.apply(ctx, &c); err != nil {
			return total, err
		}
		total += c.n
	}
	return total, nil
}

// apply brings changed documents over. Each is read again from its input, so that order and repetition of events do not matter; it is deleted from
// every output and, if it is still there, inserted into its own. Nobody reads outputs yet.
func (r *reshape) apply(ctx context.Context, c *changes) error {
	var ids []bson.RawValue
	flush := func() error {
		if len(ids) == 0 {
			return nil
		}
		err := r.applyIDs(ctx, ids)
		ids = nil
		return err
	}
	for _, m := range c.ids {
		for _, id := range m {
			ids = append(ids, id)
			if len(ids) >= r.atOnce(followBatch) {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

func (r *reshape) applyIDs(ctx context.Context, ids []bson.RawValue) error {
	// What met an equal entry before is tried again together with what has changed since.
	ids = append(ids, r.pending...)
	r.pending, r.doubles = nil, nil
	docs := make([][]bson.Raw, len(r.outputs))
	seen := map[string]bson.Raw{}
	for _, p := range r.inputs {
		after, err := r.afterShown(ctx, p.Backend)
		if err != nil {
			return retryable{err}
		}
		found, err := r.readAgain(after, p.Home, ids)
		if err != nil {
			return retryable{err}
		}
		for _, doc := range found {
			id := doc.Lookup("_id")
			k := valueKey(id)
			if first := seen[k]; first != nil {
				if r.doubles == nil {
					r.doubles = map[string]double{}
				}
				r.doubles[k] = double{id: id, docs: string(first) + string(doc)}
				continue
			}
			seen[k] = doc
			i := r.place(doc)
			docs[i] = append(docs[i], doc)
		}
	}
	for k, d := range r.doubles {
		isDouble := func(doc bson.Raw) bool { return idKey(doc) == k }
		for i := range docs {
			docs[i] = slices.DeleteFunc(docs[i], isDouble)
		}
		r.pending = append(r.pending, d.id)
	}
	in := bson.A{}
	for _, id := range ids {
		in = append(in, id)
	}
	for i := range r.outputs {
		c, err := r.s.collection(r.outputs[i].Home)
		if err != nil {
			return err
		}
		// One by one for the driver to retry safely: a multi-delete of ids is idempotent all the same.
		if _, err := c.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}); err != nil {
			return retryable{err}
		}
	}
	for i, d := range docs {
		if len(d) == 0 {
			continue
		}
		if err := r.insert(ctx, i, d); isDuplicate(err) {
			for _, doc := range d {
				r.pending = append(r.pending, doc.Lookup("_id"))
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// afterShown is ctx for reading on a backend nothing older than what its stream has shown: a primary that took over a moment ago may not know yet that
// majority has it.
func (r *reshape) afterShown(ctx context.Context, backendID string) (context.Context, error) {
	for _, st := range r.streams {
		shown := st.shown()
		if st.backend != backendID || shown.IsZero() {
			continue
		}
		session := r.sessions[backendID]
		if session == nil {
			var err error
			if session, err = r.s.cfg.Backends.Get(backendID).Client().StartSession(options.Session().SetCausalConsistency(true)); err != nil {
				return nil, err
			}
			if r.sessions == nil {
				r.sessions = map[string]*mongo.Session{}
			}
			r.sessions[backendID] = session
		}
		if err := session.AdvanceOperationTime(&shown); err != nil {
			return nil, err
		}
		return mongo.NewSessionContext(ctx, session), nil
	}
	return ctx, nil
}

// readAgain reads documents by their ids, as majority has them.
func (r *reshape) readAgain(ctx context.Context, h partition.Home, ids []bson.RawValue) ([]bson.Raw, error) {
	c, err := r.s.collection(h)
	if err != nil {
		return nil, err
	}
	in := bson.A{}
	for _, id := range ids {
		in = append(in, id)
	}
	cur, err := c.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}, options.Find().SetBatchSize(followBatch*2))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var out []bson.Raw
	for cur.Next(ctx) {
		out = append(out, append(bson.Raw(nil), cur.Current...))
	}
	return out, cur.Err()
}

// pass brings over everything that was done to the inputs before it was called: a marker that comes through a stream proves that what came before it
// has come through. An empty answer of a stream proves nothing, since the server may have looked at other collections' changes until then.
func (r *reshape) pass(ctx context.Context) (times map[string]bson.Timestamp, changed int, err error) {
	return r.passWithin(ctx, 0)
}

// passWithin is pass, but for a stream that shows nothing for as long as patience, if that is not 0: it is left at that. There are servers whose streams stand still while
// a transaction is open, and it is only behind closed gates that one is aborted which stands in the way.
func (r *reshape) passWithin(ctx context.Context, patience time.Duration) (times map[string]bson.Timestamp, changed int, err error) {
	times = map[string]bson.Timestamp{}
	for _, st := range r.streams {
		id := bson.NewObjectID()
		b := r.s.cfg.Backends.Get(st.backend)
		if _, err := member.BoardOf(b).Mark(ctx, id, r.rec.ID, r.rec.Epoch); err != nil {
			return nil, 0, retryable{err}
		}
		var c changes
		shown := time.Now()
		for at, got := false, false; !at && (patience == 0 || time.Since(shown) < patience); {
			if got, at, err = st.read(ctx, &c, id, patience == 0); err != nil {
				return nil, 0, err
			}
			if got {
				shown = time.Now()
			}
		}
		times[st.backend] = c.last
		if err := r.apply(ctx, &c); err != nil {
			return nil, 0, err
		}
		changed += c.n
	}
	return times, changed, nil
}

// markers are the streams of a reshape as one: a marker in each.
type markers struct {
	r *reshape
	// times are the last markers' by backend.
	times map[string]bson.Timestamp
}

// Mark inserts a marker on each input's backend and applies what the streams show before them. What met an equal entry of a unique index before counts as shown.
func (m *markers) Mark(ctx context.Context) (before int, at bson.Timestamp, err error) {
	r := m.r
	times, changed, err := r.pass(ctx)
	if err != nil {
		return 0, at, err
	}
	m.times = times
	before = changed + len(r.pending)
	if changed == 0 && len(r.pending) > 0 {
		if err := r.applyIDs(ctx, nil); err != nil {
			return 0, at, err
		}
		if len(r.pending) > 0 {
			return 0, at, retryable{errors.New("documents meet equal entries of a unique index in an output although nothing changes any more")}
		}
	}
	for _, t := range times {
		if t.Compare(at) > 0 {
			at = t
		}
	}
	return before, at, nil
}

// sinceStart is how long the reshape has been running.
func (r *reshape) sinceStart() time.Duration { return time.Since(r.rec.Started) }
