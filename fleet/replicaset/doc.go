// Package replicaset plays a replica set of several members over one server: a relay for each member
// (package rules), which says of itself what a member says, takes what a member in its state takes,
// and can be killed, started again and made to step down. All members have the same data, at once:
// the server is one. So nothing lags and nothing is rolled back. Only tests use it.
//
// What each part plays:
//
//	hello.go    what a member says of itself, and when it says it to clients that wait for news
//	state.go    who is up, who is the primary; elections
//	command.go  what a member refuses, by its state; cursors, which are a member's own
package replicaset
