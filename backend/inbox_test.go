package backend

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/shardway/shardway/wire"
)

// pieces gives a reader's bytes in pieces of n.
type pieces struct {
	rest []byte
	n    int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.n, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

func collect(t *testing.T, src io.Reader) (all [][]byte, err error) {
	var in inbox
	defer in.release()
	for {
		m, ok, err := in.next()
		switch {
		case err != nil:
			return all, err
		case ok:
			if int(m.Header.MessageLength) != len(m.Buf.B) {
				t.Fatalf("a message of %d bytes says that it has %d", len(m.Buf.B), m.Header.MessageLength)
			}
			all = append(all, bytes.Clone(m.Buf.B))
			m.Release()
			continue
		}
		if err := in.read(src, readAtOnce); err != nil {
			return all, err
		}
	}
}

// FuzzInbox: however the bytes are cut into reads, the messages are the same, and together they are the bytes.
func FuzzInbox(f *testing.F) {
	var many []byte
	for i := range 40 {
		many = wire.AppendMsg(many, int32(i), 0, 0, append([]byte{byte(5 + i*40), byte((5 + i*40) >> 8), 0, 0}, make([]byte, 1+i*40)...))
	}
	f.Add(many, 7)
	f.Add(wire.AppendMsg(nil, 1, 2, 0, make([]byte, 300_000)), 4096)
	f.Add([]byte{255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 3)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		n = min(max(n, 1), 1<<20)
		whole, wholeErr := collect(t, bytes.NewReader(data))
		cut, cutErr := collect(t, &pieces{data, n})
		if len(whole) != len(cut) || errors.Is(wholeErr, errGarbage) != errors.Is(cutErr, errGarbage) {
			t.Fatalf("%d messages (%v), in pieces of %d %d (%v)", len(whole), wholeErr, n, len(cut), cutErr)
		}
		joined := bytes.Join(whole, nil)
		if !bytes.Equal(joined, bytes.Join(cut, nil)) || !bytes.HasPrefix(data, joined) {
			t.Fatal("the messages are not the bytes that came")
		}
	})
}

func TestInboxEnds(t *testing.T) {
	msg := wire.AppendMsg(nil, 1, 2, 0, []byte{5, 0, 0, 0, 0})
	if all, err := collect(t, iotest.OneByteReader(bytes.NewReader(msg))); len(all) != 1 || err != io.EOF {
		t.Errorf("%d messages, %v", len(all), err)
	}
	if _, err := collect(t, bytes.NewReader(msg[:20])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an end within a message: %v", err)
	}
}

func TestShapes(t *testing.T) {
	const k Shape = 7 << 40
	note := func(s *shapes, n int, took time.Duration, how evidence) {
		for range n {
			s.learn(k, took, how)
		}
	}
	for name, c := range map[string]struct {
		learn func(*shapes)
		waits bool
	}{
		"nothing known":                   {func(*shapes) {}, false},
		"a fast one":                      {func(s *shapes) { note(s, 100, 50*time.Microsecond, queued) }, false},
		"one that waits 1 ms":             {func(s *shapes) { note(s, 40, time.Millisecond, queued) }, true},
		"alone, waking up takes its time": {func(s *shapes) { note(s, 1000, time.Millisecond, alone) }, false},
		"one that waits long":             {func(s *shapes) { note(s, 16, 100*time.Millisecond, queued) }, true},
		"one stall of many":               {func(s *shapes) { note(s, 100, 50*time.Microsecond, queued); note(s, 3, time.Second, queued) }, false},
		"a computing server under load": {func(s *shapes) {
			for range 100 {
				note(s, 3, 80*time.Microsecond, queued)
				note(s, 1, 3*time.Millisecond, queued)
			}
		}, false},
		"the same, its replies read together": {func(s *shapes) {
			for range 100 {
				note(s, 1, 3*time.Millisecond, queued)
				note(s, 3, 0, together)
			}
		}, false},
		"one that waits 1 ms, read by one who is late for every second": {func(s *shapes) {
			for range 40 {
				note(s, 1, 2*time.Millisecond, queued)
				note(s, 1, 0, together)
			}
		}, true},
		"fast again":                        {func(s *shapes) { note(s, 1000, 10*time.Millisecond, queued); note(s, 20, 50*time.Microsecond, queued) }, false},
		"another shape in the slot is none": {func(s *shapes) { note(s, 100, 10*time.Millisecond, queued); s.learn(k+1<<50, 0, queued) }, false},
	} {
		var s shapes
		c.learn(&s)
		if got := s.kept(k) >= waitsFrom; got != c.waits {
			t.Errorf("%s: waits %v, want %v", name, got, c.waits)
		}
	}
}
