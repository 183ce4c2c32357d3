package splitter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPaceFollowsTheForeground(t *testing.T) {
	var p pace
	if got := p.rest(100, 1<<20, 100*time.Millisecond, true); got != 25*time.Millisecond {
		t.Errorf("the first rest: %v", got)
	}
	if got := p.rest(100, 1<<20, 50*time.Millisecond, true); got != 12500*time.Microsecond {
		t.Errorf("a quicker batch: %v", got)
	}
	alone := p.rest(100, 1<<20, 50*time.Millisecond, true)
	busy := p.rest(100, 1<<20, 200*time.Millisecond, true) // four times as long: the share of its time that it works falls from 4/5 to 1/2
	if alone > 13*time.Millisecond || busy < 190*time.Millisecond || busy > 200*time.Millisecond {
		t.Errorf("alone it rests %v, beside others %v", alone, busy)
	}
	if got := p.rest(100, 1<<20, time.Minute, true); got != maxRest {
		t.Errorf("a stalled server: %v", got)
	}
	if got := p.rest(100, 2<<20, 100*time.Millisecond, true); got > 27*time.Millisecond {
		t.Errorf("twice the work in twice the time: %v", got)
	}
	for range 1000 { // slower for good
		p.rest(100, 1<<20, 200*time.Millisecond, true)
	}
	if got := p.rest(100, 1<<20, 200*time.Millisecond, true); got > 52*time.Millisecond {
		t.Errorf("after a thousand batches as slow: %v", got)
	}
	if got := p.rest(100, 1<<20, 200*time.Millisecond, false); got != 0 {
		t.Errorf("alone: %v", got)
	}
	if got := p.rest(100, 1<<20, 400*time.Millisecond, false); got < 190*time.Millisecond {
		t.Errorf("beside somebody whom another proxy serves: %v", got)
	}
	if got := p.rest(0, 0, 0, true); got != 0 {
		t.Errorf("nothing: %v", got)
	}
}

func TestRateBoundsAllCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rate{perSecond: 1 << 20}
		began := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 10 {
					if err := r.wait(t.Context(), 1<<18); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		// 40 batches worth a quarter of a second each; nobody waits for the last one's worth.
		if took := time.Since(began); took != 9750*time.Millisecond {
			t.Errorf("10 MB at 1 MB/s took %v", took)
		}
		time.Sleep(time.Hour) // which is not saved up
		began = time.Now()
		for range 5 {
			_ = r.wait(t.Context(), 1<<20)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("after an idle hour 5 MB took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a copy that is given up: %v", err)
		}
		began = time.Now()
		if err := (&rate{}).wait(t.Context(), 1<<40); err != nil || time.Since(began) != 0 {
			t.Errorf("without a bound: %v after %v", err, time.Since(began))
		}
	})
}
