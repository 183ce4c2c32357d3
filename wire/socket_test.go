package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sockets returns both ends of a connection, the first as a Socket.
func sockets(t *testing.T) (*Socket, *net.TCPConn) {
	t.Helper()
	client, peer := tcpPair(t)
	s, ok := NewSocket(client).(*Socket)
	if !ok {
		t.Fatal("a TCP connection is no Socket")
	}
	return s, peer
}

func TestSocketCarriesEveryByte(t *testing.T) {
	for _, size := range []int{0, 1, 4096, maxUnseen, maxUnseen + 1, 8 << 20} {
		s, peer := sockets(t)
		sent := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
		var both sync.WaitGroup
		both.Go(func() {
			if n, err := s.Write(sent); n != size || err != nil {
				t.Errorf("%d bytes: wrote %d, %v", size, n, err)
			}
			_ = s.CloseWrite()
		})
		both.Go(func() {
			got, err := io.ReadAll(s)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes: read %d, %v", size, len(got), err)
			}
		})
		if _, err := io.Copy(peer, struct{ io.Reader }{peer}); err != nil { // the echo
			t.Error(err)
		}
		_ = peer.CloseWrite()
		both.Wait()
	}
}

func TestSocketEnds(t *testing.T) {
	b := make([]byte, 100)
	for name, c := range map[string]struct {
		do   func(s *Socket, peer *net.TCPConn) error
		want error
	}{
		"the peer closes": {func(s *Socket, peer *net.TCPConn) error {
			_ = peer.Close()
			_, err := s.Read(b)
			return err
		}, io.EOF},
		"the peer resets": {func(s *Socket, peer *net.TCPConn) error {
			_ = peer.SetLinger(0)
			_ = peer.Close()
			_, err := s.Read(b)
			return err
		}, syscall.ECONNRESET},
		"a write to nobody": {func(s *Socket, peer *net.TCPConn) error {
			_ = peer.SetLinger(0)
			_ = peer.Close()
			_, _ = s.Read(b) // the reset is here
			_, err := s.Write(b)
			return err
		}, syscall.EPIPE},
		"closed": {func(s *Socket, _ *net.TCPConn) error {
			_ = s.Close()
			_, err := s.Read(b)
			return err
		}, net.ErrClosed},
		"the read's deadline": {func(s *Socket, _ *net.TCPConn) error {
			_ = s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := s.Read(b)
			return err
		}, os.ErrDeadlineExceeded},
		"a deadline that has passed": {func(s *Socket, peer *net.TCPConn) error {
			_, _ = peer.Write(b)
			_ = s.SetReadDeadline(time.Unix(1, 0))
			_, err := s.Read(b)
			return err
		}, os.ErrDeadlineExceeded},
		"the write's deadline": {func(s *Socket, _ *net.TCPConn) error {
			_ = s.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			total := 0
			for {
				n, err := s.Write(make([]byte, maxUnseen))
				total += n
				if err != nil {
					if n == maxUnseen || total == 0 {
						return errors.New("it does not say how much has left")
					}
					return err
				}
			}
		}, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			s, peer := sockets(t)
			if err := c.do(s, peer); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestSocketAllocatesNothing(t *testing.T) {
	s, peer := sockets(t)
	b := make([]byte, 1000)
	if n := testing.AllocsPerRun(200, func() {
		_, err := s.Write(b)
		if err == nil {
			_, err = io.ReadFull(peer, b)
		}
		if err == nil {
			_, err = peer.Write(b)
		}
		if err == nil {
			_, err = io.ReadFull(s, b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%.0f allocations for a write and a read", n)
	}
}

// WriteNow writes what there is room for and does not wait; Write writes the rest.
func TestSocketWriteNow(t *testing.T) {
	s, peer := sockets(t)
	chunk := bytes.Repeat([]byte{7}, 60<<10)
	sent, rest := 0, 0
	for rest == 0 {
		n, err := s.WriteNow(chunk)
		if err != nil {
			t.Fatal(err)
		}
		sent, rest = sent+n, len(chunk)-n
		if sent > 256<<20 {
			t.Fatal("a peer that reads nothing takes everything")
		}
	}
	read := make(chan int, 1)
	go func() {
		n, _ := io.Copy(io.Discard, peer)
		read <- int(n)
	}()
	if n, err := s.Write(chunk[len(chunk)-rest:]); n != rest || err != nil {
		t.Errorf("the rest: %d of %d, %v", n, rest, err)
	}
	_ = s.Close()
	if n := <-read; n != sent+rest {
		t.Errorf("%d bytes came of %d", n, sent+rest)
	}
}
