// Package splitter changes partition maps: without copying (shardCollection, drop, a collection made anew, a first map),
// and by the reshape workflow (split, move, merge), which copies partitions to fresh physical collections under running
// traffic and puts them in place by inserting the next version of the map. A monitor asks for splits where a partition is full.
//
// Whatever happens before the new map is inserted can be abandoned; whatever is left to do afterwards is done by whoever comes
// next. docs/architecture.md has the protocol.
package splitter
