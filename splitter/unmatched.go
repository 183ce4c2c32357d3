package splitter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
)

// unmatched is a collection on a backend that belongs to nothing: no map names it, it is no unsharded
// collection on its database's primary, and nothing on record says that it may be dropped. It is left
// alone.
type unmatched struct {
	home partition.Home
	uuid *bson.Binary // nil for a view
	// why says what is known of it.
	why string
}

// survey is what lies on one backend beside what the maps name.
type survey struct {
	// drops are partitions of which there is a record that they may be dropped.
	drops []partition.Home
	// left are collections without such a record.
	left []unmatched
	// used are recorded names of partitions that a map names and that are recorded as only made.
	used []string
	// gone are recorded names of partitions that are not there (any more), of changes that are over.
	gone []string
}

// survey looks through a backend's collections. The records are read before the changes that go on,
// and those before the collections and the maps: what a change makes moves into the map, never the
// other way.
func (s *Splitter) survey(ctx context.Context, b *backend.Backend) (*survey, error) {
	records, err := member.BoardOf(b).Records(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := s.cfg.Catalog.ReshapesNow(ctx)
	if err != nil {
		return nil, err
	}
	live := map[catalog.ID]bool{}
	for _, r := range changes {
		live[r.ID] = true
	}
	dbs, err := b.Client().ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	found := &survey{}
	there := map[string]bool{}
	for _, db := range dbs {
		if catalog.IsInternalDB(db) || db == "local" || db == "config" || db == "admin" {
			continue
		}
		all, err := listed(ctx, b, db)
		if err != nil {
			return nil, err
		}
		known := s.knownHomes(b.ID(), db)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			recorded := recordedName(db, name)
			there[recorded] = true
			record, has := records[recorded]
			switch {
			case strings.HasPrefix(name, "system."): // the server's own; the buckets of a time-series collection go with it
			case has && live[record.Reshape]: // whoever makes that change cleans up
			case known[name] && has && record.State == member.Made:
				found.used = append(found.used, recorded)
			case known[name]:
			case catalog.IsPhysicalName(name) && has && record.State != member.Used:
				found.drops = append(found.drops, partition.Home{Backend: b.ID(), DB: db, Physical: name})
			default:
				h := partition.Home{Backend: b.ID(), DB: db, Physical: name}
				why, err := s.whyUnmatched(ctx, h, has)
				if err != nil {
					return nil, err
				}
				if why != "" {
					found.left = append(found.left, unmatched{h, all[name].uuid, why})
				}
			}
		}
	}
	for name, record := range records {
		if !there[name] && !live[record.Reshape] && (record.State == member.Made || record.State == member.Retired) {
			found.gone = append(found.gone, name)
		}
	}
	return found, nil
}

// whyUnmatched says why a collection belongs to nothing; it is empty for one that belongs to something.
func (s *Splitter) whyUnmatched(ctx context.Context, h partition.Home, recorded bool) (string, error) {
	if catalog.IsPhysicalName(h.Physical) {
		needed, err := s.needed(ctx, h.DB+"."+catalog.LogicalName(h.Physical), h)
		switch {
		case err != nil || needed:
			return "", err
		case recorded:
			return "no map names it, and no change has retired it", nil
		}
		return "no map names it, and there is no record of a change that made it", nil
	}
	snap := s.cfg.Catalog.Snapshot()
	ns := h.DB + "." + h.Physical
	d, m := snap.Databases[h.DB], snap.Maps[ns]
	switch {
	case d == nil:
		return "the catalog does not know its database", nil
	case m == nil && d.Primary == h.Backend:
		return "", nil // an unsharded collection
	}
	needed, err := s.needed(ctx, ns, h)
	switch {
	case err != nil || needed:
		return "", err
	case m != nil:
		return "the map of its namespace names other collections", nil
	}
	return fmt.Sprintf("its database lives on the backend '%s'", d.Primary), nil
}

// Unmatched lists what belongs to nothing on any backend, as documents for people to read. A backend
// that cannot be asked is an error.
func (s *Splitter) Unmatched(ctx context.Context) ([]bson.D, error) {
	if err := s.cfg.Catalog.Refresh(ctx); err != nil {
		return nil, err
	}
	var all []bson.D
	for _, b := range s.cfg.Backends.All() {
		found, err := s.survey(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("backend '%s': %w", b.ID(), err)
		}
		for _, u := range found.left {
			d := bson.D{{Key: "shard", Value: u.home.Backend}, {Key: "db", Value: u.home.DB}, {Key: "collection", Value: u.home.Physical}}
			if u.uuid != nil {
				d = append(d, bson.E{Key: "uuid", Value: *u.uuid})
			}
			all = append(all, append(d, bson.E{Key: "why", Value: u.why}))
		}
	}
	return all, nil
}

// reportedAtOnce is how many unmatched collections one line of the log names.
const reportedAtOnce = 10

// report logs what was left alone on a backend, when that is not what was logged last.
func (s *Splitter) report(id string, left []unmatched) {
	names := make([]string, len(left))
	for i, u := range left {
		names[i] = u.home.DB + "." + u.home.Physical + " (" + u.why + ")"
	}
	text := strings.Join(names, ", ")
	if before, _ := s.reported.Swap(id, text); before == text || before == nil && text == "" {
		return
	}
	s.log.Warn().Str("backend", id).Int("collections", len(left)).Strs("first", names[:min(len(names), reportedAtOnce)]).
		Msg("collections that belong to nothing are left alone; the command listUnmatchedCollections lists them")
}
