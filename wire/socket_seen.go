//go:build !linux || race

package wire

import "syscall"

// Elsewhere the scheduler sees every call; and so does the race detector, to which a read comes after the write that it reads.

func readUnseen(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

func writeUnseen(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
