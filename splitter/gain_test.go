package splitter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestFollowingEnds: following ends when a round is quick; where writes are as fast it brakes them, takes a round within a quarter of the pause budget, and ends with a reason where even that
// does not come.
func TestFollowingEnds(t *testing.T) {
	const budget = time.Second
	for what, c := range map[string]struct {
		round  func(n int) (took time.Duration)
		rounds int // 0: it never becomes quick
		brakes bool
	}{
		"quick at once":          {func(int) time.Duration { return time.Millisecond }, 1, false},
		"it gains":               {func(n int) time.Duration { return time.Second >> n }, 6, true},
		"as fast, and tolerable": {func(int) time.Duration { return budget / 5 }, 5, true},
		"too fast":               {func(int) time.Duration { return budget }, 0, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reshape{s: &Splitter{cfg: Config{PauseBudget: budget}}}
				began, rounds, braked := time.Now(), 0, false
				err := r.gain(context.Background(), func(context.Context) (int, error) {
					time.Sleep(c.round(rounds))
					rounds++
					return 1, nil
				}, func(took time.Duration) { braked = braked || took > quickRound })
				var again retryable
				switch {
				case c.rounds > 0 && (err != nil || rounds != c.rounds):
					t.Errorf("%d rounds, %v; want %d", rounds, err, c.rounds)
				case c.rounds == 0 && (!errors.As(err, &again) || time.Since(began) > followLimit+2*budget):
					t.Errorf("after %s and %d rounds: %v", time.Since(began), rounds, err)
				}
				if braked != c.brakes {
					t.Errorf("braked: %t", braked)
				}
			})
		})
	}
}
