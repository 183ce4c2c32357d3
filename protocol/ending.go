package protocol

import "time"

// Mourner finds out, by looking again and again at one backend's instances, whose lease has ended and who is gone. It compares no clocks: what it measures
// is how long it has itself seen nothing change. Its zero value is not usable; make one with NewMourner. It is not safe for concurrent use.
//
// Two rules say how that is measured. An instance counted as unrenewed for d must not have renewed for at least d:
//
//   - An observation begins when its reading has ended and is confirmed as of when a later reading began. A renewal that the first reading shows was sent before
//     that reading ended, and one that the later reading does not show had not been executed when that reading began. So between the two moments no
//     renewal was executed, however long either reading took.
//   - Two successful readings further apart than half of a lease begin all observations of renewals anew: while a backend has no primary nobody can
//     renew, and whoever looked at the first opportunity would end everybody, himself included.
//
// Neither rule can end anybody too early. The first is exact: an instance is ended at the earliest when a lease and a margin have passed since a
// moment after its last renewal was sent, which is what its own lease counts from. The second only moves the beginning of an
// observation to a later moment, and so what was true of the longer observation is true of the shorter one.
type Mourner struct {
	lease, linger time.Duration
	seen          map[ID]sight
	// last is when the last successful reading had ended; zero before the first.
	last time.Time
}

// sight is since when an instance has looked as it does.
type sight struct {
	renewals int64
	ended    bool
	since    time.Time
}

// NewMourner makes a Mourner. lease is a lease's length and the margin, together, for instances that do not say how long theirs is; linger is how long a
// transaction of an ended instance may still be open: the backend's transactionLifetimeLimitSeconds and one pass of its reaper.
func NewMourner(lease, linger time.Duration) *Mourner {
	return &Mourner{lease: lease, linger: linger, seen: map[ID]sight{}}
}

// Linger makes linger longer, if d is: what the backend's limit was when a transaction began holds for that transaction.
func (m *Mourner) Linger(d time.Duration) { m.linger = max(m.linger, d) }

// Look takes what was registered by a reading that began and ended at these moments of this process's clock. end are the instances to be ended, if their
// count of renewals is still what it was here; gone are those of whom nothing can come any more. own instances are left alone.
func (m *Mourner) Look(began, ended time.Time, all []Instance, own func(ID) bool) (end []Instance, gone []ID) {
	if !m.last.IsZero() && ended.Sub(m.last) > m.lease/2 {
		m.forgetRenewals()
	}
	m.last = ended
	there := make(map[ID]bool, len(all))
	for _, in := range all {
		there[in.ID] = true
		if own(in.ID) {
			continue
		}
		s, known := m.seen[in.ID]
		if !known || s.renewals != in.Renewals || s.ended != in.Ended {
			s = sight{in.Renewals, in.Ended, ended}
			m.seen[in.ID] = s
		}
		switch waited := began.Sub(s.since); {
		case in.Ended && (!in.Transactions || waited >= m.linger):
			gone = append(gone, in.ID)
		case !in.Ended && waited >= max(m.lease, in.Unrenewed()):
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

// forgetRenewals begins anew to observe who renews. What is known of instances that have ended stays: their transactions grow old at the backend whether
// or not anybody looks.
func (m *Mourner) forgetRenewals() {
	for id, s := range m.seen {
		if !s.ended {
			delete(m.seen, id)
		}
	}
}
