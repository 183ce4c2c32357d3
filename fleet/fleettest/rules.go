package fleettest

import (
	"fmt"
	"os"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/rules"
)

// envRules chooses whose rules stand before a stand-in server: 6.0, 7.0, 8.0 or off.
const envRules = "SHARDWAY_RULES"

// defaultRules holds where the variable is not set: the version that the stand-in aims at.
const defaultRules = "8.0"

// Front is what stands before a stand-in server of a test: the relay, and what it remembers.
type Front struct {
	*rules.Relay
	State *rules.State
}

// fronted are what servers have with the rules before them.
var fronted = []fleet.Feature{fleet.TransactionsCollection, fleet.RetryRecordsSurviveRestart, fleet.ConcurrentRetries,
	fleet.RetriedStmtIDs, fleet.StandaloneRefusesSessions, fleet.ChecksumVerified}

// FrontOf returns what stands before a server; nil where nothing does, as with a real mongod.
func FrontOf(s *fleet.Server) *Front {
	front, _ := s.Front().(*Front)
	return front
}

// WithRules puts a mongod's rules before the servers, with settings of the test's own, whatever the
// environment says. Hooks see requests before the rules do. A real mongod stays as it is.
func WithRules(settings rules.Settings, hooks ...rules.Hook) Option {
	return func(o *fleet.Options) { putFront(o, settings, hooks...) }
}

// Version is WithRules for a version.
func Version(v rules.Version) Option { return WithRules(rules.Settings{Version: v}) }

// NoRules leaves servers as they are.
func NoRules(o *fleet.Options) {
	o.Front = func(*fleet.Server) (fleet.Front, error) { return nil, nil }
}

var recorder atomic.Pointer[func(rules.Exchange)]

// Record has see told of each command that any server of this test binary is sent, where rules
// stand before it, and of the reply. It is called before tests run, for those servers that are
// started later too.
func Record(see func(rules.Exchange)) { recorder.Store(&see) }

// recording is the hook behind Record; it costs nothing where nobody records.
func recording(r *rules.Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if see := recorder.Load(); see != nil {
		return rules.Record(*see)(r)
	}
	return nil, nil
}

// defaultFront puts the rules before the servers that the environment asks for, unless the test has
// said what it wants.
func defaultFront(o *fleet.Options) error {
	if o.Front != nil {
		return nil
	}
	text := os.Getenv(envRules)
	if text == "" {
		text = defaultRules
	}
	if text == "off" {
		return nil
	}
	v, err := rules.ParseVersion(text)
	if err != nil {
		return fmt.Errorf("%s: %w", envRules, err)
	}
	putFront(o, rules.Settings{Version: v})
	return nil
}

func putFront(o *fleet.Options, settings rules.Settings, hooks ...rules.Hook) {
	o.FrontHas = fronted
	o.Front = func(s *fleet.Server) (fleet.Front, error) {
		if s.Program().Kind == fleet.Mongod {
			return nil, nil
		}
		own := settings
		own.Standalone = s.SetName() == ""
		state := rules.NewState(own)
		all := append([]rules.Hook{recording}, hooks...)
		relay, err := rules.New(rules.Options{Target: s.Direct, Hooks: append(all, state.Hook())})
		if err != nil {
			return nil, err
		}
		return &Front{relay, state}, nil
	}
}
