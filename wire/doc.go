// Package wire reads and writes MongoDB's wire protocol: OP_MSG whole, OP_COMPRESSED, and OP_QUERY with OP_REPLY as far as handshakes
// need them. Messages are parsed in place: what a parser returns points into the message's pooled buffer and is valid until that
// is released. No length is trusted before it was checked, and nothing is decoded that is only forwarded.
//
// Two kinds of error: a *FatalError says that the connection must be closed without a reply, an *Error is a
// MongoDB error that becomes an {ok:0} reply.
package wire
