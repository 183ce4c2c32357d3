// Package router is what a client talks to: it reads a command, plans which partitions it concerns, sends it to
// their homes and merges what they answer.
//
// # A request's way
//
// conn.go reads one message and parses it in place. request.go takes out the fields that every command
// shares (lsid, txnNumber, $readPreference, maxTimeMS, …). commands.go is the one table that says what each command is: its
// name, where it may run, whether it writes, who answers it. The handler plans with the current partition.View:
//
//	err := r.within(ctx, ns, partition.Read, plan, func(c *partition.Collection, parts []*partition.Part) error {
//		…
//	})
//
// within looks the collection up, lets plan choose the parts, passes their gates, and calls the function inside; when
// the map has changed meanwhile it plans again. Inside, a handler sends with Router.send (or Router.do for one
// part, Router.scatter for several): both look at this instance's lease before the send and after the
// reply, cloak the backends' state changes and replace physical names in error texts.
//
// # Adding a command
//
// Add a row to a table (tables are joined in commands.go) and at most one handler function, in the file named
// after the command's family: reads, writes, ddl, sharding, diagnostics, sessions.
package router
