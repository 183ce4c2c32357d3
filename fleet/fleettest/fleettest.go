// Package fleettest gives tests their database servers.
package fleettest

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardway/shardway/fleet"
)

// installLimit covers building a server; see fleet.Find.
const installLimit = 20 * time.Minute

// Option changes the options of a test's fleet.
type Option func(*fleet.Options)

// Durable makes acknowledged writes survive Kill; every test that kills servers needs it.
func Durable(o *fleet.Options) { o.SyncOnCommit = true }

// Standalone makes servers that are no replica sets.
func Standalone(o *fleet.Options) { o.Standalone = true }

// Start starts n servers for one test and ends them with it; 0.2 s a server. Where no server can be
// found or installed the test fails, since a suite that skips everything passes for nothing.
func Start(tb testing.TB, n int, options ...Option) *fleet.Fleet {
	tb.Helper()
	o := fleet.Options{Log: terminal()}
	for _, option := range options {
		option(&o)
	}
	if err := defaultFront(&o); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), installLimit)
	defer cancel()
	f, err := fleet.Start(ctx, n, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("closing the fleet: %v", err)
		}
	})
	return f
}

// terminal is where the building of a server shows: go test keeps standard error to itself until a
// package is done, which with a build of some minutes looks like hanging.
var terminal = sync.OnceValue(func() io.Writer {
	if tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0); err == nil {
		return tty
	}
	return os.Stderr
})

// Need skips the test, with the reason, unless the fleet has all the features.
func Need(tb testing.TB, f *fleet.Fleet, features ...fleet.Feature) {
	tb.Helper()
	for _, feature := range features {
		if !f.Has(feature) {
			tb.Skipf("%s lacks %s", f.Program().Kind, feature)
		}
	}
}

// shared is the test binary's one fleet, grown on demand and closed by Main or with the process.
var shared struct {
	sync.Mutex
	fleet *fleet.Fleet
}

// Shared returns n servers of the test binary's one fleet of replica sets, started when first asked
// for. Tests that use it must keep to databases of their own (see DB) and leave the servers alone:
// no Kill, no Freeze. The servers die with the test binary; Main ends them in order.
func Shared(tb testing.TB, n int) []*fleet.Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), installLimit)
	defer cancel()
	shared.Lock()
	defer shared.Unlock()
	if shared.fleet == nil {
		o := fleet.Options{Log: terminal()}
		if err := defaultFront(&o); err != nil {
			tb.Fatal(err)
		}
		f, err := fleet.Start(ctx, n, o)
		if err != nil {
			tb.Fatal(err)
		}
		shared.fleet = f
	}
	for len(shared.fleet.Servers) < n {
		if _, err := shared.fleet.Add(ctx); err != nil {
			tb.Fatal(err)
		}
	}
	return shared.fleet.Servers[:n:n]
}

// SharedNeed is Need for the shared fleet.
func SharedNeed(tb testing.TB, features ...fleet.Feature) {
	tb.Helper()
	Shared(tb, 1)
	shared.Lock()
	f := shared.fleet
	shared.Unlock()
	Need(tb, f, features...)
}

// Main runs a package's tests and closes the shared fleet. A package that uses Shared has:
//
//	func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.fleet != nil {
		if err := shared.fleet.Close(); err != nil && code == 0 {
			println("closing the shared fleet:", err.Error())
			code = 1
		}
	}
	return code
}

var databases atomic.Int64

// DB returns a database name that no other test of this binary has.
func DB(tb testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, tb.Name())
	const most = 50 // of MongoDB's 63 bytes
	return name[max(0, len(name)-most):] + "_" + strconv.FormatInt(databases.Add(1), 10)
}
