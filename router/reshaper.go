package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// Catalog changes what the catalog knows besides maps. Package catalog implements it; what requests read of the
// catalog is in the View.
type Catalog interface {
	// CreateDatabase registers a database with its primary backend. If it exists already, that is no error
	// and its primary stays; a name that differs from an existing one only in case is 13297.
	CreateDatabase(ctx context.Context, name, primary string) error
	// DropDatabase forgets a database.
	DropDatabase(ctx context.Context, name string) error
}

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
	// Operations lists running reshapes as documents for currentOp.
	Operations() []bson.D
	// LeastLoaded returns the id of the backend with the least data that is not draining.
	LeastLoaded(ctx context.Context) (string, error)
}
