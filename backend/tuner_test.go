package backend

import (
	"math/rand/v2"
	"testing"
	"time"
)

// play runs a tuner for so long before a host that gives perSecond(connections) replies when so many have requests.
func play(t *tuner, from, length time.Duration, inFlight int, perSecond func(conns int) float64) (caps map[int]time.Duration) {
	const step = time.Millisecond
	caps = map[int]time.Duration{}
	replies := float64(t.replies)
	for at := from; at < from+length; at += step {
		replies += perSecond(min(t.cap, inFlight)) * step.Seconds()
		if inFlight >= t.cap {
			t.short = true
		}
		t.step(at, uint64(replies), inFlight, 1000, true)
		caps[t.cap] += step
	}
	return caps
}

// A host that computes gives no more for more connections, and a little less for many.
func computing(conns int) float64 { return 17_000 - 8*float64(conns) }

func waiting(each time.Duration) func(int) float64 {
	return func(conns int) float64 { return float64(conns) / each.Seconds() }
}

func TestTuner(t *testing.T) {
	for name, c := range map[string]struct {
		inFlight  int
		perSecond func(int) float64
		want      int
	}{
		"a host that computes keeps few":                 {1000, computing, leastCap},
		"one that waits gets as many as there are":       {256, waiting(10 * time.Millisecond), 256},
		"up to the most":                                 {5000, waiting(10 * time.Millisecond), 1000},
		"one that waits long too":                        {400, waiting(400 * time.Millisecond), 512},
		"one that waits up to what it can":               {1000, func(n int) float64 { return min(float64(n)*100, 12_800) }, 128},
		"few requests need no trial":                     {20, waiting(10 * time.Millisecond), leastCap},
		"one that nothing comes from has no more either": {1000, func(int) float64 { return 0 }, leastCap},
	} {
		tn := tunerOfWaiting()
		play(&tn, time.Hour, 9*time.Second, c.inFlight, c.perSecond)
		caps := play(&tn, time.Hour+9*time.Second, 20*time.Second, c.inFlight, c.perSecond)
		var most int
		for n, d := range caps {
			if d > caps[most] {
				most = n
			}
		}
		if most < c.want || most >= 2*c.want || caps[most] < 16*time.Second {
			t.Errorf("%s: %v, want %d most of the time", name, caps, c.want)
		}
	}
}

// On a machine on which other programs run, a host that computes gives now more, now less. It keeps few connections most of the time.
func TestTunerAmidNoise(t *testing.T) {
	tn := tunerOfWaiting()
	rng := rand.New(rand.NewPCG(1, 2))
	caps, part, until := map[int]time.Duration{}, 1.0, time.Duration(0)
	at := time.Hour
	noisy := func(conns int) float64 {
		if at += time.Millisecond; at >= until {
			part, until = 0.5+0.5*rng.Float64(), at+time.Duration(50+rng.IntN(250))*time.Millisecond
		}
		return part * computing(conns)
	}
	for range 20 {
		for n, d := range play(&tn, at, 30*time.Second, 1000, noisy) {
			caps[n] += d
		}
	}
	if caps[leastCap] < 540*time.Second { // of 600; with one look at more it is 519
		t.Errorf("%v", caps)
	}
	t.Log(caps)
}

// A host that changes its kind gets what suits it within ten seconds.
func TestTunerFollows(t *testing.T) {
	tn := tunerOfWaiting()
	at := time.Hour
	for round := range 3 {
		play(&tn, at, 10*time.Second, 400, waiting(10*time.Millisecond))
		caps := play(&tn, at+10*time.Second, 5*time.Second, 400, waiting(10*time.Millisecond))
		if caps[512] < 4*time.Second {
			t.Errorf("round %d, waiting: %v", round, caps)
		}
		play(&tn, at+15*time.Second, 10*time.Second, 400, computing)
		caps = play(&tn, at+25*time.Second, 5*time.Second, 400, computing)
		if caps[leastCap] < 4*time.Second {
			t.Errorf("round %d, computing: %v", round, caps)
		}
		at += 40 * time.Second // with a rest, in which a trial may have been under way
	}
}

// Few connections are shared, and more where the server has cores for them.
func TestTunerOfBoost(t *testing.T) {
	for name, c := range map[string]struct {
		perSecond func(boost int) float64
		want      int
	}{
		"two cores":             {func(boost int) float64 { return 20_000 - 200*float64(boost) }, 1},
		"thirty-two cores":      {func(boost int) float64 { return min(float64(4*boost), 32) * 10_000 }, 8},
		"more than are allowed": {func(boost int) float64 { return float64(boost) * 10_000 }, mostBoost},
	} {
		tn := tunerOfBoost()
		at, replies := time.Hour, 0.0
		caps := map[int]int{}
		for i := range 20_000 {
			replies += c.perSecond(tn.cap) / 1000
			tn.short = true
			tn.step(at, uint64(replies), 256, mostBoost, true)
			if at += time.Millisecond; i >= 10_000 {
				caps[tn.cap]++
			}
		}
		if caps[c.want] < 8000 {
			t.Errorf("%s: %v, want %d most of the time", name, caps, c.want)
		}
	}
}
