package catalog

import (
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// A collection whose name is so long that a physical name made from it would not be a namespace any
// more has physical names that begin with a part of it and a mark: '~' and a hash of the name. They
// end like all others, and are told from clients' names by that. So nothing that a server takes is
// refused.

// bucketsPrefix is what a server puts before the name of a time-series collection for the
// collection that keeps its measurements. A physical name has room for it.
const bucketsPrefix = "system.buckets."

// markLen is the length of a shortened name's mark.
const markLen = 1 + 16

// shortened are the names that were shortened, by mark: those that this process has made or read in
// a map. It is there to show collections by their own names; nothing is decided by it.
var shortened sync.Map

// physicalStem is what a physical name of db.coll with that suffix begins with: the collection's
// name if there is room.
func physicalStem(db, coll, suffix string) string {
	room := MaxNS - len(db) - 1 - len(bucketsPrefix) - len(suffix)
	if len(coll) <= room {
		return coll
	}
	mark := nameMark(coll)
	shortened.Store(mark, coll)
	keep := max(0, room-markLen)
	for keep > 0 && !utf8.RuneStart(coll[keep]) {
		keep--
	}
	return coll[:keep] + mark
}

func nameMark(coll string) string { return fmt.Sprintf("~%016x", xxhash.Sum64String(coll)) }

// markOf is the mark with which a shortened name ends, or what stands in its place.
func markOf(stem string) string { return stem[max(0, len(stem)-markLen):] }

// longestSuffix bounds what PhysicalName appends: a number of 64 bits, an epoch and a place of as
// many digits as an int has.
const longestSuffix = len("@ffffffffffffffff.") + 19 + len(".") + 19

// rememberShortened notes the name of db.coll, whose physical names may be shortened ones, so that
// texts show it.
func rememberShortened(db, coll string) {
	if len(db)+1+len(coll) > MaxNS-len(bucketsPrefix)-longestSuffix {
		shortened.Store(nameMark(coll), coll)
	}
}

// restOfName is what a text that ends with a part of a name from its beginning lacks of the whole.
func restOfName(text []byte, whole string) string {
	for n := min(len(whole), len(text)); n > 0; n-- {
		if string(text[len(text)-n:]) == whole[:n] {
			return whole[n:]
		}
	}
	return whole
}
