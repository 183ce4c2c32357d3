package backend

import (
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
)

// pair makes a connection and returns both of its ends. They close with the test.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err == nil {
		server, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// EchoForTest puts a connection into the host's pool whose server answers {ok: 1} without allocating.
func EchoForTest(t *testing.T, b *Backend, host string) func() {
	t.Helper()
	if err := b.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	client, server := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		in := make([]byte, 4096)
		out := []byte{38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0, 0, 0, 0, 0, 0,
			17, 0, 0, 0, 1, 'o', 'k', 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0}
		for {
			if n, err := server.Read(in); err != nil || n < 16 {
				return
			}
			binary.LittleEndian.PutUint32(out[8:], binary.LittleEndian.Uint32(in[4:]))
			if _, err := server.Write(out); err != nil {
				return
			}
		}
	}()
	p := b.poolFor(address.Address(host))
	c := newConn(p, client)
	p.mu.Lock()
	p.all[c] = struct{}{}
	p.idle = append(p.idle, c)
	p.mu.Unlock()
	return func() {
		_ = client.SetDeadline(time.Now())
		_ = server.Close()
		<-done
	}
}

// KeptForTest is what is kept of a shape at a host.
func KeptForTest(b *Backend, host string, k Shape) time.Duration {
	return time.Duration(b.poolFor(address.Address(host)).shapes.slot(k).Load() & (1<<32 - 1))
}

// ForgetForTest has b take a host for one that has left its set.
func ForgetForTest(b *Backend, host string) { b.forget(address.Address(host)) }

// ReadingForTest returns when the call reads for its connection, or waits for who does.
func ReadingForTest(k *Call) {
	c := k.c
	for reads := false; !reads; runtime.Gosched() {
		c.mu.Lock()
		reads = k.leads || k.waits
		c.mu.Unlock()
	}
}

// SelectingForTest returns how many requests wait for a server to be found.
func SelectingForTest(b *Backend) int64 { return b.selecting.Load() }
