package catalog

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Backend is a member of the fleet as the catalog knows it (a shard in mongos' words).
type Backend struct {
	// ID is the operator's name for it, "shard" in mongos commands.
	ID string
	// URI is its connection string; it may hold credentials and never reaches a client or a log.
	URI string
	// Host is what config.shards shows: "rs/h1:p,h2:p" or "h:p".
	Host string
	// Draining says that removeShard has begun: nothing new is placed on it.
	Draining bool
	// DrainedAt is when its last partition left it; zero until then. The backend leaves the fleet
	// only after the retry window has passed since.
	DrainedAt time.Time
	// TopologyTime is what config.shards shows as topologyTime.
	TopologyTime bson.Timestamp
	// Token is the random id that the backend itself keeps, too: a server without it is another one.
	// Zero for a backend that only an older version has seen, or none yet.
	Token bson.ObjectID
	// SetName and SetID are the replica set's name and id; empty for a standalone, and the id where
	// the server does not tell it.
	SetName string
	SetID   bson.ObjectID
}

// Database is a database known to the catalog.
type Database struct {
	Name string
	// Primary is the id of the backend that holds its collections without a map.
	Primary string
	UUID    bson.Binary
	Created time.Time
	// Dropped says that the database was dropped and not used since: nothing shows it, and nothing is in it. Its primary stays, so that two proxies
	// never look for its collections at two places.
	Dropped bool
}

// CollectionSettings are what an operator set for one namespace; they may change without a new map.
type CollectionSettings struct {
	NS string
	// MaxPartitionBytes, if positive, takes the place of the fleet's limit for this namespace.
	MaxPartitionBytes int64
	// NoBalance says that the monitor leaves the collection alone.
	NoBalance bool
}

// Switch is a setting that may be unset.
type Switch int8

// The positions of a Switch.
const (
	SwitchUnset Switch = iota
	SwitchOn
	SwitchOff
)

// Settings are what an operator set for the whole fleet; config.settings shows them.
type Settings struct {
	// BalancerStopped says that balancerStop is in force: no automatic split, move or merge.
	BalancerStopped bool
	// MaxPartitionBytes, if positive, takes the place of the configuration's limit of a partition's size ("chunksize").
	MaxPartitionBytes int64
	// AutoSplit: off stops automatic splits only.
	AutoSplit Switch
	// AutoMerge is kept and shown; nothing is merged automatically.
	AutoMerge Switch
}

// Snapshot is all of the catalog that requests read, at one moment. It is immutable.
type Snapshot struct {
	// Maps has the newest map of each namespace that has one, dropped ones too.
	Maps map[string]*Map
	// Primaries has the newest map of each database whose primary was ever changed: its one partition says where the primary is.
	Primaries map[string]*Map
	// Databases by name; those that were dropped too, since a dropped database keeps its primary.
	Databases map[string]*Database
	// Backends by id.
	Backends map[string]*Backend
	// Collections has the settings by namespace.
	Collections map[string]CollectionSettings
	// Settings are the fleet's.
	Settings
	// ClusterID is config.version's clusterId.
	ClusterID bson.ObjectID
	// Views has the definitions of views known by the catalog; empty until views come.
}

// Map returns the newest map of ns, nil when ns has none.
func (s *Snapshot) Map(ns string) *Map { return s.Maps[ns] }

// Database returns a database that exists, nil for one that is unknown or was dropped.
func (s *Snapshot) Database(name string) *Database {
	if d := s.Databases[name]; d != nil && !d.Dropped {
		return d
	}
	return nil
}

// Holds reports whether anything is placed on a backend: a partition, or a database's primary.
func (s *Snapshot) Holds(backendID string) bool {
	for _, m := range s.Maps {
		for _, p := range m.Partitions {
			if p.Backend == backendID {
				return true
			}
		}
	}
	for _, d := range s.Databases {
		if d.Primary == backendID && !d.Dropped {
			return true
		}
	}
	return false
}

// newest returns the newest map of a namespace or of a database.
func (s *Snapshot) newest(ns string) *Map {
	if _, coll := SplitNS(ns); coll == "" {
		return s.Primaries[ns]
	}
	return s.Maps[ns]
}

func (s *Snapshot) put(m *Map) {
	if _, coll := SplitNS(m.NS); coll == "" {
		s.Primaries[m.NS] = m
		return
	}
	s.Maps[m.NS] = m
}

// setPrimaries gives the databases the primaries that their newest maps name.
func (s *Snapshot) setPrimaries() {
	for name, m := range s.Primaries {
		d := s.Databases[name]
		if d == nil || len(m.Partitions) == 0 || d.Primary == m.Partitions[0].Backend {
			continue
		}
		moved := *d
		moved.Primary = m.Partitions[0].Backend
		s.Databases[name] = &moved
	}
}

// PrimaryHome is the physical name in the map that tells a database's primary; no collection has it.
const PrimaryHome = "$primary"

// SplitNS splits "db.collection" at its first dot; coll is empty when there is none.
func SplitNS(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}
