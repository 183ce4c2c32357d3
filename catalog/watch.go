package catalog

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// refreshEvery is how often the catalog is read although nothing was heard of a change.
const refreshEvery = time.Second

// Run keeps the snapshot as new as the catalog until ctx ends: by a change stream, since gates of this process are closed until a map of another's
// is known, and by reading everything each second besides. What fails is logged; the snapshot of before goes on serving.
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
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
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
		cs, err := s.db.Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "ns.coll", Value: bson.D{{Key: "$nin", Value: bson.A{changelogColl, mongosColl}}}}}}}},
			options.ChangeStream().SetFullDocument(options.UpdateLookup).SetMaxAwaitTime(time.Second))
		if err == nil {
			_ = s.Refresh(ctx) // what changed before the stream was there
			for cs.Next(ctx) {
				s.see(ctx, cs)
			}
			_ = cs.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
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
