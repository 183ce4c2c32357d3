package member

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/protocol"
)

// maxSeen bounds the closings that an instance remembers.
const maxSeen = 4096

// pollEvery is how often closings are read where there is no change stream.
const pollEvery = 20 * time.Millisecond

// lookEvery is how often they are read beside a change stream, which may be silent for a while: a closing is met within the pause budget all the same.
const lookEvery = 250 * time.Millisecond

// watch answers closings until ctx ends: by a change stream on a replica set, by reading them again and again on a standalone. A closing
// that is seen late is answered late, which costs its owner the attempt and nothing else.
func (in *instance) watch(ctx context.Context, stream *mongo.ChangeStream) {
	for ctx.Err() == nil {
		if stream != nil {
			in.follow(ctx, stream)
		}
		in.pause(ctx, pollEvery)
		stream = in.stream(ctx)
		_ = in.readClosings(ctx)
	}
	if stream != nil {
		_ = stream.Close(context.WithoutCancel(ctx))
	}
}

// follow meets the closings that a stream shows until it ends.
func (in *instance) follow(ctx context.Context, stream *mongo.ChangeStream) {
	ctx, cancel := context.WithCancel(ctx)
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() {
		for in.pause(ctx, lookEvery); ctx.Err() == nil; in.pause(ctx, lookEvery) {
			_ = in.readClosings(ctx)
		}
	})
	for stream.Next(ctx) {
		var ev struct {
			Doc protocol.Closing `bson:"fullDocument"`
		}
		if stream.Decode(&ev) == nil && !ev.Doc.ID.IsZero() {
			in.meet(ctx, ev.Doc)
		}
	}
	_ = stream.Close(context.WithoutCancel(ctx))
}

func (in *instance) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (in *instance) stream(ctx context.Context) *mongo.ChangeStream {
	if in.b.Kind() == backend.KindStandalone {
		return nil
	}
	s, err := in.board.db.Collection(Closings).Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}},
		options.ChangeStream().SetMaxAwaitTime(time.Second))
	if err != nil {
		return nil
	}
	return s
}

// readClosings meets the closings that are there.
func (in *instance) readClosings(ctx context.Context) error {
	all, err := in.board.Closings(ctx)
	for _, c := range all {
		in.meet(ctx, c)
	}
	return err
}

// meet closes the gates that a closing names, and answers once no request of this instance is behind them. A closing whose version has been applied
// already has ended.
func (in *instance) meet(ctx context.Context, c protocol.Closing) []*partition.Gate {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.seen[c.ID] {
		return nil
	}
	if len(in.seen) >= maxSeen {
		clear(in.seen) // meeting one again closes what is closed, and answers what was answered
	}
	in.seen[c.ID] = true
	homes := make([]partition.Home, len(c.Physical))
	for i, p := range c.Physical {
		homes[i] = partition.Home{Backend: in.b.ID(), DB: c.DB, Physical: p}
	}
	how := partition.ClosedAll
	if c.WritesOnly {
		how = partition.ClosedWrites
	}
	gates, ok := in.m.cfg.Table.Close(c.NS, homes, c.Ends, how)
	if !ok {
		return nil
	}
	if c.Abort && in.m.cfg.Abort != nil {
		held := make([]partition.Home, len(gates))
		for i, g := range gates {
			held[i] = g.Home()
		}
		in.wg.Go(func() { in.m.cfg.Abort(held) })
	}
	in.wg.Go(func() { in.answer(ctx, c, gates) })
	if in.m.cfg.Burn != nil {
		in.wg.Go(func() { in.lose(ctx, c) })
	}
	return gates
}

// answer says that nothing of this instance is behind the gates, and later that nothing uses their homes any more.
func (in *instance) answer(ctx context.Context, c protocol.Closing, gates []*partition.Gate) {
	for _, g := range gates {
		if g.WaitQuiet(ctx) != nil {
			return
		}
	}
	if !in.lease.Valid() {
		return
	}
	id := protocol.AnswerID{Closing: c.ID, Instance: in.id}
	if err := in.board.PutAnswer(ctx, protocol.Answer{ID: id, At: time.Now().UTC()}); err != nil && ctx.Err() == nil {
		// It may be written all the same: the owner then waits for the release.
		in.m.cfg.Log.Warn().Err(err).Str("ns", c.NS).Msg("an answer could not be written; the closing will be burnt")
	}
	if c.WritesOnly {
		in.release(ctx, id) // the closing of everything that follows it is what is waited for
		return
	}
	if in.m.cfg.Table.WaitApplied(ctx, c.NS, c.Ends) != nil || in.drained(ctx, gates) != nil {
		return
	}
	in.release(ctx, id)
}

// drained waits until nothing uses the homes that a new map has retired; what the new map names goes on being used. At the drain limit the cursors there
// are killed.
func (in *instance) drained(ctx context.Context, gates []*partition.Gate) error {
	limited, cancel := context.WithTimeout(ctx, in.m.cfg.DrainLimit)
	defer cancel()
	err := waitDrained(limited, gates)
	if err == nil || ctx.Err() != nil || in.m.cfg.Overdue == nil {
		return err
	}
	homes := make([]partition.Home, len(gates))
	for i, g := range gates {
		homes[i] = g.Home()
	}
	in.m.cfg.Overdue(homes)
	return waitDrained(ctx, gates)
}

func waitDrained(ctx context.Context, gates []*partition.Gate) error {
	for _, g := range gates {
		if err := g.WaitReleased(ctx); err != nil {
			return err
		}
	}
	return nil
}

// release is tried until it is written or the instance ends: the drop of the homes waits for it.
func (in *instance) release(ctx context.Context, id protocol.AnswerID) {
	for ctx.Err() == nil {
		if in.board.Release(ctx, id) == nil {
			return
		}
		in.pause(ctx, in.m.cfg.Renew)
	}
}

// lose burns the version that ends a closing when nobody has inserted it in time: its owner may be dead.
func (in *instance) lose(ctx context.Context, c protocol.Closing) {
	patience := max(in.m.cfg.Patience, time.Duration(c.Patience)*time.Millisecond)
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if in.m.cfg.Table.WaitApplied(waiting, c.NS, c.Ends) == nil || ctx.Err() != nil {
		return
	}
	home := catalog.RecordedHome{Backend: in.b.ID(), Physical: catalog.PrimaryHome}
	if len(c.Physical) > 0 {
		home.Physical = c.Physical[0]
	}
	in.m.cfg.Log.Warn().Str("ns", c.NS).Int64("v", c.Ends).Msg("gates have been closed for too long; the version that ends it is burnt")
	if err := in.m.cfg.Burn(ctx, c.NS, c.Ends, home); err != nil && ctx.Err() == nil {
		in.m.cfg.Log.Error().Err(err).Str("ns", c.NS).Msg("a closing could not be burnt")
	}
}
