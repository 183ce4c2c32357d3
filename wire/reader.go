package wire

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// firstRead is how much a reader asks for when a message begins; most requests fit.
const firstRead = 4 << 10

// trusted is the length up to which a message gets its memory at once.
const trusted = 256 << 10

// Reader reads whole messages from a connection. It reads as much as there is, so that a message costs one system call
// and pipelined ones less, and on plain TCP it holds no buffer while nothing is there. It is not safe for concurrent use.
type Reader struct {
	src io.Reader
	raw syscall.RawConn
	// left are bytes read beyond the last message.
	left *Buffer

	// What try, bound once as tryRead, has read.
	tryRead func(fd uintptr) bool
	got     *Buffer
	n       int
	err     error
}

// NewReader makes a reader of src. If src is a *Socket, buffers are taken only once bytes are there.
func NewReader(src io.Reader) *Reader {
	r := &Reader{src: src}
	if s, ok := src.(*Socket); ok {
		r.raw, r.tryRead = s.raw, r.try
	}
	return r
}

// Buffered reports how many bytes beyond the last message have been read already.
func (r *Reader) Buffered() int {
	if r.left == nil {
		return 0
	}
	return len(r.left.B)
}

// Release gives back what the reader holds; it must not be used afterwards.
func (r *Reader) Release() {
	r.left.Release()
	r.left = nil
}

// ReadMessage reads one message; the caller owns it. It returns io.EOF only when the connection ended between two messages,
// io.ErrUnexpectedEOF when within one, and a *FatalError for a length outside the limits. After os.ErrDeadlineExceeded the next call goes on where it was.
func (r *Reader) ReadMessage() (Message, error) {
	buf := r.left
	r.left = nil
	have := 0
	if buf != nil {
		have = len(buf.B)
	}
	for {
		if have >= HeaderLen {
			return r.finish(buf, have)
		}
		var n int
		var err error
		if buf == nil {
			buf, n, err = r.first()
		} else {
			buf.B = buf.B[:cap(buf.B)]
			n, err = r.src.Read(buf.B[have:])
		}
		have += n
		if n == 0 && err != nil {
			if have > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				r.left, buf.B = buf, buf.B[:have]
				return Message{}, err
			}
			buf.Release()
			if errors.Is(err, io.EOF) && have > 0 {
				err = io.ErrUnexpectedEOF
			}
			return Message{}, err
		}
		buf.B = buf.B[:have]
	}
}

// first waits for the first bytes of a message.
func (r *Reader) first() (*Buffer, int, error) {
	if r.raw == nil {
		buf := GetBuffer(firstRead)
		n, err := r.src.Read(buf.B)
		return buf, n, err
	}
	r.got, r.n, r.err = nil, 0, nil
	err := r.raw.Read(r.tryRead)
	buf, n, rerr := r.got, max(r.n, 0), r.err
	r.got = nil
	switch {
	case err != nil:
		return buf, n, err
	case rerr != nil:
		return buf, n, rerr
	case n == 0:
		return buf, 0, io.EOF
	}
	return buf, n, nil
}

// try reads what is there into a buffer that it takes; false when nothing is.
func (r *Reader) try(fd uintptr) bool {
	r.got = GetBuffer(firstRead)
	r.n, r.err = readUnseen(fd, r.got.B)
	if r.err == syscall.EAGAIN {
		r.got.Release()
		r.got = nil
		return false
	}
	return true
}

// finish reads the rest of the message whose header is in buf and keeps what was read beyond it.
func (r *Reader) finish(buf *Buffer, have int) (Message, error) {
	h, err := ParseHeader(buf.B)
	if err != nil {
		buf.Release()
		return Message{}, err
	}
	size := int(h.MessageLength)
	if have < size {
		if have, err = r.fill(buf, have, size); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				r.left, buf.B = buf, buf.B[:have]
				return Message{}, err
			}
			buf.Release()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Message{}, err
		}
	} else if have > size {
		r.left = GetBuffer(have - size)
		copy(r.left.B, buf.B[size:have])
		buf.B = buf.B[:size]
	}
	return Message{Header: h, Buf: buf}, nil
}

// fill reads on until size bytes are in buf. What is not there yet gets memory step by step, so that many clients that declare
// large messages and send none of them take little. It returns how many there are then.
func (r *Reader) fill(buf *Buffer, have, size int) (int, error) {
	for have < size {
		upTo := min(size, max(trusted, 2*have))
		buf.B = buf.B[:have]
		buf.Grow(upTo - have)
		buf.B = buf.B[:upTo]
		n, err := io.ReadFull(r.src, buf.B[have:])
		have += n
		if err != nil {
			return have, err
		}
	}
	return have, nil
}
