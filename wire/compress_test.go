package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var compressors = []Compressor{Snappy, Zlib, Zstd}

func TestCompressRoundTrip(t *testing.T) {
	_, each := stream(t)
	var wg sync.WaitGroup
	for _, c := range compressors {
		for _, msg := range each {
			wg.Add(1)
			go func() {
				defer wg.Done()
				before := []byte("before")
				out := AppendCompressed(bytes.Clone(before), msg, c)
				m := Message{Buf: &Buffer{B: out[len(before):]}}
				m.Header, _ = ParseHeader(m.Buf.B)
				want, _ := ParseHeader(msg)
				if !bytes.HasPrefix(out, before) || m.Header.OpCode != OpCompressed || m.Header.RequestID != want.RequestID {
					t.Errorf("compressor %d: the header is %+v", c, m.Header)
				}
				got, how, err := Decompress(m)
				if err != nil || how != c || got.Header != want || !bytes.Equal(got.Buf.B, msg) {
					t.Errorf("compressor %d: %v, %+v, how %d", c, err, got.Header, how)
					return
				}
				got.Release()
			}()
		}
	}
	wg.Wait()
}

func compressed(c Compressor, op OpCode, size int, data []byte) []byte {
	b := make([]byte, HeaderLen)
	PutHeader(b, Header{OpCode: OpCompressed})
	b = binary.LittleEndian.AppendUint32(b, uint32(op))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = append(append(b, byte(c)), data...)
	putLength(b, 0)
	return b
}

func TestDecompressRefuses(t *testing.T) {
	msg := AppendMsg(nil, 1, 0, 0, doc(t, bson.D{{Key: "ping", Value: make([]byte, 5000)}, {Key: "$db", Value: "d"}}))
	payload := msg[HeaderLen:]
	data := func(c Compressor) []byte { return AppendCompressed(nil, msg, c)[HeaderLen+compressedHead:] }
	try := func(name string, b []byte, want Code) {
		t.Helper()
		_, _, err := Decompress(message(t, b))
		var fatal *FatalError
		if !errors.As(err, &fatal) || fatal.Code != want {
			t.Errorf("%s: got %v, want the fatal %d", name, err, want)
		}
	}
	for _, c := range compressors {
		good := data(c)
		if _, _, err := Decompress(message(t, compressed(c, OpMsg, len(payload), good))); err != nil {
			t.Fatalf("compressor %d: %v", c, err)
		}
		try("declared too small", compressed(c, OpMsg, len(payload)-1, good), BadValue)
		try("declared too large", compressed(c, OpMsg, len(payload)+1, good), BadValue)
		try("declared 2 GB", compressed(c, OpMsg, 1<<31-1, good), BadValue)
		try("declared negative", compressed(c, OpMsg, -1, good), BadValue)
		try("declared all there may be", compressed(c, OpMsg, MaxMessageSize-HeaderLen, good), BadValue)
		try("cut off", compressed(c, OpMsg, len(payload), good[:len(good)-1]), BadValue)
		try("garbage", compressed(c, OpMsg, len(payload), bytes.Repeat([]byte{0xa5}, 2000)), BadValue)
		try("nothing", compressed(c, OpMsg, len(payload), nil), BadValue)
		try("nested", compressed(c, OpCompressed, len(payload), good), ProtocolError)
	}
	wrongSum := bytes.Clone(data(Zlib))
	wrongSum[len(wrongSum)-1] ^= 1
	try("zlib checksum", compressed(Zlib, OpMsg, len(payload), wrongSum), BadValue)
	try("noop of another size", compressed(NoCompression, OpMsg, len(payload), payload[1:]), BadValue)
	try("unknown compressor", compressed(9, OpMsg, len(payload), payload), InternalError)
}

func TestNegotiateCompressors(t *testing.T) {
	for _, tt := range []struct{ in, want []string }{
		{nil, nil},
		{[]string{"zstd", "snappy", "zlib"}, []string{"zstd", "snappy", "zlib"}},
		{[]string{"lz4", "zlib", "noop", "snappy", "zlib"}, []string{"zlib", "snappy"}},
		{[]string{"", "SNAPPY"}, nil},
	} {
		if got := NegotiateCompressors(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("NegotiateCompressors(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	for _, c := range compressors {
		name := map[Compressor]string{Snappy: "snappy", Zlib: "zlib", Zstd: "zstd"}[c]
		if got, ok := CompressorByName(name); got != c || !ok {
			t.Errorf("CompressorByName(%q) = %d, %v", name, got, ok)
		}
	}
}
