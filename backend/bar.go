package backend

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/shardway/shardway/wire"
)

// bar says why a backend must not be used.
type bar struct{ why error }

// Bar keeps everybody from using the backend: requests fail at once with an UnsentError that wraps why, those of Client with
// why itself. Contexts of Examining excepted. A nil why ends it.
func (b *Backend) Bar(why error) {
	if why == nil {
		b.barred.Store(nil)
		return
	}
	b.barred.Store(&bar{why})
}

// examining is the key of contexts that pass a bar.
type examining struct{}

// Examining returns a context with which a backend can be asked although it is barred, to see whether it still has to be.
func Examining(ctx context.Context) context.Context { return context.WithValue(ctx, examining{}, true) }

// whyBarred is nil where ctx may use the backend.
func (b *Backend) whyBarred(ctx context.Context) error {
	bar := b.barred.Load()
	if bar == nil || ctx.Value(examining{}) != nil {
		return nil
	}
	return b.unsent("", wire.HostUnreachable, bar.why)
}

// deployment is the topology as the driver's client sees it: barred where the backend is.
type deployment struct {
	*topology.Topology
	b *Backend
}

// SelectServer implements driver.Deployment.
func (d deployment) SelectServer(ctx context.Context, s description.ServerSelector) (driver.Server, error) {
	if bar := d.b.barred.Load(); bar != nil && ctx.Value(examining{}) == nil {
		return nil, bar.why
	}
	return d.Topology.SelectServer(ctx, s)
}
