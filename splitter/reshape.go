package splitter

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// reshape is one running split, move or merge.
type reshape struct{}

func notYet(what string) error {
	return wire.Errorf(wire.CommandNotSupported, "%s is not supported yet", what)
}

// Split is refused.
func (s *Splitter) Split(context.Context, string, shardkey.Position) error { return notYet("split") }

// SplitMedian is refused.
func (s *Splitter) SplitMedian(context.Context, string, shardkey.Position) error {
	return notYet("split")
}

// Move is refused.
func (s *Splitter) Move(context.Context, string, shardkey.Range, string) error { return notYet("move") }

// Merge is refused.
func (s *Splitter) Merge(context.Context, string, shardkey.Range) error { return notYet("merge") }

// Operations lists running reshapes.
func (s *Splitter) Operations() []bson.D { return nil }
