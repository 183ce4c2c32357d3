package backend_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// signed is a $clusterTime as a server with access control signs it.
func signed(at bson.Timestamp) bson.D {
	return bson.D{{Key: "clusterTime", Value: at}, {Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: []byte("12345678901234567890")}}, {Key: "keyId", Value: int64(7)}}}}
}

// pings counts a server's pings.
func pings(s *backendtest.Server) (n int) {
	for _, c := range s.Received() {
		if c.Name == "ping" {
			n++
		}
	}
	return n
}

// TestClusterTime: a time of a backend's that is to be read after comes with a $clusterTime of that
// backend's which its servers take: one they have sent, with its signature, or, where nobody logs
// in, one without. The primary is asked only for what is not known.
func TestClusterTime(t *testing.T) {
	at := func(sec uint32) bson.Timestamp { return bson.Timestamp{T: sec, I: 1} }
	const certificate = "mongodb://CN%3Dproxy@HOST/?authMechanism=MONGODB-X509&authSource=%24external"
	for _, tt := range []struct {
		what       string
		uri        string
		standalone bool
		clock      bson.Timestamp // of the server's replies
		wants      []bson.Timestamp
		signed     []bool // for each, whether the server's own is returned
		none       bool
		asked      int
	}{
		{what: "nobody logs in", wants: []bson.Timestamp{at(5), at(4)}, signed: []bool{false, false}},
		{what: "nobody logs in, and the server has said a later time", clock: at(9), wants: []bson.Timestamp{at(5)}, signed: []bool{true}},
		{what: "the primary is asked", uri: certificate, clock: at(9), wants: []bson.Timestamp{at(5), at(9), at(8)}, signed: []bool{true, true, true}, asked: 1},
		{what: "the primary does not know it", uri: certificate, clock: at(3), wants: []bson.Timestamp{at(5), at(5)}, none: true, asked: 1},
		{what: "a standalone", standalone: true, wants: []bson.Timestamp{at(5)}, none: true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			s := backendtest.New(t)
			if tt.standalone {
				s.SetHello(backendtest.Standalone())
			}
			s.SetScript(func(c backendtest.Command) backendtest.Answer {
				if tt.clock.IsZero() {
					return backendtest.OK()
				}
				return backendtest.OK(bson.E{Key: "$clusterTime", Value: signed(tt.clock)})
			})
			uri := s.URI()
			if tt.uri != "" {
				uri = strings.Replace(tt.uri, "HOST", s.Addr(), 1)
			}
			b := open(t, backend.Config{URI: uri})
			if err := b.Ready(within(t)); err != nil {
				t.Fatal(err)
			}
			if tt.uri == "" {
				if _, err := b.Run(within(t), "admin", bson.D{{Key: "buildInfo", Value: 1}}); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range tt.wants {
				doc := b.ClusterTime(within(t), want)
				if tt.none {
					if doc != nil {
						t.Errorf("after %v: %v", want, doc)
					}
					continue
				}
				var got bson.Timestamp
				got.T, got.I, _ = doc.Lookup("clusterTime").TimestampOK()
				if got.Before(want) || (doc.Lookup("signature", "keyId").Int64() == 7) != tt.signed[i] {
					t.Errorf("after %v: %v", want, doc)
				}
			}
			if n := pings(s); n != tt.asked {
				t.Errorf("the primary was asked %d times, want %d", n, tt.asked)
			}
		})
	}
}

// TestDriversReadsCarryTheClusterTime: what the proxy reads through the driver after a time that a
// reply has told carries that reply's $clusterTime.
func TestDriversReadsCarryTheClusterTime(t *testing.T) {
	s := backendtest.New(t)
	s.SetScript(func(backendtest.Command) backendtest.Answer {
		return backendtest.OK(bson.E{Key: "$clusterTime", Value: signed(bson.Timestamp{T: 9})})
	})
	b := open(t, backend.Config{URI: s.URI()})
	for range 2 {
		if err := b.Client().Database("admin").RunCommand(within(t), bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	all := s.Received()
	if sec, _, ok := all[len(all)-1].Body.Lookup("$clusterTime", "clusterTime").TimestampOK(); !ok || sec != 9 {
		t.Errorf("sent %v", all[len(all)-1].Body)
	}
}
