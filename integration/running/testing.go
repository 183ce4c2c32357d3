package running

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardway/shardway/fleet"
)

// Test starts a proxy before the servers for one test and ends it with the test, whose failure shows the end of the proxy's
// log. A data race or a panic in that log fails the test.
func Test(tb testing.TB, servers []*fleet.Server, args ...string) *Proxy {
	tb.Helper()
	o := Options{Args: args, LogFile: filepath.Join(tb.TempDir(), "proxy.log")}
	for _, s := range servers {
		o.Backends = append(o.Backends, s.URI())
	}
	p, err := Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
		text := p.Log()
		for _, bad := range []string{"\npanic: ", "\nfatal error: ", "BUG: "} {
			if strings.Contains(text, bad) {
				tb.Errorf("the proxy's log has %q", bad)
			}
		}
		if tb.Failed() {
			tb.Logf("the end of the proxy's log:\n%s", p.logTail())
		}
	})
	return p
}
