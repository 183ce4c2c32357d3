package replicaset

import (
	"slices"
	"time"
)

// Primary is the primary; nil during an election.
func (s *Set) Primary() *Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.primary
}

// Kill ends a member as kill -9 does: all its connections are cut, and new ones are not taken. What
// the server was doing for it goes on, which nobody hears of. When it was the primary another member is
// elected after Options.Election.
func (m *Member) Kill() {
	s := m.set
	s.mu.Lock()
	if m.up {
		m.up = false
		clear(m.cursors)
		if s.primary == m {
			s.electLocked(nil, s.options.Election)
		}
		s.newsLocked()
	}
	s.mu.Unlock()
	m.relay.Down()
}

// Start starts a member that was killed. It is a secondary, and elects a primary with the others if there is none.
func (m *Member) Start() {
	m.relay.Up()
	s := m.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.up {
		return
	}
	m.up = true
	if s.primary == nil && s.timer == nil {
		s.electLocked(nil, s.options.Election)
	}
	s.newsLocked()
}

// StepDown has the primary become a secondary. Its connections stay, and another member becomes the primary after Options.Handover, or the same
// one, if no other is up.
func (m *Member) StepDown() {
	s := m.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.primary == m {
		s.electLocked(m, s.options.Handover)
		s.newsLocked()
	}
}

// electLocked ends the primary's time and has another one, if possible another than last, follow after a while.
func (s *Set) electLocked(last *Member, after time.Duration) {
	s.primary = nil
	if s.closed {
		return
	}
	s.timer = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.timer = nil
		up := slices.DeleteFunc(slices.Clone(s.members), func(m *Member) bool { return !m.up })
		if s.closed || 2*len(up) <= len(s.members) { // no majority votes
			return
		}
		i := max(0, slices.IndexFunc(up, func(m *Member) bool { return m != last }))
		s.primary = up[i]
		s.term++
		s.newsLocked()
	})
}

// newsLocked tells the clients that wait for news.
func (s *Set) newsLocked() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}
