package catalog

import "strings"

const absentSuffix = "$absent"

// AbsentName is the physical name under which a collection that was dropped is gated on its
// database's primary: nothing is there, and making the collection anew closes that gate as any
// other change of a map closes the gates of what it replaces. No collection has such a name, and no
// command carries it to a server, so it may be longer than a namespace.
func AbsentName(coll string) string { return coll + absentSuffix }

// IsAbsentName reports whether a physical name is an AbsentName.
func IsAbsentName(physical string) bool { return strings.HasSuffix(physical, absentSuffix) }
