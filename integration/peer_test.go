package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The Go driver's runner of the drivers' unified specifications: a suite of tests that is not ours. The version is pinned, since the
// marks are for what this one contains.
const (
	peerSuite   = "go.mongodb.org/mongo-driver/mongo/integration/unified"
	peerVersion = "v1.17.10"
	peerLimit   = 4 * time.Minute // for one suite
)

// peerSuites are the specifications that concern what a proxy does. Time-outs of the client are left out: budgets of 15 ms fail under load.
var peerSuites = []string{"crud", "versioned-api", "collection-management", "sessions", "run-command", "valid-pass", "retryable-reads", "retryable-writes"}

// peerApart are the tests that pass on a server and may fail through the proxy, each with the reason.
var peerApart = []struct{ pattern, why string }{
	{`estimatedDocumentCount_works_correctly_on_views`, "a view on a collection that was dropped once is refused (115)"},
	{`snapshot-sessions`, "the backends have no common time"},
	{`gossips_the_\$clusterTime`, "the backends have no common time"},
	{`transaction`, "transactions are tested apart"},
}

// TestPeerSuite runs the suite against one server and against the proxy: what passes there must pass here.
func TestPeerSuite(t *testing.T) {
	long(t)
	dir := clientDir(t, "peer")
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		install(t, dir, peerSuite, "go", "mod", "init", "peer")
	}
	install(t, dir, peerSuite, "go", "get", "-t", peerSuite+"@"+peerVersion)
	program := filepath.Join(dir, "unified.test")
	if out, err := peerCommand(t, dir, nil, "go", "test", "-c", "-o", program, peerSuite); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	source, err := peerCommand(t, dir, nil, "go", "list", "-f", "{{.Dir}}", peerSuite)
	if err != nil {
		t.Fatalf("%v\n%s", err, source)
	}
	at := strings.TrimSpace(source)
	// Tests that want several mongoses get them: one proxy under two names.
	_, port, _ := strings.Cut(sharedProxy(t).Addr(), ":")
	through := fmt.Sprintf("mongodb://127.0.0.1:%s,localhost:%s/", port, port)
	passed := 0
	for _, suite := range peerSuites {
		t.Run(suite, func(t *testing.T) {
			want := peerRun(t, at, program, suite, direct(t).URI())
			got := peerRun(t, at, program, suite, through)
			for _, name := range sortedNames(want) {
				if want[name] != "PASS" || got[name] == "SKIP" || peerSkipped(name, got) || peerExcused(name) || peerParent(name, want) {
					continue
				}
				if got[name] != "PASS" {
					t.Errorf("%s passes on a server; through the proxy: %q", name, got[name])
				}
			}
			for _, result := range got {
				if result == "PASS" {
					passed++
				}
			}
		})
	}
	t.Logf("%d tests of the suite pass through the proxy", passed)
	if passed < 300 {
		t.Errorf("only %d tests passed: has the suite run at all?", passed)
	}
}

func peerExcused(name string) bool {
	for _, a := range peerApart {
		if regexp.MustCompile(a.pattern).MatchString(name) {
			return true
		}
	}
	return false
}

// peerSkipped reports whether the file that a test is in was skipped, as those for other deployments than a mongos are.
func peerSkipped(name string, got map[string]string) bool {
	_, known := got[name]
	at := strings.LastIndexByte(name, '/')
	return !known && at > 0 && got[name[:at]] == "SKIP"
}

// peerParent reports whether a test only groups others.
func peerParent(name string, all map[string]string) bool {
	for other := range all {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

var peerLine = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// peerRun runs one suite and returns the result of each of its tests; that some fail is expected.
func peerRun(t *testing.T, dir, program, suite, uri string) map[string]string {
	t.Helper()
	out, _ := peerCommand(t, dir, []string{"MONGODB_URI=" + uri}, program, "-test.v", "-test.run", "TestUnifiedSpec/^"+suite+"$")
	results := map[string]string{}
	for _, m := range peerLine.FindAllStringSubmatch(out, -1) {
		results[m[2]] = m[1]
	}
	if len(results) == 0 || strings.Contains(out, "\npanic: ") {
		t.Errorf("%s at %s: %s", suite, uri, out[max(0, len(out)-2000):])
	}
	return results
}

func peerCommand(t *testing.T, dir string, env []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), peerLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
