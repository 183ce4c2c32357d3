package member

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/partition"
)

// pollEvery is how often closings are read where there is no change stream.
const pollEvery = 20 * time.Millisecond

// watch answers closings until ctx ends: by a change stream on a replica set, by reading them again and again on a standalone. A closing
// that is seen late is answered late, which costs its owner the attempt and nothing else.
func (in *instance) watch(ctx context.Context, stream *mongo.ChangeStream) {
	for ctx.Err() == nil {
		if stream != nil {
			in.follow(ctx, stream)
		}
		in.pause(ctx, pollEvery)
		stream = in.stream(ctx)
		_, _ = in.readClosings(ctx)
	}
	if stream != nil {
		_ = stream.Close(context.WithoutCancel(ctx))
	}
}

// follow meets the closings that a stream shows until it ends.
func (in *instance) follow(ctx context.Context, stream *mongo.ChangeStream) {
	for stream.Next(ctx) {
		var ev struct {
			Doc Closing `bson:"fullDocument"`
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
	s, err := in.db.Collection(Closings).Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}},
		options.ChangeStream().SetMaxAwaitTime(time.Second))
	if err != nil {
		return nil
	}
	return s
}

// readClosings meets the closings that are there and returns the gates it closed.
func (in *instance) readClosings(ctx context.Context) (met []*partition.Gate, err error) {
	cur, err := in.db.Collection(Closings).Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var all []Closing
	if err := cur.All(ctx, &all); err != nil {
		return nil, err
	}
	for _, c := range all {
		met = append(met, in.meet(ctx, c)...)
	}
	return met, nil
}

// meet closes the gates that a closing names and answers once no request of this instance is behind them. A closing whose version has been applied
// already has ended.
func (in *instance) meet(ctx context.Context, c Closing) []*partition.Gate {
	if in.seen[c.ID] {
		return nil
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
	in.wg.Add(1)
	go func() {
		defer in.wg.Done()
		in.answer(ctx, c, gates)
	}()
	return gates
}

func (in *instance) answer(ctx context.Context, c Closing, gates []*partition.Gate) {
	for _, g := range gates {
		if g.WaitQuiet(ctx) != nil {
			return
		}
	}
	if !in.lease.Valid() {
		return
	}
	_, err := in.db.Collection(Answers).InsertOne(ctx, Answer{ID: AnswerID{Closing: c.ID, Instance: in.id}, At: time.Now().UTC()})
	if err != nil && ctx.Err() == nil && !mongo.IsDuplicateKeyError(err) {
		in.m.cfg.Log.Warn().Err(err).Str("ns", c.NS).Msg("an answer could not be written; the closing will be burnt")
	}
}
