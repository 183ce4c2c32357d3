package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/iotest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// stream is three messages: small, larger than the first read, larger than what gets memory at once.
func stream(t testing.TB) (all []byte, each [][]byte) {
	for i, n := range []int{1, 10_000, 3 * trusted} {
		body := doc(t, bson.D{{Key: "ping", Value: make([]byte, n)}, {Key: "$db", Value: "d"}})
		each = append(each, AppendMsg(nil, int32(i), 0, 0, body))
		all = append(all, each[i]...)
	}
	return all, each
}

func expect(t *testing.T, r *Reader, each [][]byte) {
	t.Helper()
	for i, want := range each {
		m, err := r.ReadMessage()
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if !bytes.Equal(m.Buf.B, want) {
			t.Fatalf("message %d has %d bytes and differs from the %d that were sent", i, len(m.Buf.B), len(want))
		}
		m.Release()
	}
	if _, err := r.ReadMessage(); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestReader(t *testing.T) {
	all, each := stream(t)
	for name, src := range map[string]io.Reader{
		"all at once":       bytes.NewReader(all),
		"byte by byte":      iotest.OneByteReader(bytes.NewReader(all)),
		"halves":            iotest.HalfReader(bytes.NewReader(all)),
		"data with the EOF": iotest.DataErrReader(bytes.NewReader(all)),
	} {
		t.Run(name, func(t *testing.T) { expect(t, NewReader(src), each) })
	}
}

func TestReaderTCP(t *testing.T) {
	client, server := tcpPair(t)
	all, each := stream(t)
	go func() {
		_, _ = client.Write(all[:7]) // within a header
		_, _ = client.Write(all[7:])
		_ = client.Close()
	}()
	expect(t, NewReader(NewSocket(server)), each)
}

func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// stuttering gives a few bytes and a deadline's end in turns.
type stuttering struct {
	src io.Reader
	end bool
}

func (s *stuttering) Read(p []byte) (int, error) {
	if s.end = !s.end; s.end {
		return 0, os.ErrDeadlineExceeded
	}
	return s.src.Read(p[:min(len(p), 4001)])
}

// TestReaderGoesOnAfterADeadline: whatever was read when a deadline ended is not lost.
func TestReaderGoesOnAfterADeadline(t *testing.T) {
	all, each := stream(t)
	r := NewReader(&stuttering{src: bytes.NewReader(all)})
	for i, want := range each {
		m, err := r.ReadMessage()
		for errors.Is(err, os.ErrDeadlineExceeded) {
			m, err = r.ReadMessage()
		}
		if err != nil || !bytes.Equal(m.Buf.B, want) {
			t.Fatalf("message %d: %v, or another one", i, err)
		}
		m.Release()
	}
}

func TestReaderDeadline(t *testing.T) {
	_, server := tcpPair(t)
	_ = server.SetReadDeadline(time.Unix(1, 0))
	var ne net.Error
	if _, err := NewReader(NewSocket(server)).ReadMessage(); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("got %v, want a timeout", err)
	}
}

func TestReaderEnds(t *testing.T) {
	_, each := stream(t)
	for _, msg := range each {
		for _, n := range []int{1, HeaderLen - 1, HeaderLen, len(msg) - 1} {
			_, err := NewReader(bytes.NewReader(msg[:n])).ReadMessage()
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("after %d of %d bytes: %v", n, len(msg), err)
			}
		}
	}
	for _, length := range []int32{-1, 0, 15, MaxMessageSize + 1, 0x7fffffff} {
		b := make([]byte, HeaderLen)
		binary.LittleEndian.PutUint32(b, uint32(length))
		var fatal *FatalError
		if _, err := NewReader(bytes.NewReader(b)).ReadMessage(); !errors.As(err, &fatal) {
			t.Errorf("length %d: %v", length, err)
		}
	}
}

// TestReaderTrustsNoLength: a header that declares 48 MB takes no such memory.
func TestReaderTrustsNoLength(t *testing.T) {
	b := make([]byte, HeaderLen)
	PutHeader(b, Header{MessageLength: MaxMessageSize, OpCode: OpMsg})
	res := testing.Benchmark(func(bm *testing.B) {
		bm.ReportAllocs()
		for bm.Loop() {
			if _, err := NewReader(bytes.NewReader(b)).ReadMessage(); err == nil {
				bm.Fatal("no error")
			}
		}
	})
	if got := res.AllocedBytesPerOp(); got > 2*trusted {
		t.Errorf("took %d bytes for a message of which 16 came", got)
	}
}

func TestBufferClasses(t *testing.T) {
	for _, n := range []int{0, 1, 512, 513, 4096, 2 << 20, 2<<20 + 1} {
		b := GetBuffer(n)
		if len(b.B) != n {
			t.Errorf("GetBuffer(%d) has %d bytes", n, len(b.B))
		}
		copy(b.B, "abc")
		b.Grow(1000)
		if len(b.B) != n || cap(b.B) < n+1000 || n > 3 && string(b.B[:3]) != "abc" {
			t.Errorf("Grow lost what was there, or has no room: len %d, cap %d", len(b.B), cap(b.B))
		}
		b.Release()
	}
	odd := &Buffer{B: make([]byte, 777)}
	odd.Release() // dropped
	(*Buffer)(nil).Release()
	if b := GetBuffer(700); cap(b.B) == 777 {
		t.Error("an odd buffer came back from the pool")
	}
}
