//go:build !race

package wire

import (
	"syscall"
	"unsafe"
)

// readUnseen and writeUnseen are read(2) and write(2) of a descriptor that does not block.

func readUnseen(fd uintptr, b []byte) (int, error) { return unseen(syscall.SYS_READ, fd, b) }

func writeUnseen(fd uintptr, b []byte) (int, error) { return unseen(syscall.SYS_WRITE, fd, b) }

func unseen(call, fd uintptr, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, syscall.EAGAIN // the constant, which is an error without being allocated
		default:
			return 0, e
		}
	}
}
