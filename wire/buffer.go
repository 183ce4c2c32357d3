package wire

import "sync"

// Buffer is a byte slice from a pool. B may be replaced by a longer slice; Release files it by its capacity.
type Buffer struct {
	B []byte
}

// classes are the pooled capacities. What is larger than the last is not kept: a 48 MB message must not stay.
var classes = [...]int{512, 4 << 10, 32 << 10, 256 << 10, 2 << 20}

var pools [len(classes)]sync.Pool

// GetBuffer returns a buffer with len(B) == size and arbitrary contents.
func GetBuffer(size int) *Buffer {
	for i, c := range classes {
		if size > c {
			continue
		}
		if b, ok := pools[i].Get().(*Buffer); ok {
			b.B = b.B[:size]
			return b
		}
		return &Buffer{B: make([]byte, size, c)}
	}
	return &Buffer{B: make([]byte, size)}
}

// Release returns the buffer to its pool; nothing may refer to its bytes any more. Buffers of other capacities than the
// pools' are dropped. Releasing nil does nothing.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	for i, c := range classes {
		if cap(b.B) == c {
			pools[i].Put(b)
			return
		}
	}
}

// Grow makes room for n more bytes after len(B), keeping what is there.
func (b *Buffer) Grow(n int) {
	need := len(b.B) + n
	if need <= cap(b.B) {
		return
	}
	nb := GetBuffer(need)
	nb.B = nb.B[:copy(nb.B, b.B)]
	b.B, nb.B = nb.B, b.B
	nb.Release()
}
