// Package rules stands between tests and the stand-in server. [Relay] is the way there and back: it
// passes commands and replies through hooks, which refuse, add or change. Only tests use it: nothing
// of the product runs behind a relay.
package rules
