package member

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/wire"
)

// What is assumed of a backend that does not say how long its transactions may live.
const (
	defaultLifetime = time.Minute
	longestReap     = time.Minute
	shortestReap    = time.Second
)

// keepGone is how long the registrations of instances that are gone are kept for people to read.
const keepGone = 24 * time.Hour

// mourn ends the instances of others, at this backend, whose lease is not renewed, until ctx ends. Every proxy does it, so that the death of one
// delays the changes of maps by a lease and no more.
func (in *instance) mourn(ctx context.Context) {
	m := protocol.NewMourner(in.lease.length+in.lease.margin, 0)
	if d, err := in.linger(ctx); err == nil {
		m.Linger(d)
	}
	t := time.NewTicker(in.m.cfg.Renew / 2)
	defer t.Stop()
	swept := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		in.bearAway(ctx, m)
		if time.Since(swept) > time.Hour {
			swept = time.Now()
			_, _ = in.board.db.Collection(Instances).DeleteMany(ctx, bson.D{{Key: "gone", Value: true},
				{Key: "started", Value: bson.D{{Key: "$lt", Value: time.Now().Add(-keepGone)}}}})
		}
	}
}

// bearAway looks once. What fails is tried again at the next look.
func (in *instance) bearAway(ctx context.Context, m *protocol.Mourner) {
	ctx, cancel := context.WithTimeout(ctx, in.lease.length)
	defer cancel()
	began := time.Now()
	all, err := in.board.Instances(ctx)
	ended := time.Now()
	if err != nil {
		return
	}
	if slices.ContainsFunc(all, func(i protocol.Instance) bool { return i.Ended && i.Transactions && i.ID != in.id }) {
		d, err := in.linger(ctx) // it may have been raised
		if err != nil {
			return
		}
		m.Linger(d)
	}
	end, gone := m.Look(began, ended, all, func(id protocol.ID) bool { return id == in.id })
	for _, other := range end {
		if ok, err := in.board.End(ctx, other.ID, other.Renewals); ok && err == nil {
			in.m.cfg.Log.Warn().Str("backend", in.b.ID()).Str("proxy", other.Proxy).Msg("the lease of another proxy was not renewed; its instance is ended")
		}
	}
	if len(gone) > 0 {
		_ = in.board.Gone(ctx, gone)
	}
}

// linger is how long after its end a transaction of an instance may still be open at the backend: the lifetime in force, and one pass of the reaper. An error says that
// nothing was found out.
func (in *instance) linger(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, in.lease.length)
	defer cancel()
	body, err := in.b.Run(ctx, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "transactionLifetimeLimitSeconds", Value: 1}})
	if err != nil && (body == nil || wire.AsError(err).Code.Retriable()) {
		return 0, err
	}
	seconds, ok := body.Lookup("transactionLifetimeLimitSeconds").AsInt64OK()
	if err != nil || !ok || seconds <= 0 {
		return defaultLifetime + longestReap, nil
	}
	limit := time.Duration(seconds) * time.Second
	return limit + min(max(limit/2, shortestReap), longestReap), nil
}
