package protocol

import "time"

// Mourner finds out, by looking again and again at one backend's instances, whose lease has ended and who is gone. It compares no clocks: what it measures
// is how long it has itself seen nothing change. Its zero value is not usable; make one with NewMourner. It is not safe for concurrent use.
type Mourner struct {
	lease, linger time.Duration
	seen          map[ID]sight
}

// sight is since when an instance has looked as it does.
type sight struct {
	renewals int64
	ended    bool
	since    time.Time
}

// NewMourner makes a Mourner. lease is a lease's length and the margin, together; linger is how long a transaction of an ended instance may still be
// open: the backend's transactionLifetimeLimitSeconds and one pass of its reaper.
func NewMourner(lease, linger time.Duration) *Mourner {
	return &Mourner{lease: lease, linger: linger, seen: map[ID]sight{}}
}

// Linger makes linger longer, if d is: what the backend's limit was when a transaction began holds for that transaction.
func (m *Mourner) Linger(d time.Duration) { m.linger = max(m.linger, d) }

// Look takes what is registered at the moment now, of a clock that runs through suspension. end are the instances to be ended, if their count of renewals is still what
// it was here; gone are those of whom nothing can come any more. own instances are left alone.
func (m *Mourner) Look(now time.Time, all []Instance, own func(ID) bool) (end []Instance, gone []ID) {
	there := make(map[ID]bool, len(all))
	for _, in := range all {
		there[in.ID] = true
		if own(in.ID) {
			continue
		}
		s, known := m.seen[in.ID]
		if !known || s.renewals != in.Renewals || s.ended != in.Ended {
			m.seen[in.ID] = sight{in.Renewals, in.Ended, now}
			s = m.seen[in.ID]
		}
		switch waited := now.Sub(s.since); {
		case in.Ended && (!in.Transactions || waited >= m.linger):
			gone = append(gone, in.ID)
		case !in.Ended && waited >= m.lease:
			end = append(end, in)
		}
	}
	for id := range m.seen {
		if !there[id] {
			delete(m.seen, id)
		}
	}
	return end, gone
}
