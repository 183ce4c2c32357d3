package wire

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Socket is a TCP connection of which the scheduler does not see each read and write. Its descriptor does not block, so none of them waits in the kernel; but what the
// kernel does within a write, up to waking the receiver, often takes longer than the scheduler leaves a thread alone: it then hands the thread's work
// to another one, which costs as much as the write. One goroutine at a time may read, and one write.
type Socket struct {
	*net.TCPConn
	raw syscall.RawConn
	// A read and a write under way, and what tries them, bound once.
	in, out                        transfer
	tryRead, tryWrite, tryWriteNow func(fd uintptr) bool
}

type transfer struct {
	b   []byte
	n   int
	err error
}

// maxUnseen is the largest read or write that the scheduler does not see; copying more takes a time of which it should know.
const maxUnseen = 64 << 10

// NewSocket returns what nc is to be read and written by: a Socket if it is a *net.TCPConn, else nc itself.
func NewSocket(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nc
	}
	s := &Socket{TCPConn: tcp, raw: raw}
	s.tryRead, s.tryWrite, s.tryWriteNow = s.readSome, s.writeRest, s.writeSome
	return s
}

// Read reads what is there, waiting for the first byte until the deadline.
func (s *Socket) Read(b []byte) (int, error) {
	if len(b) == 0 || len(b) > maxUnseen {
		return s.TCPConn.Read(b)
	}
	s.in = transfer{b: b}
	err := s.raw.Read(s.tryRead)
	t := s.in
	s.in.b = nil
	switch {
	case err != nil:
		return 0, err
	case t.err != nil:
		return 0, s.failed("read", t.err)
	case t.n == 0:
		return 0, io.EOF
	}
	return t.n, nil
}

// Write writes b, waiting for room until the deadline. With an error it returns how many bytes have left.
func (s *Socket) Write(b []byte) (int, error) {
	if len(b) > maxUnseen {
		return s.TCPConn.Write(b)
	}
	s.out = transfer{b: b}
	err := s.raw.Write(s.tryWrite)
	t := s.out
	s.out.b = nil
	if err == nil && t.err != nil {
		err = s.failed("write", t.err)
	}
	return t.n, err
}

// WriteNow writes what there is room for at once, up to all of b, and returns how many bytes have left. It does not wait, and leaves
// large ones to Write.
func (s *Socket) WriteNow(b []byte) (int, error) {
	if len(b) > maxUnseen {
		return 0, nil
	}
	s.out = transfer{b: b}
	err := s.raw.Write(s.tryWriteNow)
	t := s.out
	s.out.b = nil
	if err == nil && t.err != nil {
		err = s.failed("write", t.err)
	}
	return t.n, err
}

func (s *Socket) failed(call string, err error) error {
	return &net.OpError{Op: call, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError(call, err)}
}

// readSome reports whether it has read, or failed; false says that nothing is there.
func (s *Socket) readSome(fd uintptr) bool {
	t := &s.in
	t.n, t.err = readUnseen(fd, t.b)
	return t.err != syscall.EAGAIN
}

// writeRest reports whether all is written, or failed; false says that there is no room.
func (s *Socket) writeRest(fd uintptr) bool {
	t := &s.out
	for t.n < len(t.b) && t.err == nil {
		var n int
		if n, t.err = writeUnseen(fd, t.b[t.n:]); t.err == syscall.EAGAIN {
			t.err = nil
			return false
		}
		t.n += n
	}
	return true
}

// writeSome is writeRest that has enough when there is no room.
func (s *Socket) writeSome(fd uintptr) bool {
	s.writeRest(fd)
	return true
}
