// Package commands lists every command that the product sends to a backend: its fields and concerns, the server version
// that takes it, the privileges it needs, and who sends it and why. Three things follow from the one table: the page
// docs/backends.md, the privileges that a backend's user must have, and a test that looks at what proxies really send
// (package integration).
//
// Whoever sends a new command, or a new field of one, adds it here and writes the page anew:
//
//	go test ./backend/commands -rewrite
package commands
