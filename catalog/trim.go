package catalog

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TrimMaps deletes versions of maps, never the newest, that were made before a moment. Namespaces with a record of a change are left alone: whoever takes it over reads the
// version that it names. A deleted version can be inserted again by somebody late, who then believes for a moment that it counts; the highest version is the truth all the same,
// and nothing is dropped before that one has been read.
func (s *Store) TrimMaps(ctx context.Context, before time.Time) error {
	live, err := s.Reshapes(ctx)
	if err != nil {
		return err
	}
	busy := map[string]bool{}
	for _, r := range live {
		busy[r.NS] = true
	}
	snap := s.Snapshot()
	for _, maps := range []map[string]*Map{snap.Maps, snap.Primaries} {
		for ns, m := range maps {
			if busy[ns] || m.V == 1 {
				continue
			}
			_, err := s.db.Collection(mapsColl).DeleteMany(ctx, bson.D{
				{Key: "_id.ns", Value: ns}, {Key: "_id.v", Value: bson.D{{Key: "$lt", Value: m.V}}}, {Key: "created", Value: bson.D{{Key: "$lt", Value: before}}}})
			if err != nil {
				return fmt.Errorf("trim the maps of %s: %w", ns, err)
			}
		}
	}
	return nil
}
