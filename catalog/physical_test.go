package catalog_test

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shardway/shardway/catalog"
)

// TestPhysicalNamesFit: whatever a collection is called, its physical names are namespaces that a
// server makes, as time series too, whose measurements are in a collection with a longer name. They
// have the form of physical names, no two are alike, and they are known to be named after the
// collection.
func TestPhysicalNamesFit(t *testing.T) {
	for name, c := range map[string]struct{ db, coll string }{
		"short":                {"db", "people"},
		"just short enough":    {"db", strings.Repeat("a", 200)},
		"the longest":          {"db", strings.Repeat("a", 252)},
		"with the longest db":  {strings.Repeat("d", 63), strings.Repeat("a", 191)},
		"of runes":             {"db", strings.Repeat("é", 126)},
		"of long runes":        {"db", "ab" + strings.Repeat("😀", 62)},
		"with a mark's form":   {"db", strings.Repeat("b", 180) + "~0123456789abcdef"},
		"with a number's form": {"db", strings.Repeat("c", 240) + "@1.0"},
	} {
		seen := map[string]bool{}
		for _, number := range []uint64{1, 0xbeef, math.MaxUint64} {
			for _, place := range []int{0, 7, 999_999} {
				got := catalog.PhysicalName(c.db, c.coll, number, 0, place)
				if n := len(c.db) + 1 + len("system.buckets.") + len(got); n > 255 {
					t.Errorf("%s: %d bytes for %q", name, n, got)
				}
				if !catalog.IsPhysicalName(got) || !utf8.ValidString(got) || seen[got] {
					t.Errorf("%s: %q", name, got)
				}
				seen[got] = true
				if !catalog.IsNamedAfter(got, c.db, c.coll) || catalog.IsNamedAfter(got, c.db, c.coll+"x") {
					t.Errorf("%s: %q is not known to be named after its collection, or is after another", name, got)
				}
				if l := catalog.LogicalName(got); l != c.coll {
					t.Errorf("%s: the logical name is %q", name, l)
				}
				text := catalog.HidePhysicalNames("E11000 duplicate key error collection: " + c.db + "." + got + " index: _id_")
				if want := "E11000 duplicate key error collection: " + c.db + "." + c.coll + " index: _id_"; text != want {
					t.Errorf("%s: a client is told %q", name, text)
				}
			}
		}
	}
}

// TestPhysicalNamesOfBefore: names that were made before names were shortened stay what they are.
func TestPhysicalNamesOfBefore(t *testing.T) {
	long := strings.Repeat("a", 230)
	for _, c := range []struct{ physical, coll string }{{"people@1f.2.0", "people"}, {long + "@1.0.0", long}, {"a@b@2.0.1", "a@b"}} {
		if !catalog.IsPhysicalName(c.physical) || !catalog.IsNamedAfter(c.physical, "db", c.coll) || catalog.LogicalName(c.physical) != c.coll {
			t.Errorf("%q is not after %q", c.physical, c.coll)
		}
		if got := catalog.HidePhysicalNames("x " + c.physical + " y " + c.physical); got != "x "+c.coll+" y "+c.coll {
			t.Errorf("a client is told %q", got)
		}
	}
	for _, plain := range []string{"people", "people@home", "a~0123456789abcdef"} {
		if catalog.IsPhysicalName(plain) || !catalog.IsNamedAfter(plain, "db", plain) || catalog.HidePhysicalNames(plain) != plain {
			t.Errorf("%q is taken for a physical name", plain)
		}
	}
	if got := catalog.HidePhysicalNames("db.a~0123456789abcdef@1.0.0"); got != "db.a~0123456789abcdef" {
		t.Errorf("a client is told %q", got)
	}
}
