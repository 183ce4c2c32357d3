package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FuzzParseMsg: no input panics, every failure is of one of the two classes, and what parses is written back as the same bytes
// (the sections in the order in which we write them).
func FuzzParseMsg(f *testing.F) {
	body, one := insert(f), doc(f, bson.D{{Key: "_id", Value: 1}})
	f.Add(opMsg(0, kind0(body))[HeaderLen:])
	f.Add(opMsg(ChecksumPresent, kind0(body), kind1("documents", one, one))[HeaderLen:])
	f.Add(opMsg(MoreToCome, kind1("ops", one), kind0(body), kind1("nsInfo", one))[HeaderLen:])
	f.Add(opMsg(0, kind0(body), kind0(body))[HeaderLen:])
	f.Add(opMsg(0, []byte{2})[HeaderLen:])
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := make([]byte, HeaderLen, HeaderLen+len(payload))
		b = append(b, payload...)
		PutHeader(b, Header{MessageLength: int32(len(b)), RequestID: 3, OpCode: OpMsg})
		if len(payload) >= 8 && payload[0]&1 != 0 {
			b = Seal(b[:len(b)-4], 0) // or no input with a checksum would get further
		}
		var m Msg
		if err := ParseMsg(message(t, b), &m); err != nil {
			checkClass(t, err)
			return
		}
		_, _, _, err := m.Command()
		if err != nil {
			checkClass(t, err)
		}
		total := 0
		for _, s := range m.Sequences {
			for d := range s.All {
				total += len(d)
			}
			total -= len(s.Docs)
		}
		if total != 0 {
			t.Fatalf("the documents of the sequences miss %d bytes", -total)
		}
		again := AppendMsg(nil, 3, 0, m.Flags, m.Body, m.Sequences...)
		if len(again) != len(b) || b[HeaderLen+4] == 0 && !bytes.Equal(again, b) {
			t.Fatalf("written back differs:\n% x\n% x", b, again)
		}
	})
}

func checkClass(t *testing.T, err error) {
	var fatal *FatalError
	var plain *Error
	if !errors.As(err, &fatal) && !errors.As(err, &plain) {
		t.Fatalf("an error of no class: %v", err)
	}
}

// FuzzParseQuery: no input panics.
func FuzzParseQuery(f *testing.F) {
	f.Add(append([]byte("\x00\x00\x00\x00admin.$cmd\x00\x00\x00\x00\x00\xff\xff\xff\xff"), doc(f, bson.D{{Key: "$query", Value: bson.D{{Key: "hello", Value: 1}}}})...))
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := append(make([]byte, HeaderLen), payload...)
		PutHeader(b, Header{MessageLength: int32(len(b)), OpCode: OpQuery})
		if _, err := ParseQuery(message(t, b)); err != nil {
			checkClass(t, err)
		}
	})
}

// FuzzDecompress: no input panics or gives another size than it declares, and what is decompressed compresses again.
func FuzzDecompress(f *testing.F) {
	msg := opMsg(0, kind0(insert(f)))
	for _, c := range compressors {
		f.Add(byte(c), uint32(len(msg)-HeaderLen), AppendCompressed(nil, msg, c)[HeaderLen+compressedHead:])
	}
	f.Add(byte(0), uint32(3), []byte("abc"))
	f.Fuzz(func(t *testing.T, c byte, size uint32, data []byte) {
		if size > 1<<20 && size < 1<<31 {
			size %= 1 << 20 // as legal, and lets the fuzzer run
		}
		m, how, err := Decompress(message(t, compressed(Compressor(c), OpMsg, int(int32(size)), data)))
		if err != nil {
			var fatal *FatalError
			if !errors.As(err, &fatal) {
				t.Fatalf("not fatal: %v", err)
			}
			return
		}
		if len(m.Payload()) != int(size) {
			t.Fatalf("%d bytes, declared %d", len(m.Payload()), size)
		}
		again, _, err := Decompress(message(t, AppendCompressed(nil, m.Buf.B, max(how, Snappy))))
		if err != nil || !bytes.Equal(again.Buf.B, m.Buf.B) {
			t.Fatalf("compressed again: %v", err)
		}
	})
}

// chunks reads b in pieces of the given sizes, in turn.
type chunks struct{ b, sizes []byte }

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.b))
	if len(c.sizes) > 0 {
		n = min(n, int(c.sizes[0])+1)
		c.sizes = append(c.sizes[1:], c.sizes[0])
	}
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

// FuzzReader: however the bytes come, the reader gives the frames that are in them and then the right end.
func FuzzReader(f *testing.F) {
	one := opMsg(0, kind0(insert(f)))
	f.Add(append(bytes.Clone(one), one...), []byte{0, 15, 2})
	f.Add(one[:len(one)-1], []byte{16})
	f.Add([]byte{15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{})
	f.Fuzz(func(t *testing.T, in, sizes []byte) {
		r := NewReader(&chunks{b: in, sizes: bytes.Clone(sizes)})
		defer r.Release()
		for rest := in; ; {
			m, err := r.ReadMessage()
			var fatal *FatalError
			switch length := int32(0); {
			case len(rest) == 0:
				if err != io.EOF {
					t.Fatalf("at the end: %v", err)
				}
				return
			case len(rest) >= HeaderLen:
				length = int32(binary.LittleEndian.Uint32(rest))
				if length < HeaderLen || length > MaxMessageSize {
					if !errors.As(err, &fatal) {
						t.Fatalf("length %d: %v", length, err)
					}
					return
				}
				if int(length) <= len(rest) {
					if err != nil || !bytes.Equal(m.Buf.B, rest[:length]) {
						t.Fatalf("a whole frame of %d bytes: %v", length, err)
					}
					m.Release()
					rest = rest[length:]
					continue
				}
				fallthrough
			default:
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("within a frame: %v", err)
				}
				return
			}
		}
	})
}
