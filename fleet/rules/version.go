package rules

import "fmt"

// Version is a version of MongoDB whose rules are kept.
type Version int

// The versions that are known. Default is what the stand-in aims at.
const (
	V60     Version = 60
	V70     Version = 70
	V80     Version = 80
	Default         = V80
)

// profile is what a version says of itself.
type profile struct {
	name    string
	version [4]int32
	wire    int32
}

var profiles = map[Version]profile{
	V60: {"6.0", [4]int32{6, 0, 19, 0}, 17},
	V70: {"7.0", [4]int32{7, 0, 15, 0}, 21},
	V80: {"8.0", [4]int32{8, 0, 4, 0}, 25},
}

// String is the version as [ParseVersion] reads it.
func (v Version) String() string { return profiles[v].name }

// ParseVersion reads "6.0", "7.0" or "8.0".
func ParseVersion(text string) (Version, error) {
	for v, p := range profiles {
		if p.name == text {
			return v, nil
		}
	}
	return 0, fmt.Errorf("no rules are known of MongoDB %q: 6.0, 7.0 and 8.0 are", text)
}
