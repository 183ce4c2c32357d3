package backend

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
)

// Set is the fleet as this process uses it: backends by id. Reading it takes no lock.
// The zero Set is empty.
type Set struct {
	mu  sync.Mutex // held to change
	all atomic.Pointer[map[string]*Backend]
}

// Get returns the backend with that id, nil when there is none.
func (s *Set) Get(id string) *Backend {
	if m := s.all.Load(); m != nil {
		return (*m)[id]
	}
	return nil
}

// All returns the backends sorted by id; the slice is the caller's.
func (s *Set) All() []*Backend {
	m := s.all.Load()
	if m == nil {
		return nil
	}
	all := make([]*Backend, 0, len(*m))
	for _, b := range *m {
		all = append(all, b)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID() < all[j].ID() })
	return all
}

// Add puts b into the set. It fails when the id is taken.
func (s *Set) Add(b *Backend) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[string]*Backend{}
	if old := s.all.Load(); old != nil {
		for id, x := range *old {
			next[id] = x
		}
	}
	if _, taken := next[b.ID()]; taken {
		return fmt.Errorf("backend %s is in the fleet already", b.ID())
	}
	next[b.ID()] = b
	s.all.Store(&next)
	return nil
}

// Remove takes the backend with that id out and returns it for the caller to close; nil when there is none.
func (s *Set) Remove(id string) *Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.all.Load()
	if old == nil || (*old)[id] == nil {
		return nil
	}
	next := map[string]*Backend{}
	for k, x := range *old {
		if k != id {
			next[k] = x
		}
	}
	s.all.Store(&next)
	return (*old)[id]
}
