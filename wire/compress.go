package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Compressor is a compression of OP_COMPRESSED, by its number on the wire.
type Compressor uint8

// The compressors. NoCompression means that a message is sent as it is.
const (
	NoCompression Compressor = 0
	Snappy        Compressor = 1
	Zlib          Compressor = 2
	Zstd          Compressor = 3
)

// compressedHead is what follows the header: original opcode, uncompressed size, compressor.
const compressedHead = 9

// CompressorByName returns the compressor that hello calls name.
func CompressorByName(name string) (Compressor, bool) {
	switch name {
	case "snappy":
		return Snappy, true
	case "zlib":
		return Zlib, true
	case "zstd":
		return Zstd, true
	}
	return NoCompression, false
}

// NegotiateCompressors returns those of a client's names that we speak, in the client's order, each once.
func NegotiateCompressors(names []string) []string {
	var out []string
	for _, n := range names {
		if _, ok := CompressorByName(n); !ok {
			continue
		}
		twice := false
		for _, o := range out {
			twice = twice || o == n
		}
		if !twice {
			out = append(out, n)
		}
	}
	return out
}

// Decompress returns the message that an OP_COMPRESSED holds, in a buffer of its own, and how it was compressed. m is not released.
// The declared size is checked before anything is allocated and must be met exactly; every failure is a *FatalError.
func Decompress(m Message) (Message, Compressor, error) {
	p := m.Payload()
	if len(p) < compressedHead {
		return Message{}, 0, Fatalf(BadValue, "OP_COMPRESSED of %d bytes", len(m.Buf.B))
	}
	op := OpCode(binary.LittleEndian.Uint32(p))
	size := int32(binary.LittleEndian.Uint32(p[4:]))
	c := Compressor(p[8])
	p = p[compressedHead:]
	switch {
	case op == OpCompressed:
		return Message{}, c, Fatalf(ProtocolError, "OP_COMPRESSED within OP_COMPRESSED")
	case size < 0 || size > MaxMessageSize-HeaderLen:
		return Message{}, c, Fatalf(BadValue, "OP_COMPRESSED declares a size of %d bytes", size)
	case c > Zstd:
		return Message{}, c, Fatalf(InternalError, "unknown compressor %d", c)
	case !plausible(c, len(p), int(size)):
		return Message{}, c, Fatalf(BadValue, "OP_COMPRESSED declares %d bytes in %d", size, len(p))
	}
	buf := GetBuffer(HeaderLen + int(size))
	if err := decompressInto(buf.B[HeaderLen:], p, c); err != nil {
		buf.Release()
		return Message{}, c, Fatalf(BadValue, "OP_COMPRESSED: %v", err)
	}
	h := Header{MessageLength: int32(len(buf.B)), RequestID: m.Header.RequestID, ResponseTo: m.Header.ResponseTo, OpCode: op}
	PutHeader(buf.B, h)
	return Message{Header: h, Buf: buf}, c, nil
}

// plausible refuses sizes that no input of that length can have before memory is taken for them.
func plausible(c Compressor, have, size int) bool {
	switch c {
	case NoCompression:
		return have == size
	case Snappy:
		return size <= have*64 // a copy element of 3 bytes makes at most 64
	case Zlib:
		return size <= have*1100 // deflate's limit is 1032
	}
	return true
}

func decompressInto(dst, src []byte, c Compressor) error {
	switch c {
	case NoCompression:
		copy(dst, src)
		return nil
	case Snappy:
		n, err := snappy.DecodedLen(src)
		if err != nil || n != len(dst) {
			return errSize(n, len(dst), err)
		}
		_, err = snappy.Decode(dst, src)
		return err
	case Zlib:
		return inflate(dst, src)
	}
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer func() {
		_ = d.Reset(nil) // hold on to nobody's bytes
		zstdDecoders.Put(d)
	}()
	if err := d.Reset(bytes.NewReader(src)); err != nil {
		return err
	}
	return readExactly(d, dst)
}

// zlibReader is a decompressor and what it reads from.
type zlibReader struct {
	src bytes.Reader
	zr  io.ReadCloser
}

var zlibReaders = sync.Pool{New: func() any { return new(zlibReader) }}

func inflate(dst, src []byte) (err error) {
	r := zlibReaders.Get().(*zlibReader)
	r.src.Reset(src)
	defer func() {
		r.src.Reset(nil)
		zlibReaders.Put(r)
	}()
	if r.zr == nil {
		r.zr, err = zlib.NewReader(&r.src)
	} else {
		err = r.zr.(zlib.Resetter).Reset(&r.src, nil)
	}
	if err != nil {
		return err
	}
	return readExactly(r.zr, dst)
}

// readExactly fills dst and demands that r ends there, its checksum right.
func readExactly(r io.Reader, dst []byte) error {
	if n, err := io.ReadFull(r, dst); err != nil {
		return errSize(n, len(dst), err)
	}
	var one [1]byte
	switch n, err := io.ReadFull(r, one[:]); {
	case n != 0:
		return fmt.Errorf("more than the declared %d bytes", len(dst))
	case err != io.EOF:
		return err
	}
	return nil
}

func errSize(got, want int, err error) error {
	return fmt.Errorf("%d bytes instead of the declared %d (%v)", got, want, err)
}

var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxMessageSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic("BUG: zstd decoder options: " + err.Error())
	}
	return d
}}

var zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic("BUG: zstd encoder options: " + err.Error())
	}
	return e
})

var zlibWriters = sync.Pool{New: func() any { return zlib.NewWriter(io.Discard) }}

// AppendCompressed appends to dst the whole message msg as an OP_COMPRESSED; as it is when c is NoCompression or when the
// compressed form would be longer than a message may be.
func AppendCompressed(dst, msg []byte, c Compressor) []byte {
	if c == NoCompression {
		return append(dst, msg...)
	}
	start := len(dst)
	h, err := ParseHeader(msg)
	if err != nil {
		return append(dst, msg...)
	}
	dst = append(dst, msg[:HeaderLen]...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.OpCode))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(msg)-HeaderLen))
	dst = append(dst, byte(c))
	dst = compressOnto(dst, msg[HeaderLen:], c)
	if len(dst)-start > MaxMessageSize {
		return append(dst[:start], msg...)
	}
	PutHeader(dst[start:], Header{MessageLength: int32(len(dst) - start), RequestID: h.RequestID, ResponseTo: h.ResponseTo, OpCode: OpCompressed})
	return dst
}

func compressOnto(dst, src []byte, c Compressor) []byte {
	switch c {
	case Snappy:
		dst = slices.Grow(dst, snappy.MaxEncodedLen(len(src)))
		return dst[:len(dst)+len(snappy.Encode(dst[len(dst):cap(dst)], src))]
	case Zlib:
		out := bytes.NewBuffer(dst)
		w := zlibWriters.Get().(*zlib.Writer)
		w.Reset(out)
		_, _ = w.Write(src) // a bytes.Buffer does not fail
		_ = w.Close()
		zlibWriters.Put(w)
		return out.Bytes()
	}
	return zstdEncoder().EncodeAll(src, dst)
}
