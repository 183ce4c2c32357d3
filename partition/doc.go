// Package partition is the live half of partitions in this process: the gate that every request to a
// home passes, and the View that requests plan with.
//
// A home is a physical collection on a backend. A request plans against a View, enters the gates of all
// homes it needs at once (Enter), sends, reads the replies, and leaves. Gates are closed by the member
// package when it sees a closing and end in one of two ways: the next map still names the home
// (reopened at that version) or it does not (retired for good). A request that planned with an older
// version than the gate's is told so and plans again; it never sees an error for it.
package partition
