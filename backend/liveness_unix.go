//go:build unix

package backend

import (
	"net"
	"syscall"
)

// alive looks at an idle connection without waiting: an end of file, an error or bytes nobody asked
// for mean that it is of no use.
func (c *conn) alive() bool {
	return quiet(c.raw, c.nc != c.raw)
}

// quiet peeks at the socket. Under TLS waiting bytes may be session tickets, so only an end counts.
func quiet(nc net.Conn, bytesAllowed bool) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = err == syscall.EAGAIN || err == syscall.EINTR || (bytesAllowed && n > 0)
		return true
	})
	return err == nil && alive
}
