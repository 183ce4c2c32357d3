package splitter

import (
	"context"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// load is how full a backend is.
type load struct {
	id    string
	bytes int64
	homes int
}

// loads measures the backends that may take something new, the emptiest first; equal ones by partitions and then by id. A backend that does not answer is left out.
func (s *Splitter) loads(ctx context.Context) ([]load, error) {
	snap := s.cfg.Catalog.Snapshot()
	var all []load
	var last error
	for _, b := range s.cfg.Backends.All() {
		// One without a token has not been looked at yet: it may be another one under a second id.
		if known := snap.Backends[b.ID()]; known != nil && (known.Draining || known.Token.IsZero()) {
			continue
		}
		body, err := b.Run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}})
		if err != nil {
			last = err
			continue
		}
		l := load{id: b.ID(), bytes: userBytes(body)}
		for _, m := range snap.Maps {
			for _, p := range m.Partitions {
				if p.Backend == l.id {
					l.homes++
				}
			}
		}
		for _, d := range snap.Databases {
			if d.Primary == l.id {
				l.homes++
			}
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		if last != nil {
			return nil, last
		}
		return nil, wire.Errorf(wire.ShardNotFound, "no backend can take new data: every one is draining")
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		switch {
		case a.bytes != b.bytes:
			return a.bytes < b.bytes
		case a.homes != b.homes:
			return a.homes < b.homes
		}
		return a.id < b.id
	})
	return all, nil
}

// userBytes adds the sizes of the databases that are neither the server's own nor ours, so that an empty fleet counts as even.
func userBytes(listDatabases bson.Raw) int64 {
	var reply struct {
		Databases []struct {
			Name string `bson:"name"`
			Size int64  `bson:"sizeOnDisk"`
		} `bson:"databases"`
	}
	if bson.Unmarshal(listDatabases, &reply) != nil {
		return 0
	}
	var n int64
	for _, d := range reply.Databases {
		if d.Name != "admin" && d.Name != "local" && d.Name != "config" && !catalog.IsInternalDB(d.Name) {
			n += d.Size
		}
	}
	return n
}

// LeastLoaded returns the id of the backend with the least data that is not draining.
func (s *Splitter) LeastLoaded(ctx context.Context) (string, error) {
	all, err := s.loads(ctx)
	if err != nil {
		return "", err
	}
	return all[0].id, nil
}
