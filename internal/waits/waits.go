// Package waits lets tests wait for what another goroutine or process is about to make true. A wait
// has no limit of its own but one that no busy machine comes near, so a test fails for what it
// watches and not for the load of the machine.
package waits

import (
	"context"
	"testing"
	"time"
)

const (
	// longest bounds a wait of a test binary without a deadline. It is there so that a test that
	// will never end says which condition it waits for.
	longest = 5 * time.Minute
	// margin is how long before the test binary's deadline a wait gives up, so that its message
	// comes before the binary's own panic.
	margin = 10 * time.Second
	// pause is how long Until waits between two looks.
	pause = 2 * time.Millisecond
)

// Until looks again and again until ok returns true. The test ends at once, with what, if that
// never happens.
func Until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(limit(tb)); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			tb.Fatalf("it never came true: %s", what)
		}
	}
}

// For returns the next value of ch, or the zero value when ch is closed. The test ends at once,
// with what, if neither happens.
func For[T any](tb testing.TB, what string, ch <-chan T) T {
	tb.Helper()
	late := time.NewTimer(limit(tb))
	defer late.Stop()
	select {
	case v := <-ch:
		return v
	case <-late.C:
		tb.Fatalf("it never came: %s", what)
		panic("unreachable")
	}
}

// Context returns a context that ends with the test, or when a wait would give up.
func Context(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit(tb))
	tb.Cleanup(cancel)
	return ctx
}

// limit is how long a wait that begins now may take.
func limit(tb testing.TB) time.Duration {
	d := longest
	if t, ok := tb.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, set := t.Deadline(); set {
			d = min(d, time.Until(end)-margin)
		}
	}
	return max(d, time.Second)
}
