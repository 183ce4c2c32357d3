package catalog

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// refreshEvery is how often the catalog is read while there is no change stream.
	refreshEvery = time.Second
	// quietEvery is how many times less often it is read while there is one.
	quietEvery = 10
	// silence is how long the server may take to say that nothing has happened, which it does each second.
	silence = 4 * time.Second
)

// Run keeps the snapshot as new as the catalog until ctx ends: by a change stream, since gates of this process are closed until a map of another's
// is known, and by reading everything now and then besides, each second while there is no stream. What fails is logged; the snapshot of before goes on serving.
func (s *Store) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.watch(ctx)
	}()
	defer func() { <-done }()
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	failing := false
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.watching.Load() && tick%quietEvery != 0 {
			continue
		}
		rctx, cancel := context.WithTimeout(ctx, 10*refreshEvery)
		err := s.Refresh(rctx)
		cancel()
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("the catalog cannot be read; what is known goes on serving")
		}
		failing = err != nil
	}
}

// OnReshape has f called with each record of a reshape that was made or changed by anybody, while Run runs. f must not block.
func (s *Store) OnReshape(f func(Reshape)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onReshape = append(s.onReshape, f)
}

// watch follows the catalog's change stream, opening it anew when it ends.
func (s *Store) watch(ctx context.Context) {
	for ctx.Err() == nil {
		cs, err := s.db.Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "ns.coll", Value: bson.D{{Key: "$nin", Value: bson.A{changelogColl, mongosColl, pulsesColl}}}}}}}},
			options.ChangeStream().SetFullDocument(options.UpdateLookup).SetMaxAwaitTime(time.Second))
		if err == nil {
			_ = s.Refresh(ctx) // what changed before the stream was there
			s.watching.Store(true)
			for s.next(ctx, cs) {
			}
			s.watching.Store(false)
			_ = cs.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// next waits for an event, for a second or two, and takes it; it reports whether the stream goes on. A connection that has gone silent ends it.
func (s *Store) next(ctx context.Context, cs *mongo.ChangeStream) bool {
	wctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	if cs.TryNext(wctx) {
		s.see(ctx, cs)
	}
	return cs.Err() == nil && ctx.Err() == nil
}

// see takes one event of the change stream. An inserted map is taken as it is, since gates wait for it; of anything else it is enough that it changed.
func (s *Store) see(ctx context.Context, cs *mongo.ChangeStream) {
	var ev struct {
		Op  string `bson:"operationType"`
		NS  struct{ Coll string }
		Doc bson.Raw `bson:"fullDocument"`
	}
	if cs.Decode(&ev) != nil {
		return
	}
	switch ev.NS.Coll {
	case reshapesColl:
		var r Reshape
		if len(ev.Doc) == 0 || bson.Unmarshal(ev.Doc, &r) != nil {
			return
		}
		s.mu.Lock()
		listeners := s.onReshape
		s.mu.Unlock()
		for _, f := range listeners {
			f(r)
		}
		return
	case countersColl, "":
		return
	case mapsColl:
		if s.take(ev.Doc) {
			return
		}
	}
	// One refresh for all that has come meanwhile.
	if cs.RemainingBatchLength() == 0 {
		_ = s.Refresh(ctx)
	}
}

// take adopts an inserted map if everything that it names is known.
func (s *Store) take(doc bson.Raw) bool {
	var d mapDoc
	if len(doc) == 0 || bson.Unmarshal(doc, &d) != nil {
		return false
	}
	m, err := decodeMap(d)
	if err != nil {
		return false
	}
	if db, _ := SplitNS(m.NS); s.Snapshot().Databases[db] == nil || !s.knows(m) {
		return false
	}
	return s.adopt(m) == nil
}
