//go:build !unix

package router

import "net"

// hungUp cannot tell on this system: the next write will.
func hungUp(net.Conn) bool { return false }
