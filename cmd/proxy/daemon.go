package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/partition"
)

// catalogPause is between two looks at a catalog backend that is not there yet.
const catalogPause = time.Second

// openCatalog waits for the catalog's backend, since nothing can be served without a map, and says
// what it is waiting for.
func openCatalog(ctx context.Context, b *backend.Backend, log zerolog.Logger) (*catalog.Store, error) {
	for {
		err := b.Ready(ctx)
		if err == nil {
			return catalog.Open(ctx, b.Client(), log)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		log.Warn().Err(err).Str("backend", b.ID()).Msg("waiting for the catalog's backend")
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(catalogPause):
		}
	}
}
