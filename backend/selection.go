package backend

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/shardway/shardway/wire"
)

// latencyWindow is how much slower than the nearest suitable server another may be to be chosen.
const latencyWindow = 15 * time.Millisecond

// minStaleness is the smallest maxStalenessSeconds the server selection rules allow.
const minStaleness = 90 * time.Second

// selectServer returns the address of a server that suits rp (nil: the primary), waiting for one until
// ctx's end, the request's deadline or until; a zero until is the selection timeout from now.
// waited says that none was known at once. The error is an *UnsentError.
func (b *Backend) selectServer(ctx context.Context, rp *readpref.ReadPref, deadline, until time.Time) (addr address.Address, waited bool, err error) {
	d := b.topo.Description()
	if d.CompatibilityErr == nil {
		if addr := quickSelect(d, rp); addr != "" {
			return addr, false, nil
		}
	}
	if b.selecting.Add(1) > int64(b.cfg.MaxWaiters) {
		b.selecting.Add(-1)
		return "", false, b.unsent("", wire.HostUnreachable, errors.New("too many requests wait for it already"))
	}
	defer b.selecting.Add(-1)
	addr, err = b.awaitServer(ctx, rp, deadline, until)
	return addr, true, err
}

// awaitServer is the slow half of selectServer: it has the monitors look at once, and waits for them.
func (b *Backend) awaitServer(ctx context.Context, rp *readpref.ReadPref, deadline, until time.Time) (address.Address, error) {
	if until.IsZero() {
		until = time.Now().Add(b.cfg.SelectionTimeout)
	}
	wait, cancel := context.WithDeadline(ctx, sooner(until, deadline))
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	srv, err := b.topo.SelectServer(wait, selector{rp})
	if err == nil {
		s, ok := srv.(*topology.SelectedServer)
		if !ok {
			return "", b.unsent("", wire.InternalError, errors.New("the driver answered with an unknown type of server"))
		}
		return s.Description().Server.Addr, nil
	}
	switch {
	case b.life.Err() != nil:
		return "", b.unsent("", wire.HostUnreachable, errClosed)
	case ctx.Err() != nil || (!deadline.IsZero() && deadline.Before(until)):
		return "", b.unsent("", ctxCode(ctx), b.whyNone(err))
	case rp != nil && rp.Mode() != readpref.PrimaryMode:
		return "", b.unsent("", wire.FailedToSatisfyReadPreference, b.whyNone(err))
	}
	return "", b.unsent("", wire.HostUnreachable, b.whyNone(err))
}

// whyNone says in few words why no server was found: the last error of each.
func (b *Backend) whyNone(err error) error {
	var sel topology.ServerSelectionError
	if !errors.As(err, &sel) {
		return err
	}
	for i := range sel.Desc.Servers {
		if s := &sel.Desc.Servers[i]; s.LastError != nil {
			return s.LastError
		}
	}
	return errors.New("no server that suits the read preference, or no primary, was found in time")
}

// ctxCode is what a client is told when its own deadline or its going ended a request.
func ctxCode(ctx context.Context) wire.Code {
	if errors.Is(ctx.Err(), context.Canceled) {
		return wire.ClientDisconnect
	}
	return wire.MaxTimeMSExpired
}

func (b *Backend) unsent(host string, code wire.Code, err error) *UnsentError {
	return &UnsentError{Backend: b.cfg.ID, Host: host, Code: code, Err: err}
}

// quickSelect finds a server in d without allocating; "" when there is none.
func quickSelect(d description.Topology, rp *readpref.ReadPref) address.Address {
	if rp != nil && rp.Mode() != readpref.PrimaryMode && d.Kind&description.TopologyKindReplicaSet != 0 {
		servers := eligible(d, d.Servers, rp)
		if len(servers) == 0 {
			return ""
		}
		return servers[rand.IntN(len(servers))].Addr
	}
	for i := range d.Servers {
		if takesAll(d.Kind, d.Servers[i].Kind) {
			return d.Servers[i].Addr
		}
	}
	return ""
}

// takesAll reports whether a server is the one to send everything to: a primary, a standalone, or
// the data-bearing server of a direct connection.
func takesAll(topo description.TopologyKind, s description.ServerKind) bool {
	switch s {
	case description.ServerKindRSPrimary, description.ServerKindStandalone:
		return true
	case description.ServerKindRSSecondary:
		return topo == description.TopologyKindSingle
	}
	return false
}

// selector makes eligible the driver's selector.
type selector struct{ rp *readpref.ReadPref }

// SelectServer implements description.ServerSelector.
func (s selector) SelectServer(d description.Topology, candidates []description.Server) ([]description.Server, error) {
	return eligible(d, candidates, s.rp), nil
}

// eligible returns the servers that suit rp by the rules of the server selection specification: mode,
// staleness, tags, then the latency window. It does not change servers.
func eligible(d description.Topology, servers []description.Server, rp *readpref.ReadPref) []description.Server {
	var primary, secondaries []description.Server
	for _, s := range servers {
		switch {
		case takesAll(d.Kind, s.Kind):
			primary = append(primary, s)
		case s.Kind == description.ServerKindRSSecondary:
			secondaries = append(secondaries, s)
		}
	}
	if rp == nil || d.Kind&description.TopologyKindReplicaSet == 0 {
		return primary
	}
	secondaries = tagged(fresh(primary, secondaries, rp), rp.TagSets())
	switch rp.Mode() {
	case readpref.PrimaryMode:
		return primary
	case readpref.PrimaryPreferredMode:
		if len(primary) > 0 {
			return primary
		}
		return near(secondaries)
	case readpref.SecondaryMode:
		return near(secondaries)
	case readpref.SecondaryPreferredMode:
		if len(secondaries) > 0 {
			return near(secondaries)
		}
		return primary
	}
	return near(tagged(append(primary, secondaries...), rp.TagSets()))
}

// fresh drops the secondaries that lag more than the read preference allows, estimated as the
// specification says: against the primary, or against the freshest secondary when there is none.
func fresh(primary, secondaries []description.Server, rp *readpref.ReadPref) []description.Server {
	limit, set := rp.MaxStaleness()
	if !set || limit <= 0 {
		return secondaries
	}
	limit = max(limit, minStaleness)
	var kept []description.Server
	var newest time.Time
	for _, s := range secondaries {
		if s.LastWriteTime.After(newest) {
			newest = s.LastWriteTime
		}
	}
	for _, s := range secondaries {
		lag := newest.Sub(s.LastWriteTime) + s.HeartbeatInterval
		if len(primary) > 0 {
			p := primary[0]
			lag = s.LastUpdateTime.Sub(s.LastWriteTime) - p.LastUpdateTime.Sub(p.LastWriteTime) + s.HeartbeatInterval
		}
		if lag <= limit {
			kept = append(kept, s)
		}
	}
	return kept
}

// tagged keeps the servers of the first tag set that any matches; no tag sets match all.
func tagged(servers []description.Server, sets []tag.Set) []description.Server {
	if len(sets) == 0 {
		return servers
	}
	for _, set := range sets {
		var kept []description.Server
		for _, s := range servers {
			if s.Tags.ContainsAll(set) {
				kept = append(kept, s)
			}
		}
		if len(kept) > 0 {
			return kept
		}
	}
	return nil
}

// near keeps the servers within the latency window of the nearest.
func near(servers []description.Server) []description.Server {
	if len(servers) < 2 {
		return servers
	}
	best := time.Duration(-1)
	for _, s := range servers {
		if s.AverageRTTSet && (best < 0 || s.AverageRTT < best) {
			best = s.AverageRTT
		}
	}
	if best < 0 {
		return servers
	}
	var kept []description.Server
	for _, s := range servers {
		if s.AverageRTTSet && s.AverageRTT <= best+latencyWindow {
			kept = append(kept, s)
		}
	}
	return kept
}
