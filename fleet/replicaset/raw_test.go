package replicaset_test

import (
	"net"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// connectRaw returns a function that sends a command to a server, as it is, and returns the code of its reply; 0 when that is ok.
func connectRaw(t *testing.T, addr string) func(bson.D) int {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	from := wire.NewReader(nc)
	return func(cmd bson.D) int {
		t.Helper()
		body, err := bson.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(wire.AppendMsg(nil, 1, 0, 0, body)); err != nil {
			t.Fatal(err)
		}
		m, err := from.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		var msg wire.Msg
		if err := wire.ParseMsg(m, &msg); err != nil {
			t.Fatal(err)
		}
		if e := wire.ErrorFromReply(msg.Body); e != nil {
			return int(e.Code)
		}
		return 0
	}
}
