package replicaset

import (
	"errors"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/rules"
)

// Options say what a set is like.
type Options struct {
	// Target returns the address of the server that plays all members.
	Target func() string
	// Name is the set's name; "rs" when it is empty.
	Name string
	// Members is how many there are; 3 when it is zero. The first is the primary at the beginning.
	Members int
	// Election is what passes from the death of a primary to the next one: election timeout, vote and
	// catching up. 12 s when it is zero, which is what a set with default settings takes.
	Election time.Duration
	// Handover is what passes from a primary's stepping down to the next one; 0.5 s when it is zero.
	Handover time.Duration
	// Hooks are asked by every member after the set's own.
	Hooks []rules.Hook
}

// Set is a replica set. Close it. Its methods may be called from several goroutines.
type Set struct {
	options Options
	members []*Member

	mu      sync.Mutex // guards what follows, and the members' state
	primary *Member    // nil during an election
	term    int32
	version int64         // of what hello says
	changed chan struct{} // closed and replaced when version changes
	timer   *time.Timer   // of the election that goes on
	closed  bool
}

// Member is one member of a set.
type Member struct {
	set     *Set
	relay   *rules.Relay
	process bson.ObjectID // of its topologyVersion

	// guarded by set.mu
	up      bool
	cursors map[int64]bool // that were opened here
}

// New starts a set.
func New(o Options) (*Set, error) {
	if o.Name == "" {
		o.Name = "rs"
	}
	if o.Members == 0 {
		o.Members = 3
	}
	if o.Election == 0 {
		o.Election = 12 * time.Second
	}
	if o.Handover == 0 {
		o.Handover = 500 * time.Millisecond
	}
	s := &Set{options: o, term: 1, version: 1, changed: make(chan struct{})}
	for range o.Members {
		m := &Member{set: s, process: bson.NewObjectID(), up: true, cursors: map[int64]bool{}}
		relay, err := rules.New(rules.Options{Target: o.Target, Hooks: append([]rules.Hook{m.hello, m.command}, o.Hooks...)})
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		m.relay = relay
		s.members = append(s.members, m)
	}
	s.mu.Lock()
	s.primary = s.members[0]
	s.mu.Unlock()
	return s, nil
}

// Close ends the set.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	var errs []error
	for _, m := range s.members {
		errs = append(errs, m.relay.Close())
	}
	return errors.Join(errs...)
}

// Members are the set's members in order.
func (s *Set) Members() []*Member { return s.members }

// URI is a connection string that names all members.
func (s *Set) URI() string {
	return "mongodb://" + strings.Join(s.hosts(), ",") + "/?replicaSet=" + s.options.Name
}

func (s *Set) hosts() []string {
	hosts := make([]string, len(s.members))
	for i, m := range s.members {
		hosts[i] = m.Addr()
	}
	return hosts
}

// Addr is the member's host and port, the same over its deaths.
func (m *Member) Addr() string { return m.relay.Addr() }
