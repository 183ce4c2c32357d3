package model

// Variant is a way to break the protocol.
type Variant uint8

// The variants. Whole is the protocol as it is.
const (
	Whole Variant = iota
	NoLookAfter
	LookAcceptsNew
	MembersBeforeRecord
	ClosingBeforeRecord
	FloorsBeforeClosings
	UncloseBeforeFloor
	OpenWithoutVersion
	OneMarker
	CountPastMarker
	OneSession
	NoBurn
	OutputsAgain
	DropUnread
	NoLifetime
	MarkAfter
	OlderVersionOpens
	MapBeforeRecords
	AdmitsAll
	variants
)

var variantNames = [variants]string{"the protocol", "no look at the lease after the reply", "a look that accepts the new instance",
	"members read before the closing is recorded", "the closing written before the record", "floors read before closings", "the closing removed before the floor is raised",
	"gates opened without v+1", "only one marker", "an old home's record counted past the marker", "one session for input and output", "takeover without burning",
	"outputs used again", "drop without reading the newest map", "not waiting for the transactions' lifetime", "the transaction begun before the mark is written",
	"a gate opened by an older version", "a sweep that reads the map before the records",
	"a new lease that admits who entered before"}

// String names the broken rule.
func (v Variant) String() string { return variantNames[v] }
