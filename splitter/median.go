package splitter

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

const (
	// sampleSize is how many documents' keys tell where a large partition's median lies.
	sampleSize = 10000
	// scanBelow is the number of documents below which all keys are read instead.
	scanBelow = 50000
)

// median returns the position that divides a partition's documents most evenly between two logical partitions: of the sampled keys' positions the
// first of a run, as near the middle as one lies. 87 CannotSplit when all documents have one position.
func (s *Splitter) median(ctx context.Context, c *partition.Collection, p *partition.Part) (shardkey.Position, error) {
	n, err := s.estimate(ctx, p.Home)
	if err != nil {
		return 0, err
	}
	if n > scanBelow {
		positions, err := s.positions(ctx, c, p, mongo.Pipeline{{{Key: "$sample", Value: bson.D{{Key: "size", Value: sampleSize}}}}})
		if err != nil {
			return 0, err
		}
		if at, ok := cut(positions); ok {
			return at, nil
		}
	}
	positions, err := s.positions(ctx, c, p, mongo.Pipeline{})
	if err != nil {
		return 0, err
	}
	at, ok := cut(positions)
	if !ok {
		return 0, wire.Errorf(wire.CannotSplit, "cannot split the partition of %s at %s: its %d documents are one logical partition", c.NS, p.Range, len(positions))
	}
	return at, nil
}

// cut chooses among the places between different positions the one nearest to the middle.
func cut(positions []shardkey.Position) (shardkey.Position, bool) {
	slices.Sort(positions)
	best, at := -1, shardkey.Position(0)
	for i := 1; i < len(positions); i++ {
		if positions[i] == positions[i-1] {
			continue
		}
		off := 2*i - len(positions)
		if off < 0 {
			off = -off
		}
		if best < 0 || off < best {
			best, at = off, positions[i]
		}
	}
	return at, best >= 0
}

// positions reads the shard keys of the documents that a pipeline gives. Misplaced ones (misplaced.go) do not count.
func (s *Splitter) positions(ctx context.Context, c *partition.Collection, p *partition.Part, pipeline mongo.Pipeline) ([]shardkey.Position, error) {
	coll, err := s.collection(p.Home)
	if err != nil {
		return nil, err
	}
	cur, err := coll.Aggregate(ctx, append(pipeline, bson.D{{Key: "$project", Value: keyOnly(c)}}), options.Aggregate().SetBatchSize(5000).SetAllowDiskUse(true))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var out []shardkey.Position
	for cur.Next(ctx) {
		if pos, err := c.Key.Position(cur.Current); err == nil && p.Range.Contains(pos) {
			out = append(out, pos)
		}
	}
	return out, cur.Err()
}
