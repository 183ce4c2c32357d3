package integration

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

// Ids of compressors on the wire.
const (
	idNoop   = 0
	idSnappy = 1
	idZlib   = 2
	idZstd   = 3
)

// squeeze compresses with this compressor, independently of the proxy's own code.
func squeeze(t *testing.T, id byte, b []byte) []byte {
	t.Helper()
	switch id {
	case idSnappy:
		return snappy.Encode(nil, b)
	case idZlib:
		var out bytes.Buffer
		w := zlib.NewWriter(&out)
		if _, err := w.Write(b); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	case idZstd:
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return w.EncodeAll(b, nil)
	}
	return b
}

func unsqueeze(t *testing.T, id byte, b []byte) []byte {
	t.Helper()
	var out []byte
	var err error
	switch id {
	case idSnappy:
		out, err = snappy.Decode(nil, b)
	case idZlib:
		var r io.ReadCloser
		if r, err = zlib.NewReader(bytes.NewReader(b)); err == nil {
			out, err = io.ReadAll(r)
		}
	case idZstd:
		var r *zstd.Decoder
		if r, err = zstd.NewReader(nil); err == nil {
			defer r.Close()
			out, err = r.DecodeAll(b, nil)
		}
	default:
		out = b
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// compressed is an OP_COMPRESSED message: original opcode, declared size, compressor, bytes.
func compressed(id, original, size int32, compressor byte, data []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, uint32(original))
	p = binary.LittleEndian.AppendUint32(p, uint32(size))
	return rawconn.Frame(id, 0, rawconn.OpCompressed, append(append(p, compressor), data...))
}

func commandPayload(cmd bson.D) []byte { return rawconn.Msg(0, 0, rawconn.Kind0(cmd))[16:] }

// Case 31: the proxy offers what it speaks, answers each way as it was asked, and ends what is malformed.
func TestCase31Compression(t *testing.T) {
	c := dial(t, sharedProxy(t).Addr())
	hello := ask(t, c, "admin", bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"zstd", "gzip", "snappy", "zlib"}}})
	var offered struct{ Compression []string }
	if err := bson.Unmarshal(hello, &offered); err != nil || !slices.Equal(offered.Compression, []string{"zstd", "snappy", "zlib"}) {
		t.Fatalf("offered %v, %v", offered.Compression, err)
	}
	params := commandPayload(bson.D{{Key: "getParameter", Value: "*"}, {Key: "$db", Value: "admin"}}) // an answer worth compressing
	for _, id := range []byte{idZstd, idSnappy, idZlib, idNoop} {
		request := c.NextID()
		if err := c.Send(compressed(request, rawconn.OpMsg, int32(len(params)), id, squeeze(t, id, params))); err != nil {
			t.Fatal(err)
		}
		m, err := c.ReadMessage()
		if err != nil || m.ResponseTo != request {
			t.Fatalf("compressor %d: %+v, %v", id, m, err)
		}
		if m.Opcode == rawconn.OpCompressed {
			if used := m.Payload[8]; used != id {
				t.Errorf("asked with compressor %d, answered with %d", id, used)
			}
			size := binary.LittleEndian.Uint32(m.Payload[4:])
			m.Opcode, m.Payload = int32(binary.LittleEndian.Uint32(m.Payload)), unsqueeze(t, m.Payload[8], m.Payload[9:])
			if int(size) != len(m.Payload) {
				t.Errorf("compressor %d: declared %d bytes, has %d", id, size, len(m.Payload))
			}
		} else if id != idNoop {
			t.Errorf("compressor %d: answered uncompressed", id)
		}
		if body, err := m.Body(); err != nil || !rawconn.OK(body) {
			t.Errorf("compressor %d: %v, %v", id, body, err)
		}
	}
	if err := c.Send(rawconn.Frame(c.NextID(), 0, rawconn.OpMsg, params)); err != nil {
		t.Fatal(err)
	}
	if m, err := c.ReadMessage(); err != nil || m.Opcode != rawconn.OpMsg {
		t.Errorf("an uncompressed request is answered with opcode %d, %v", m.Opcode, err)
	}
	// Drivers never compress a handshake; one that comes so is answered in kind, as mongod does.
	first := dial(t, sharedProxy(t).Addr())
	again := commandPayload(bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"snappy"}}, {Key: "$db", Value: "admin"}})
	if err := first.Send(compressed(1, rawconn.OpMsg, int32(len(again)), idSnappy, squeeze(t, idSnappy, again))); err != nil {
		t.Fatal(err)
	}
	m, err := first.ReadMessage()
	if err != nil || m.Opcode != rawconn.OpCompressed {
		t.Fatalf("hello: opcode %d, %v", m.Opcode, err)
	}
	m.Opcode, m.Payload = rawconn.OpMsg, unsqueeze(t, m.Payload[8], m.Payload[9:])
	if body, err := m.Body(); err != nil || !rawconn.OK(body) {
		t.Errorf("hello: %v, %v", body, err)
	}
}

// Case 31: what is malformed ends the connection; nothing is allocated on a size that was only claimed.
func TestCase31MalformedCompression(t *testing.T) {
	ping := commandPayload(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	n := int32(len(ping))
	nested := compressed(1, rawconn.OpMsg, n, idSnappy, squeeze(t, idSnappy, ping))[16:]
	for name, message := range map[string][]byte{
		"unknown compressor":  compressed(1, rawconn.OpMsg, n, 77, ping),
		"size too small":      compressed(1, rawconn.OpMsg, n-1, idSnappy, squeeze(t, idSnappy, ping)),
		"size too large":      compressed(1, rawconn.OpMsg, n+1, idZlib, squeeze(t, idZlib, ping)),
		"size too small zstd": compressed(1, rawconn.OpMsg, n-1, idZstd, squeeze(t, idZstd, ping)),
		"2 GB":                compressed(1, rawconn.OpMsg, 1<<31-1, idZstd, squeeze(t, idZstd, ping)),
		"negative":            compressed(1, rawconn.OpMsg, -1, idZstd, squeeze(t, idZstd, ping)),
		"nested":              compressed(1, rawconn.OpCompressed, int32(len(nested)), idSnappy, squeeze(t, idSnappy, nested)),
		"garbage":             compressed(1, rawconn.OpMsg, n, idSnappy, []byte{0xff, 0xff, 0xff, 0xff, 0xff}),
		"no head":             rawconn.Frame(1, 0, rawconn.OpCompressed, []byte{1, 2, 3}),
	} {
		c := dial(t, sharedProxy(t).Addr())
		ask(t, c, "admin", bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"zstd", "snappy", "zlib"}}})
		if err := c.Send(message); err != nil {
			t.Fatal(err)
		}
		if !closed(c) {
			t.Errorf("%s is answered", name)
		}
	}
	must(t, dial(t, sharedProxy(t).Addr()), "admin", bson.D{{Key: "ping", Value: 1}})
}
