package rawconn

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestMessageComesBack(t *testing.T) {
	want := bson.D{{Key: "ping", Value: int32(1)}, {Key: "$db", Value: "admin"}}
	for _, flags := range []uint32{0, ChecksumPresent} {
		m, err := ReadMessage(bytes.NewReader(Msg(7, flags, Kind0(want), Kind1("documents", bson.D{{Key: "_id", Value: 1}}))))
		if err != nil {
			t.Fatal(err)
		}
		if m.RequestID != 7 || m.Opcode != OpMsg || m.Flags() != flags {
			t.Errorf("got %+v", m)
		}
		body, err := m.Body()
		if err != nil || !bytes.Equal(body, mustMarshal(want)) {
			t.Errorf("body %v, %v", body, err)
		}
		if m.ChecksumHolds() != (flags == ChecksumPresent) {
			t.Errorf("flags %d: checksum holds: %v", flags, m.ChecksumHolds())
		}
	}
}

func TestReadMessageRefusesLengths(t *testing.T) {
	for _, length := range []byte{0, 15} {
		b := make([]byte, 16)
		b[0] = length
		if _, err := ReadMessage(bytes.NewReader(b)); err == nil {
			t.Errorf("a length of %d was taken", length)
		}
	}
}
