package router

import (
	"context"
	"time"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// awaitLimit is how long a request waits for a backend that another proxy has just brought into the fleet.
const awaitLimit = 10 * time.Second

// awaitBackend waits until this proxy has opened and joined a backend that the catalog has, which takes a moment after another proxy has added it; 70 for one that is
// not part of the fleet.
func (r *Router) awaitBackend(ctx context.Context, id string) (*backend.Backend, error) {
	if r.cfg.Table.View().Catalog.Backends[id] == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", id)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, awaitLimit, wire.Errorf(wire.HostUnreachable, "backend '%s' is new, and this proxy has not reached it yet", id))
	defer cancel()
	for {
		if b := r.cfg.Backends.Get(id); b != nil {
			if r.cfg.Member == nil {
				return b, nil
			}
			return b, r.cfg.Member.WaitJoined(ctx, id)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
