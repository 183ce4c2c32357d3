// Package shardkey places documents: it reads a shard key's value out of documents, filters and updates,
// and turns it into a position, the 64-bit hash that a partition map divides into ranges.
//
// Values that MongoDB compares as equal (1, 1.0, NumberLong(1), NumberDecimal("1.00"); missing, null and
// undefined) have one canonical byte string and so one position, in every proxy, for ever. Nothing here
// keeps state, does input or output, or allocates on the paths that every request takes.
package shardkey
