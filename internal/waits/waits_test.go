package waits

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test whose failure is looked at instead of reported.
type recorder struct {
	testing.TB
	deadline time.Time
	failed   string
}

func (r *recorder) Helper() {}

func (r *recorder) Deadline() (time.Time, bool) { return r.deadline, !r.deadline.IsZero() }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = strings.ReplaceAll(format, "%s", args[0].(string))
	runtime.Goexit()
}

// fails runs f on a recorder in a goroutine of its own and returns what it failed with, and after how long.
func fails(deadline time.Duration, f func(tb testing.TB)) (string, time.Duration) {
	began := time.Now()
	r := &recorder{}
	if deadline > 0 {
		r.deadline = began.Add(deadline)
	}
	done := make(chan struct{})
	go func() { defer close(done); f(r) }()
	<-done
	return r.failed, time.Since(began)
}

func TestWaitsEndWithTheirCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		failed, took := fails(0, func(tb testing.TB) {
			Until(tb, "a minute passes", func() bool { return time.Since(began) >= time.Minute })
		})
		if failed != "" || took > time.Minute+pause {
			t.Errorf("failed with %q after %s", failed, took)
		}
		ch := make(chan int)
		go func() { time.Sleep(time.Minute); ch <- 7 }()
		failed, _ = fails(0, func(tb testing.TB) {
			if n := For(tb, "a number", ch); n != 7 {
				t.Errorf("got %d", n)
			}
		})
		if failed != "" {
			t.Errorf("failed with %q", failed)
		}
	})
}

func TestWaitsEndBeforeTheBinary(t *testing.T) {
	never := func(tb testing.TB) { Until(tb, "snow in summer", func() bool { return false }) }
	silent := func(tb testing.TB) { For(tb, "an answer", make(chan int)) }
	for name, c := range map[string]struct {
		wait     func(testing.TB)
		deadline time.Duration
		what     string
		took     time.Duration
	}{
		"condition, no deadline": {never, 0, "snow in summer", longest},
		"condition, deadline":    {never, time.Minute, "snow in summer", time.Minute - margin},
		"channel, no deadline":   {silent, 0, "an answer", longest},
		"channel, deadline":      {silent, time.Minute, "an answer", time.Minute - margin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed, took := fails(c.deadline, c.wait)
				if !strings.HasSuffix(failed, c.what) {
					t.Errorf("failed with %q", failed)
				}
				if took < c.took || took > c.took+2*pause {
					t.Errorf("gave up after %s, want %s", took, c.took)
				}
			})
		})
	}
}
