package rules

import (
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Settings say what the server is taken for. Zero values are a mongod's own defaults.
type Settings struct {
	// Version is the version whose rules hold; zero is Default.
	Version Version
	// Standalone is a server that is no replica set.
	Standalone bool
	// Members is how many members of the set bear data; zero is one.
	Members int
	// MaxSessions is how many sessions may be used between two refreshes; zero is a million.
	MaxSessions int
	// SessionTimeout is after how long without use a session ends; zero is 30 minutes.
	SessionTimeout time.Duration
	// SessionRefresh is how often the sessions in use are written down and forgotten; zero is 5
	// minutes.
	SessionRefresh time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// State is what a server remembers beyond what the stand-in does. All relays in front of one server
// share one State, and it outlives the server's process, as a mongod's own records do.
type State struct {
	settings Settings
	rows     map[string][]*Row // those that hold, by command in lower case
	always   []*Row            // those that hold for every other command

	mu        sync.Mutex // guards what follows
	clock     bson.Timestamp
	server    bson.Timestamp // the newest time that the server itself has told
	writing   int            // writes on their way
	begun     int64          // writes that have ever begun
	sessions  map[sessionKey]*session
	weight    int // of all sessions' records
	active    map[sessionKey]struct{}
	refreshed time.Time
	cursors   map[int64]cursor
	chain     map[bson.Timestamp]*entry
	old       []*entry // of the chain, oldest first: those that are no session's newest any more
	oldWeight int
}

// NewState makes the memory of a server that has just been made.
func NewState(settings Settings) *State {
	if settings.Version == 0 {
		settings.Version = Default
	}
	if settings.Members == 0 {
		settings.Members = 1
	}
	if settings.MaxSessions == 0 {
		settings.MaxSessions = 1_000_000
	}
	if settings.SessionTimeout == 0 {
		settings.SessionTimeout = 30 * time.Minute
	}
	if settings.SessionRefresh == 0 {
		settings.SessionRefresh = 5 * time.Minute
	}
	if settings.Now == nil {
		settings.Now = time.Now
	}
	s := &State{settings: settings, rows: map[string][]*Row{}, refreshed: settings.Now(),
		sessions: map[sessionKey]*session{}, active: map[sessionKey]struct{}{}, cursors: map[int64]cursor{}, chain: map[bson.Timestamp]*entry{}}
	s.choose(Table())
	return s
}

// Version is the version whose rules hold.
func (s *State) Version() Version { return s.settings.Version }

// SetMaxSessions changes how many sessions may be used between two refreshes.
func (s *State) SetMaxSessions(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings.MaxSessions = n
}

// SetSessionTimeout changes after how long without use a session ends.
func (s *State) SetSessionTimeout(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings.SessionTimeout = d
}

// noteTimes learns the clock from a reply of the server.
func (s *State) noteTimes(reply bson.Raw) {
	operation, cluster := replyTimes(reply)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []bson.Timestamp{operation, cluster} {
		if t.After(s.server) {
			s.server = t
		}
		if t.After(s.clock) {
			s.clock = t
		}
	}
}

// replyTimes are operationTime and the time in $clusterTime.
func replyTimes(reply bson.Raw) (operation, cluster bson.Timestamp) {
	operation = timeOf(reply.Lookup("operationTime"))
	if d, ok := reply.Lookup("$clusterTime").DocumentOK(); ok {
		cluster = timeOf(d.Lookup("clusterTime"))
	}
	return operation, cluster
}
