package backend

import (
	"sort"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// facts are what the servers last said of themselves. They outlive the servers' absence: a backend
// that is down is still a replica set. Immutable.
type facts struct {
	kind Kind
	host string
	set  string // the replica set's name; empty for a standalone
	// maxWire is the lowest maxWireVersion of the servers, newestWire the highest, and oldest a server that has maxWire.
	maxWire, newestWire int32
	oldest              string
}

// learn notes what d says.
func (b *Backend) learn(d description.Topology) {
	for {
		old := b.facts.Load()
		if next := old.learn(d); next == old || b.facts.CompareAndSwap(old, next) {
			return
		}
	}
}

// learn returns the facts after d, old itself when d says nothing new.
func (old *facts) learn(d description.Topology) *facts {
	next := *old
	var maxWire, newestWire int32
	var oldest string
	var hosts []string
	for i := range d.Servers {
		s := &d.Servers[i]
		if s.Kind == description.ServerKindStandalone {
			next.kind = KindStandalone
		} else if s.Kind&description.ServerKindRSMember != 0 && s.Kind < description.ServerKindMongos {
			next.kind = KindReplicaSet
		}
		if s.Kind != description.Unknown && s.WireVersion != nil {
			newestWire = max(newestWire, s.WireVersion.Max)
			if maxWire == 0 || s.WireVersion.Max < maxWire {
				maxWire, oldest = s.WireVersion.Max, s.Addr.String()
			}
		}
		hosts = append(hosts, s.Addr.String())
	}
	if maxWire == 0 {
		return old
	}
	next.maxWire, next.newestWire, next.oldest = maxWire, newestWire, oldest
	sort.Strings(hosts)
	next.host = strings.Join(hosts, ",")
	if name := setName(d); name != "" {
		next.set = name
		next.host = name + "/" + next.host
	}
	if next == *old {
		return old
	}
	return &next
}

// setName is the replica set's name: of the topology, or of the one server of a direct connection.
func setName(d description.Topology) string {
	if d.SetName != "" {
		return d.SetName
	}
	for i := range d.Servers {
		if d.Servers[i].SetName != "" {
			return d.Servers[i].SetName
		}
	}
	return ""
}

// seedString is the host string before any server has answered.
func seedString(opts *options.ClientOptions) string {
	hosts := make([]string, 0, len(opts.Hosts))
	for _, h := range opts.Hosts {
		hosts = append(hosts, address.Address(h).Canonicalize().String())
	}
	sort.Strings(hosts)
	s := strings.Join(hosts, ",")
	if opts.ReplicaSet != nil && *opts.ReplicaSet != "" {
		s = *opts.ReplicaSet + "/" + s
	}
	return s
}
