// Package backend holds the connections to the fleet of plain MongoDB servers behind the proxy.
//
// A Backend is one replica set or one standalone. Discovery, failover, TLS settings and
// authentication come from the official driver (its topology, its TLS configuration, its SASL
// conversations); the connections that carry clients' commands are dialled, pooled and read here, so
// that a message is forwarded as it is, from one buffer to one write.
//
// A request is sent by Start and its reply read by Call.Wait, so a caller with several backends
// writes to all and then reads all on its own goroutine. What fails before a byte left is an
// UnsentError and may be sent again; what fails after is a LostError and may have run.
//
// A server's state-change errors (not primary, shutting down) are told to the topology and never
// reach a client: see Cloak.
package backend
