package member

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// A lease must outlast an unplanned failover of its backend: while a replica set has no primary nobody can renew. What passes between the last renewal that
// the old primary confirmed and the first one that the new primary confirms is
//
//	the interval between two renewals
//	+ electionTimeoutMillis and up to 15 % of it, which is when a secondary calls for an election
//	+ the vote, and the new primary's catching up with what the others have
//	+ the proxy's finding the new primary, and one renewal that a majority confirms
const (
	// DefaultLease is how long a lease lasts unless something else is set, at a backend whose election timeout is the servers' own default.
	DefaultLease = 30 * time.Second
	// electionTimeout is the servers' default of settings.electionTimeoutMillis.
	electionTimeout = 10 * time.Second
)

// leaseFor is how long a lease lasts at a backend with that election timeout: DefaultLease at the servers' default, and as much longer or shorter as an
// election may take.
func leaseFor(election time.Duration) time.Duration {
	return DefaultLease + (election-electionTimeout)*115/100
}

// leaseLength is how long the lease of an instance that is about to join a backend lasts: what is set, or what follows from the backend's election timeout. It is
// written into the registration, so proxies need not find the same. An error says that the backend did not answer.
func (m *Member) leaseLength(ctx context.Context, b *backend.Backend) (time.Duration, error) {
	if m.cfg.Lease != 0 {
		return m.cfg.Lease, nil
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultLease)
	defer cancel()
	election, err := readElectionTimeout(ctx, b)
	return max(leaseFor(election), 2*m.cfg.Renew+m.cfg.Margin), err
}

// readElectionTimeout asks a backend for its election timeout. A backend that has none, or does not tell this user (the privilege is clusterMonitor's), is taken
// to have the servers' default. An error says that nothing was found out.
func readElectionTimeout(ctx context.Context, b *backend.Backend) (time.Duration, error) {
	body, err := b.Run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil && (body == nil || wire.AsError(err).Code.Retriable()) {
		return 0, err
	}
	millis, ok := body.Lookup("config", "settings", "electionTimeoutMillis").AsInt64OK()
	if err != nil || !ok || millis <= 0 {
		return electionTimeout, nil
	}
	return time.Duration(millis) * time.Millisecond, nil
}
