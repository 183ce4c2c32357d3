package link

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that sends back what it hears.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

func open(t *testing.T) (*Link, net.Conn) {
	t.Helper()
	k, err := New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k, dial(t, k)
}

func dial(t *testing.T, k *Link) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", k.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c net.Conn, text string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v, want %q", got, err, text)
	}
}

func TestPassesBytes(t *testing.T) {
	_, c := open(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	go c.Write(want)
	expect(t, c, string(want))
}

func TestHalfClose(t *testing.T) {
	_, c := open(t)
	send(t, c, "bye")
	c.(*net.TCPConn).CloseWrite()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestDelay(t *testing.T) {
	k, c := open(t)
	const d = 60 * time.Millisecond
	k.Delay(d)
	start := time.Now()
	send(t, c, "x")
	expect(t, c, "x")
	if took := time.Since(start); took < 2*d {
		t.Fatalf("a round trip took %v, want at least %v", took, 2*d)
	}
}

func TestBlackHoleThenResume(t *testing.T) {
	k, c := open(t)
	k.BlackHole()
	send(t, c, "held")
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
	late := dial(t, k)
	send(t, late, "late")
	k.Resume()
	expect(t, c, "held")
	expect(t, late, "late")
}

func TestCutThenResume(t *testing.T) {
	k, c := open(t)
	send(t, c, "x")
	expect(t, c, "x")
	k.Cut()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read from a cut connection: %v", err)
	}
	if refused, err := net.Dial("tcp", k.Addr()); err == nil { // the reset may come before the dial returns
		defer refused.Close()
		refused.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := refused.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read from a connection made while cut: %v", err)
		}
	}
	k.Resume()
	again := dial(t, k)
	send(t, again, "y")
	expect(t, again, "y")
}

func TestCloseInABlackHole(t *testing.T) {
	k, c := open(t)
	send(t, c, "x")
	expect(t, c, "x")
	k.BlackHole()
	send(t, c, "y")
	done := make(chan struct{})
	go func() { k.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not return while bytes are held")
	}
}
