package catalog

import (
	"regexp"
	"strconv"
	"strings"
)

// physicalName is the form of a physical collection's name: the collection's, '@', a number of the
// catalog's counter in hex, the epoch, the output's place (reshape-protocol "Names").
var physicalName = regexp.MustCompile(`@[0-9a-f]+\.[0-9]+\.[0-9]+$`)

// Databases of ours: hidden from clients and 73 InvalidNamespace to them.
const (
	// DB is the catalog's database on the catalog backend.
	DB = "shardway"
	// MemberDB is each backend's own: instances, closings, answers, markers, floors.
	MemberDB = "shardway_member"
)

// PhysicalName makes the name of a physical collection that was never used before:
// number comes from the catalog's counter, which never returns a number twice.
func PhysicalName(coll string, number uint64, epoch, place int) string {
	return coll + "@" + strconv.FormatUint(number, 16) + "." + strconv.Itoa(epoch) + "." + strconv.Itoa(place)
}

// IsPhysicalName reports whether a collection name has the form of a physical one.
// A client can neither use nor create such a name.
func IsPhysicalName(coll string) bool {
	return strings.IndexByte(coll, '@') >= 0 && physicalName.MatchString(coll)
}

// LogicalName returns the collection's name that a physical one was made from, and the name itself
// when it is not physical.
func LogicalName(coll string) string {
	if !IsPhysicalName(coll) {
		return coll
	}
	return coll[:strings.LastIndexByte(coll, '@')]
}

// IsInternalDB reports whether db is one of ours, hidden from clients.
func IsInternalDB(db string) bool { return db == DB || db == MemberDB }

// physicalIn finds physical names within a text.
var physicalIn = regexp.MustCompile(`@[0-9a-f]+\.[0-9]+\.[0-9]+`)

// HidePhysicalNames replaces physical names in a text that a backend made by the collections' own.
func HidePhysicalNames(text string) string { return physicalIn.ReplaceAllString(text, "") }
