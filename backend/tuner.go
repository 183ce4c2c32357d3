package backend

import "time"

const (
	// leastCap is how many connections requests that seem to wait may always have, each its own: so few cost a server nothing.
	leastCap = 32
	// mostBoost bounds by how much more connections than usual requests are shared that do not seem to wait.
	mostBoost = 16
	// A window is at least tuneWindow long and has a reply for every connection, unless those take more than tuneLongest.
	tuneWindow, tuneLongest = 100 * time.Millisecond, time.Second
	// tuneSettle is how long a trial runs before it is measured, tuneDial how long at most it waits for its connections.
	tuneSettle, tuneDial = 40 * time.Millisecond, 500 * time.Millisecond
	// After trials that failed the next one waits, from the first to the last of these.
	tuneSoon, tuneLate = 500 * time.Millisecond, 4 * time.Second
	// keeps is which part of the rate fewer connections must keep. Trials follow one another: what each may lose all of them may lose again.
	keeps = 0.93
	// tuneStale is how long nothing may ask before what was measured is of another load.
	tuneStale = 300 * time.Millisecond
)

// tuner learns by trying how many connections to a host pay: at the limit, twice as many are tried for a moment, and stay if the host then answers more; if half
// as many do as well, these are enough. A pool has two. One is for requests that seem to wait: behind others on a busy server they do so just as on
// one that waits for something else, but more connections help the latter only. The other is for those that do not, and share few connections: a server
// of many cores serves as many requests at once as there are connections. Guarded by pool.mu.
type tuner struct {
	// cap is the limit, least where it begins. gain is which part of what more connections may bring at best they must.
	cap, least int
	gain       float64
	// short says that a request met the limit since the window began.
	short bool

	phase tunePhase
	// since is when the window or the trial began, asked when step was last called; replies is what was counted at since.
	since, asked time.Duration
	replies      uint64
	// was is the cap before the trial, base the replies a second under it.
	was  int
	base float64
	// more is the larger cap of a trial that seemed to pay, promised the replies a second under it, while it is seen whether the old one gives less: on a
	// machine that does other things, too, a moment may be better than the one before it for any reason.
	more     int
	promised float64
	// next is when a trial may begin, pause how long the last one that failed has put it off; down says that the next tries fewer.
	next, pause time.Duration
	down        bool
}

type tunePhase uint8

const (
	tuneSteady tunePhase = iota
	tuneSettling
	tuneMeasuring
)

// tunerOfWaiting limits the connections of requests that seem to wait.
func tunerOfWaiting() tuner { return tuner{cap: leastCap, least: leastCap, gain: 0.15} }

// tunerOfBoost multiplies the connections of those that do not.
func tunerOfBoost() tuner { return tuner{cap: 1, least: 1, gain: 0.5} }

// step is called for every request concerned: replies is how many the host has given, ever, inFlight how many requests it has, most the largest cap. ready
// says that the connections which the cap allows are there.
func (t *tuner) step(at time.Duration, replies uint64, inFlight, most int, ready bool) {
	if at-t.asked > tuneStale {
		if t.phase != tuneSteady {
			t.cap = t.was
		}
		t.more = 0
		t.begin(tuneSteady, at, replies)
	}
	t.asked = at
	took, n := at-t.since, replies-t.replies
	switch t.phase {
	case tuneSettling:
		if took >= tuneDial || took >= tuneSettle && (t.down || ready) {
			t.begin(tuneMeasuring, at, replies)
		}
		return
	case tuneSteady, tuneMeasuring:
		if took < tuneWindow || n < uint64(t.cap) && took < tuneLongest {
			return
		}
	}
	rate := float64(n) / took.Seconds()
	if t.phase == tuneMeasuring {
		t.judge(at, rate, inFlight)
	} else if at >= t.next {
		t.try(rate, inFlight, most)
	}
	phase := tuneSteady
	if t.phase == tuneSettling {
		phase = tuneSettling
	}
	t.begin(phase, at, replies)
}

func (t *tuner) begin(phase tunePhase, at time.Duration, replies uint64) {
	t.phase, t.since, t.replies, t.short = phase, at, replies, false
}

// try begins a trial, if there is one to make.
func (t *tuner) try(rate float64, inFlight, most int) {
	more := t.short && inFlight > t.cap && t.cap < most
	fewer := t.cap > t.least && inFlight > t.least
	switch {
	case fewer && (t.down || !more):
		t.was, t.down = t.cap, true
		t.cap = max(t.least, min(t.cap, inFlight)/2)
	case more:
		t.was, t.down = t.cap, false
		t.cap = min(2*t.cap, most)
	default:
		return
	}
	t.base, t.phase = rate, tuneSettling
}

// judge ends a trial, or one of more connections half: if it seemed to pay, the old cap is looked at once more. What pays is tried further at once.
func (t *tuner) judge(at time.Duration, rate float64, inFlight int) {
	t.phase = tuneSteady
	pays := rate >= keeps*t.base
	switch {
	case t.more != 0:
		pays = t.pays(t.promised, rate, t.more, inFlight)
		t.cap, t.more = t.more, 0
	case !t.down:
		if pays = t.pays(rate, t.base, t.cap, inFlight); pays && t.cap != t.was {
			t.more, t.promised, t.cap, t.phase = t.cap, rate, t.was, tuneSettling
			return
		}
	}
	if pays && t.cap != t.was {
		t.pause, t.next = 0, at
		return
	}
	t.cap = t.was
	t.down = !t.down
	t.pause = min(max(2*t.pause, tuneSoon), tuneLate)
	t.next = at + t.pause
}

// pays reports whether a rate under a larger cap than was is enough more than one under that.
func (t *tuner) pays(rate, base float64, larger, inFlight int) bool {
	return rate > 0 && rate >= base*(1+t.gain*float64(min(larger, inFlight)-t.was)/float64(t.was))
}
