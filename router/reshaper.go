package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

// Reshaper changes maps. Package splitter implements it; the router asks it, never the other way.
type Reshaper interface {
	// Split divides the partition of ns that holds at into [lo, at) and [at, hi).
	Split(ctx context.Context, ns string, at shardkey.Position) error
	// SplitMedian divides the partition of ns that holds at into two with about half of its documents each.
	SplitMedian(ctx context.Context, ns string, at shardkey.Position) error
	// Move brings the partition with exactly the range rg to another backend.
	Move(ctx context.Context, ns string, rg shardkey.Range, to string) error
	// Merge makes one partition of the adjacent partitions that cover exactly rg.
	Merge(ctx context.Context, ns string, rg shardkey.Range) error
	// Create makes ns exist, empty, when its newest map says that it was dropped: under a fresh physical name on its
	// database's primary backend, made with options (the fields of a create command after its first; nil for none). A namespace
	// that exists, or has no map, is left alone: no error.
	Create(ctx context.Context, ns string, options bson.Raw) error
	// Drop makes the newest map of ns say that it was dropped, and drops its physical collections once nothing uses
	// them; a namespace without a map gets its first. A namespace whose newest map says so already is no error.
	Drop(ctx context.Context, ns string) error
	// Rename gives the collection from the name to, in the same database. to must not exist (48) unless dropTarget,
	// which replaces it.
	Rename(ctx context.Context, from, to string, dropTarget bool) error
	// ShardCollection gives a namespace, whose database is registered, a shard key. An empty or absent collection gets parts
	// partitions (0: one for each backend), one with documents gets one, nothing copied. 23 when it has another key.
	ShardCollection(ctx context.Context, ns string, key shardkey.Pattern, parts int) error
	// MovePrimary moves a database's unsharded collections to a backend and makes that its primary. 70 for a backend, 26 for
	// a database that is not known.
	MovePrimary(ctx context.Context, db, to string) error
	// Everywhere runs do, which sends a DDL command to all parts of ns, so that another proxy
	// finishes it, or undoes it, if this one dies half-way. The caller is inside the gates of the
	// parts. A *backend.UnconfirmedError of do is returned: the command was done, and is repeated
	// in the background until a majority has it everywhere.
	Everywhere(ctx context.Context, ns string, parts []*partition.Part, command bson.Raw, do func(context.Context) error) error
	// MaxPartitionBytes is the size in bytes beyond which a partition of ns is split.
	MaxPartitionBytes(ns string) int64
	// CannotSplit lists the partitions of a collection that are over their limit and cannot be split, since all their documents have one shard key value, with
	// their sizes in bytes, as far as this process has found out.
	CannotSplit(c *partition.Collection) map[partition.Home]int64
	// Operations lists running reshapes as documents for currentOp.
	Operations() []bson.D
	// Unmatched lists, as documents, collections on backends that belong to nothing and are left alone.
	Unmatched(ctx context.Context) ([]bson.D, error)
	// LeastLoaded returns the id of the backend with the least data that is not draining.
	LeastLoaded(ctx context.Context) (string, error)
}
