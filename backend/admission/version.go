package admission

import (
	"fmt"
	"strconv"
	"strings"
)

// releases are the maxWireVersions of releases before the oldest supported one.
var releases = map[int32]string{6: "3.6", 7: "4.0", 8: "4.2", 9: "4.4", 13: "5.0", 14: "5.1", 15: "5.2", 16: "5.3"}

// releaseOf names the release that announces a maxWireVersion.
func releaseOf(maxWire int32) string {
	if name := releases[maxWire]; name != "" {
		return name
	}
	return "before " + Supported[0]
}

// series is "7.0" of "7.0.14".
func series(version string) string {
	major, minor, ok := parse(version)
	if !ok {
		return version
	}
	return fmt.Sprintf("%d.%d", major, minor)
}

// below reports whether a version is older than another; false where either cannot be read.
func below(version, than string) bool {
	a, b, ok := parse(version)
	c, d, ok2 := parse(than)
	return ok && ok2 && (a < c || a == c && b < d)
}

func parse(version string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	second, _, _ = strings.Cut(second, "-")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, err1 == nil && err2 == nil
}
