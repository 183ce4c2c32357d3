package catalog

import (
	"regexp"
	"strconv"
	"strings"
)

// physicalName is the form of a physical collection's name: the collection's, '@', a number of the
// catalog's counter in hex, the epoch, the output's place. An epoch of a reshape takes numbers of
// its own, so it is 0.
var physicalName = regexp.MustCompile(`@[0-9a-f]+\.[0-9]+\.[0-9]+$`)

// Databases of ours: hidden from clients and 73 InvalidNamespace to them.
const (
	// DB is the catalog's database on the catalog backend.
	DB = "shardway"
	// MemberDB is each backend's own: instances, closings, answers, markers, floors.
	MemberDB = "shardway_member"
)

// MaxNS is the longest namespace, in bytes, that a server (4.4) makes: the name of a database, a
// dot, and that of a collection. Physical collections are bound by it like all others.
const MaxNS = 255

// PhysicalName makes the name of a physical collection of db.coll that was never used before:
// number comes from the catalog's counter, which never returns a number twice. Where the name of
// the collection is too long to have a suffix, a part of it and a hash take its place.
func PhysicalName(db, coll string, number uint64, epoch, place int) string {
	suffix := "@" + strconv.FormatUint(number, 16) + "." + strconv.Itoa(epoch) + "." + strconv.Itoa(place)
	return physicalStem(db, coll, suffix) + suffix
}

// IsPhysicalName reports whether a collection name has the form of a physical one.
// A client can neither use nor create such a name.
func IsPhysicalName(coll string) bool {
	return strings.IndexByte(coll, '@') >= 0 && physicalName.MatchString(coll)
}

// LogicalName returns the collection's name that a physical one was made from, and the name itself
// when it is not physical. Of a shortened name it is the part that was kept, unless this process
// knows the whole.
func LogicalName(coll string) string {
	if !IsPhysicalName(coll) {
		return coll
	}
	stem := coll[:strings.LastIndexByte(coll, '@')]
	if whole, ok := shortened.Load(markOf(stem)); ok {
		return whole.(string)
	}
	return stem
}

// IsNamedAfter reports whether a physical name in db may have been made from a collection's name.
// Of a shortened name that is all that can be said, since two collections may have one hash.
func IsNamedAfter(physical, db, coll string) bool {
	if !IsPhysicalName(physical) {
		return physical == coll
	}
	at := strings.LastIndexByte(physical, '@')
	return physical[:at] == coll || physical[:at] == physicalStem(db, coll, physical[at:])
}

// IsInternalDB reports whether db is one of ours, hidden from clients.
func IsInternalDB(db string) bool { return db == DB || db == MemberDB }

// physicalIn finds physical names within a text, after the collection's own or the mark of a
// shortened one.
var physicalIn = regexp.MustCompile(`(~[0-9a-f]{16})?@[0-9a-f]+\.[0-9]+\.[0-9]+`)

// HidePhysicalNames replaces physical names in a text that a backend made by the collections' own.
func HidePhysicalNames(text string) string {
	var out []byte
	from := 0
	for _, m := range physicalIn.FindAllStringSubmatchIndex(text, -1) {
		out = append(out, text[from:m[0]]...)
		from = m[1]
		if m[2] < 0 {
			continue
		}
		mark := text[m[2]:m[3]]
		if whole, ok := shortened.Load(mark); ok {
			out = append(out, restOfName(out, whole.(string))...)
		} else {
			out = append(out, mark...) // it may be of the collection's own name
		}
	}
	if from == 0 {
		return text
	}
	return string(append(out, text[from:]...))
}
