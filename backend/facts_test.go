package backend

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
)

// What is known of a backend is the least that holds of all its servers, and outlives them.
func TestFactsAreTheLeastOfAllServers(t *testing.T) {
	server := func(host string, kind description.ServerKind, wire int32) description.Server {
		s := description.Server{Addr: address.Address(host), Kind: kind}
		if wire > 0 {
			s.WireVersion = &description.VersionRange{Max: wire}
		}
		return s
	}
	f := (&facts{}).learn(description.Topology{SetName: "rs", Servers: []description.Server{
		server("a:1", description.ServerKindRSPrimary, 21), server("b:1", description.ServerKindRSSecondary, 17), server("c:1", description.Unknown, 0)}})
	want := facts{kind: KindReplicaSet, host: "rs/a:1,b:1,c:1", set: "rs", maxWire: 17, newestWire: 21, oldest: "b:1"}
	if *f != want {
		t.Errorf("facts are %+v, want %+v", *f, want)
	}
	if gone := f.learn(description.Topology{SetName: "rs", Servers: []description.Server{server("a:1", description.Unknown, 0)}}); gone != f {
		t.Errorf("with no server left facts are %+v", *gone)
	}
	alone := (&facts{}).learn(description.Topology{Servers: []description.Server{server("a:1", description.ServerKindStandalone, 25)}})
	if want := (facts{kind: KindStandalone, host: "a:1", maxWire: 25, newestWire: 25, oldest: "a:1"}); *alone != want {
		t.Errorf("facts of a standalone are %+v, want %+v", *alone, want)
	}
}
