package catalog

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// mapDoc is a Map as it is stored. Positions are int64s: position − 2^63, so that their order is kept and shells can read them; the end
// of the space has no position and is left out.
type mapDoc struct {
	ID         mapID          `bson:"_id"`
	UUID       bson.Binary    `bson:"uuid"`
	Epoch      bson.ObjectID  `bson:"epoch"`
	Key        bson.Raw       `bson:"key,omitempty"`
	Hash       string         `bson:"hash,omitempty"`
	Partitions []partitionDoc `bson:"partitions"`
	Dropped    bool           `bson:"dropped,omitempty"`
	Burnt      bool           `bson:"burnt,omitempty"`
	Reshape    bson.ObjectID  `bson:"reshape,omitempty"`
	Retired    []oldHomeDoc   `bson:"retired,omitempty"`
	Created    time.Time      `bson:"created"`
}

type mapID struct {
	NS string `bson:"ns"`
	V  int64  `bson:"v"`
}

type partitionDoc struct {
	Lo       int64          `bson:"lo"`
	Hi       *int64         `bson:"hi,omitempty"`
	Backend  string         `bson:"backend"`
	Physical string         `bson:"physical"`
	Birth    bson.Timestamp `bson:"birth,omitempty"`
}

type oldHomeDoc struct {
	Lo        int64          `bson:"lo"`
	Hi        *int64         `bson:"hi,omitempty"`
	Backend   string         `bson:"backend"`
	Physical  string         `bson:"physical"`
	Marker    bson.Timestamp `bson:"marker,omitempty"`
	FlippedAt time.Time      `bson:"flippedAt"`
}

func encodeRange(r shardkey.Range) (lo int64, hi *int64) {
	if r.Hi != 0 {
		h := r.Hi.Int64()
		hi = &h
	}
	return r.Lo.Int64(), hi
}

func decodeRange(lo int64, hi *int64) shardkey.Range {
	r := shardkey.Range{Lo: shardkey.PositionFromInt64(lo)}
	if hi != nil {
		r.Hi = shardkey.PositionFromInt64(*hi)
	}
	return r
}

func encodeMap(m *Map) mapDoc {
	d := mapDoc{ID: mapID{m.NS, m.V}, UUID: m.UUID, Epoch: m.Epoch, Hash: m.Hash, Dropped: m.Dropped, Burnt: m.Burnt,
		Reshape: m.Reshape, Created: m.Created, Partitions: []partitionDoc{}}
	if m.Key != nil {
		d.Key = m.Key.Raw()
	}
	for _, p := range m.Partitions {
		lo, hi := encodeRange(p.Range)
		d.Partitions = append(d.Partitions, partitionDoc{lo, hi, p.Backend, p.Physical, p.Birth})
	}
	for _, o := range m.Retired {
		lo, hi := encodeRange(o.Range)
		d.Retired = append(d.Retired, oldHomeDoc{lo, hi, o.Backend, o.Physical, o.Marker, o.FlippedAt})
	}
	return d
}

// decodeMap turns a stored map into a Map; one that breaks an invariant is refused, since routing by it could lose data.
func decodeMap(d mapDoc) (*Map, error) {
	m := &Map{NS: d.ID.NS, V: d.ID.V, UUID: d.UUID, Epoch: d.Epoch, Hash: d.Hash, Dropped: d.Dropped, Burnt: d.Burnt,
		Reshape: d.Reshape, Created: d.Created.UTC()}
	if len(d.Key) > 0 {
		key, err := shardkey.ParsePattern(d.Key)
		if err != nil {
			return nil, fmt.Errorf("map %s v%d: %w", m.NS, m.V, err)
		}
		m.Key = &key
	}
	rememberShortened(SplitNS(m.NS))
	for _, p := range d.Partitions {
		m.Partitions = append(m.Partitions, Partition{decodeRange(p.Lo, p.Hi), p.Backend, p.Physical, p.Birth})
	}
	for _, o := range d.Retired {
		m.Retired = append(m.Retired, OldHome{decodeRange(o.Lo, o.Hi), o.Backend, o.Physical, o.Marker, o.FlippedAt.UTC()})
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return m, nil
}

// Check tells what is wrong with a map: partitions must cover the whole space in order without gap or overlap, each with a home of its
// own; an unsharded collection has one; a dropped one has none.
func (m *Map) Check() error {
	bad := func(why string) error { return fmt.Errorf("map %s v%d: %s", m.NS, m.V, why) }
	switch {
	case m.V < 1:
		return bad("versions begin at 1")
	case m.Dropped && len(m.Partitions) > 0:
		return bad("a dropped collection has no partitions")
	case m.Dropped:
		return nil
	case len(m.Partitions) == 0:
		return bad("no partitions")
	case m.Key == nil && len(m.Partitions) != 1:
		return bad("an unsharded collection has one partition")
	case m.Key != nil && m.Hash != shardkey.HashName:
		return bad("unknown hash " + m.Hash)
	}
	next := shardkey.Position(0)
	homes := map[[2]string]bool{}
	for i, p := range m.Partitions {
		last := i == len(m.Partitions)-1
		switch home := [2]string{p.Backend, p.Physical}; {
		case p.Range.Lo != next, last != (p.Range.Hi == 0), !last && p.Range.Hi <= p.Range.Lo:
			return bad("the partitions do not cover the hash space in order")
		case p.Backend == "" || p.Physical == "":
			return bad("a partition without a home")
		case homes[home]:
			return bad("two partitions with one home")
		default:
			homes[home] = true
		}
		next = p.Range.Hi
	}
	return nil
}
