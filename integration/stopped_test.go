package integration

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/rawconn"
	"github.com/shardway/shardway/integration/running"
)

// TestStoppedProxyAnswersNothingStale stops a proxy for longer than its lease, with a read and a write in its sockets, while another one changes the document and moves its partition. When it goes
// on it must not answer with what was there before, and what it acknowledges must be there.
func TestStoppedProxyAnswersNothingStale(t *testing.T) {
	f := fleettest.Start(t, 2)
	fleettest.Need(t, f, fleet.ReplicaSet)
	var proxies []*running.Proxy
	for range 2 {
		proxies = append(proxies, running.Test(t, f.Servers, faultSettings...))
	}
	other := connect(t, proxies[1].URI())
	command(t, other, "admin", shardCmd("stale.c", "k"))
	coll := other.Database("stale").Collection("c")
	if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "n", Value: 0}, {Key: "m", Value: 0}}); err != nil {
		t.Fatal(err)
	}
	filter := bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}
	read := bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}, {Key: "$db", Value: "stale"}}
	write := bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "m", Value: 1}}}}}}}}, {Key: "$db", Value: "stale"}}
	acked, unknown := 0, 0
	for round := 1; round <= 3; round++ {
		reader, writer := dial(t, proxies[0].Addr()), dial(t, proxies[0].Addr())
		for _, c := range []*rawconn.Conn{reader, writer} { // both stand, and the proxy knows the partition
			if reply, err := c.Run(read); err != nil || !rawconn.OK(reply) {
				t.Fatal(reply, err)
			}
		}
		pid := proxies[0].PID()
		stop(t, pid)
		for c, cmd := range map[*rawconn.Conn]bson.D{reader: read, writer: write} {
			if err := c.Send(rawconn.Msg(c.NextID(), 0, rawconn.Kind0(cmd))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := coll.UpdateOne(t.Context(), filter, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: round}}}}); err != nil {
			t.Fatal(err)
		}
		all, err := chunks(t.Context(), connect(t, f.Servers[0].URI()), "stale.c")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all { // whichever it is in; a move that waited for the stopped process would never end
			to := "b1"
			if c.Shard == "b1" {
				to = "b2"
			}
			command(t, other, "admin", bson.D{{Key: "moveChunk", Value: "stale.c"}, {Key: "bounds", Value: c.bounds()}, {Key: "to", Value: to}})
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for c := range map[*rawconn.Conn]bool{reader: true, writer: true} {
			m, err := c.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			reply, err := m.Body()
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c == writer && rawconn.OK(reply):
				acked++
			case c == writer:
				unknown++
			case rawconn.OK(reply):
				docs, _ := batchOf(t, reply)
				if len(docs) != 1 || docs[0].Lookup("n").AsInt64() != int64(round) {
					t.Errorf("round %d: read %v after n was set to %d", round, docs, round)
				}
			}
		}
		eventually(t, killSettle, fmt.Sprintf("round %d: the proxy serves again", round), func(context.Context) bool {
			reply, err := reader.Run(read)
			return err == nil && rawconn.OK(reply)
		})
	}
	var doc struct{ N, M int }
	if err := coll.FindOne(t.Context(), filter).Decode(&doc); err != nil || doc.N != 3 || doc.M < acked || doc.M > acked+unknown {
		t.Errorf("n is %d, m %d, %v; %d writes were acknowledged, %d not", doc.N, doc.M, err, acked, unknown)
	}
}
