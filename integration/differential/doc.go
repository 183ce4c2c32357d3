// Package differential runs the same random operations against two addresses and compares the replies: the proxy over several
// servers on one side, one server direct on the other.
//
// A [Program] is a list of steps that follows from a seed alone. [Run] runs it on both sides, each step on both before the next,
// and returns the first step whose outcomes differ. [Shrink] drops steps as long as the difference stays, and [Program.Transcript] prints
// what is left for a shell.
//
// What MongoDB leaves open is not generated: writes of one document by a filter that matches several, a limit without a total
// order, the representation of a group's key among equal numbers. What must differ on sharded collections is not either: one _id under
// two key values, changes of the key, arrays on its path. So a document's key is a function of its _id (see values.go).
package differential
