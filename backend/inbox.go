package backend

import (
	"errors"
	"fmt"
	"io"

	"github.com/shardway/shardway/wire"
)

const (
	// readAtOnce is what a read of a connection with one request in flight asks for, readMany with several.
	readAtOnce = 4 << 10
	readMany   = 32 << 10
	// trusted is the length up to which a reply gets its memory at once; beyond, memory follows what has come.
	trusted = 2 << 20
)

// inbox is what was read of a connection and not yet taken as whole messages. Its zero value is empty and holds no buffer.
type inbox struct {
	buf *wire.Buffer
	at  int // where in buf.B what was not taken begins
}

// next takes a whole message if there is one; the caller owns it. A message that is alone in the buffer leaves with it, of several each is copied.
// The error is errGarbage for a length outside the limits.
func (in *inbox) next() (m wire.Message, ok bool, err error) {
	if in.buf == nil {
		return m, false, nil
	}
	rest := in.buf.B[in.at:]
	if len(rest) < wire.HeaderLen {
		return m, false, nil
	}
	h, err := wire.ParseHeader(rest)
	if err != nil {
		return m, false, fmt.Errorf("%w: %v", errGarbage, err)
	}
	size := int(h.MessageLength)
	switch {
	case len(rest) < size:
		return m, false, nil
	case in.at == 0 && len(rest) == size:
		m = wire.Message{Header: h, Buf: in.buf}
		in.buf = nil
		return m, true, nil
	}
	m = wire.Message{Header: h, Buf: wire.GetBuffer(size)}
	copy(m.Buf.B, rest)
	if in.at += size; in.at == len(in.buf.B) {
		in.release()
	}
	return m, true, nil
}

// read reads what is there, waiting for the first byte. It must be called only when next had no message. want is how much to ask for
// when a message begins.
func (in *inbox) read(src io.Reader, want int) error {
	in.makeRoom(want)
	have := len(in.buf.B)
	n, err := src.Read(in.buf.B[have:cap(in.buf.B)])
	in.buf.B = in.buf.B[:have+n]
	if n > 0 {
		return nil // the error, if any, comes again
	}
	if errors.Is(err, io.EOF) && have > in.at {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// makeRoom has room for the rest of the message that has begun, or for want bytes.
func (in *inbox) makeRoom(want int) {
	if in.buf == nil {
		in.buf, in.at = wire.GetBuffer(want), 0
		in.buf.B = in.buf.B[:0]
		return
	}
	have := copy(in.buf.B, in.buf.B[in.at:])
	in.buf.B, in.at = in.buf.B[:have], 0
	need := want
	if have >= wire.HeaderLen {
		if h, err := wire.ParseHeader(in.buf.B); err == nil {
			need = min(int(h.MessageLength), max(trusted, 2*have))
		}
	}
	if need > have {
		in.buf.Grow(need - have)
	}
	if len(in.buf.B) == cap(in.buf.B) {
		in.buf.Grow(want)
	}
}

// empty reports whether nothing of a message has come.
func (in *inbox) empty() bool { return in.buf == nil || in.at == len(in.buf.B) }

// release gives the buffer back.
func (in *inbox) release() {
	in.buf.Release()
	in.buf, in.at = nil, 0
}
