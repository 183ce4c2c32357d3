package catalog

import (
	"sort"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// Partition is one entry of a Map: a half-open range of positions, kept as one physical collection
// on one backend. It is immutable.
type Partition struct {
	// Range is the positions this partition holds.
	Range shardkey.Range
	// Backend is the id of the backend that holds the physical collection.
	Backend string
	// Physical is the name of the physical collection, in the database of the map's namespace.
	// It never reaches a client.
	Physical string
	// Birth is the operation time of the last write settled on it before the flip that made it;
	// zero for a partition that was never copied (reads of any age may touch it).
	Birth bson.Timestamp
}

// OldHome is a home that a change of the map replaced, remembered for the retry window: what its sessions
// have on record up to Marker answers a repeated write (the protocol's Retries).
type OldHome struct {
	// Range is the positions that it held; whole where the key may have become another one since.
	Range    shardkey.Range
	Backend  string
	Physical string
	// Marker is the operation time of the last marker before the flip.
	Marker bson.Timestamp
	// FlippedAt is when the map that retired it was inserted, by the owner's clock: true to a day.
	FlippedAt time.Time
}

// Map is the partition map of one namespace at one version: the complete list of its partitions.
// A Map is inserted once and never changed; whoever changes a layout inserts the next version.
type Map struct {
	// NS is the namespace, "db.collection".
	NS string
	// V is the version, from 1; the highest is the truth.
	V int64
	// UUID identifies the collection to clients (config.collections.uuid); it survives reshapes,
	// not a drop.
	UUID bson.Binary
	// Epoch is what config.collections shows as lastmodEpoch.
	Epoch bson.ObjectID
	// Key is the shard key; nil for an unsharded collection, which has exactly one partition.
	Key *shardkey.Pattern
	// Hash names the hash function of the positions (shardkey.HashName); empty without Key.
	Hash string
	// Partitions cover the whole hash space without gaps, in order of position. Empty when Dropped.
	Partitions []Partition
	// Dropped says that the collection does not exist at this version.
	Dropped bool
	// Burnt says that this version has the partitions of the one before and only ended a closing.
	Burnt bool
	// Reshape is the id of the reshape that ended with this version; zero for other changes.
	Reshape bson.ObjectID
	// Retired are the old homes within the retry window, those of the newest change first.
	Retired []OldHome
	// Created is when the version was made, by its maker's clock.
	Created time.Time
}

// Sharded reports whether the namespace exists at this version and has a shard key.
func (m *Map) Sharded() bool { return m != nil && !m.Dropped && m.Key != nil }

// Index returns the index in Partitions of the partition that holds p.
// The map must not be Dropped.
func (m *Map) Index(p shardkey.Position) int {
	return sort.Search(len(m.Partitions), func(i int) bool {
		hi := m.Partitions[i].Range.Hi
		return hi == 0 || p < hi
	})
}

// Names reports whether a partition of the map is kept as that physical collection.
func (m *Map) Names(backend, physical string) bool {
	if m == nil {
		return false
	}
	for _, p := range m.Partitions {
		if p.Backend == backend && p.Physical == physical {
			return true
		}
	}
	return false
}
