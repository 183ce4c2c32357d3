package splitter

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// stream is the change stream of one backend that holds inputs: the changes of the inputs and the markers come through it in the order
// in which the backend did them.
type stream struct {
	backend string
	cs      *mongo.ChangeStream
	// inputs are the inputs on this backend, by physical name.
	inputs map[string]partition.Home
	db     string
	// newest is the time of the newest event that was read. The copy of a merge may ask for it while the stream is being read.
	mu     sync.Mutex
	newest bson.Timestamp
}

// shown is the time of the newest event that was read; zero before the first.
func (st *stream) shown() bson.Timestamp {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.newest
}

// event is what a stream shows.
type event struct {
	Op  string                    `bson:"operationType"`
	NS  struct{ DB, Coll string } `bson:"ns"`
	Key struct {
		ID bson.RawValue `bson:"_id"`
	} `bson:"documentKey"`
	Time bson.Timestamp `bson:"clusterTime"`
}

// openStreams opens one stream for each backend with inputs, before anything is copied.
func (r *reshape) openStreams(ctx context.Context) error {
	by := map[string]*stream{}
	for _, p := range r.inputs {
		st := by[p.Backend]
		if st == nil {
			st = &stream{backend: p.Backend, db: p.DB, inputs: map[string]partition.Home{}}
			by[p.Backend] = st
			r.streams = append(r.streams, st)
		}
		st.inputs[p.Physical] = p.Home
	}
	for _, st := range r.streams {
		if err := st.open(ctx, r.s); err != nil {
			return err
		}
	}
	return nil
}

func (st *stream) open(ctx context.Context, s *Splitter) error {
	b := s.cfg.Backends.Get(st.backend)
	if b == nil {
		return wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", st.backend)
	}
	names := bson.A{}
	for name := range st.inputs {
		names = append(names, name)
	}
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "ns.db", Value: st.db}, {Key: "ns.coll", Value: bson.D{{Key: "$in", Value: names}}}},
		bson.D{{Key: "ns.db", Value: catalog.MemberDB}, {Key: "ns.coll", Value: member.Markers}},
	}}}}}
	// Only what is read of an event: one with a whole large document could be too large for a reply.
	need := bson.D{{Key: "$project", Value: bson.D{{Key: "operationType", Value: 1}, {Key: "ns", Value: 1}, {Key: "documentKey", Value: 1}, {Key: "clusterTime", Value: 1}}}}
	cs, err := b.Client().Watch(ctx, mongo.Pipeline{match, need}, options.ChangeStream().SetMaxAwaitTime(50*time.Millisecond).SetBatchSize(1000))
	if err != nil {
		return err
	}
	st.cs = cs
	return nil
}

func (st *stream) close() {
	if st.cs == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = st.cs.Close(ctx)
}

// changes are documents that have changed, by input and _id, each once.
type changes struct {
	ids  map[partition.Home]map[string]bson.RawValue
	n    int
	last bson.Timestamp
}

func (c *changes) add(h partition.Home, id bson.RawValue) {
	if c.ids == nil {
		c.ids = map[partition.Home]map[string]bson.RawValue{}
	}
	m := c.ids[h]
	if m == nil {
		m = map[string]bson.RawValue{}
		c.ids[h] = m
	}
	k := string(append([]byte{byte(id.Type)}, id.Value...))
	if _, there := m[k]; !there {
		m[k] = bson.RawValue{Type: id.Type, Value: append([]byte(nil), id.Value...)}
		c.n++
	}
}

// read takes one event off the stream into c. It reports marker when the event is the marker with that id; wait says whether to wait for an event.
// An event that ends an input (drop, rename, invalidate) is an error.
func (st *stream) read(ctx context.Context, c *changes, marker bson.ObjectID, wait bool) (got, isMarker bool, err error) {
	if wait {
		got = st.cs.Next(ctx)
	} else {
		got = st.cs.TryNext(ctx)
	}
	if !got {
		err := st.cs.Err()
		if err == nil && wait {
			err = context.Cause(ctx)
		}
		if err != nil {
			return false, false, retryable{err}
		}
		return false, false, nil
	}
	var ev event
	if err := st.cs.Decode(&ev); err != nil {
		return true, false, retryable{err}
	}
	if ev.Time.Compare(c.last) > 0 {
		c.last = ev.Time
	}
	st.mu.Lock()
	if ev.Time.Compare(st.newest) > 0 {
		st.newest = ev.Time
	}
	st.mu.Unlock()
	if ev.NS.DB == catalog.MemberDB {
		id, ok := ev.Key.ID.ObjectIDOK()
		return true, ok && id == marker, nil
	}
	switch ev.Op {
	case "insert", "update", "replace", "delete":
		c.add(st.inputs[ev.NS.Coll], ev.Key.ID)
	case "drop", "rename", "dropDatabase", "invalidate":
		return true, false, wire.Errorf(wire.ConflictingOperationInProgress, "an input of the reshape was dropped or renamed (%s)", ev.Op)
	}
	return true, false, nil
}
