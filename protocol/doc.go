// Package protocol is the reshape protocol, step by step: what an instance does on joining a backend and on meeting a closing, how it
// ends another's, and what the owner of a change of a map does from the closing of gates to the drop of what the change replaced.
//
// Everything that is read and written goes through the interfaces Board, Maps and Records, and every decision is made from what they
// gave: the product runs these functions over a backend's and the catalog's databases, the explorer in protocol/model over
// stores of its own that crash, stall and deliver late. docs/architecture.md tells why each step is where it is.
package protocol
