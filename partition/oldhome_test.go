package partition

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
)

// An old home matters for the window from when this process learnt of the change that replaced it, whatever another machine's clock said, unless that is days ago. A home that was
// replaced twice was learnt of twice.
func TestOldHomesMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable()
		apply := func(v int64, old ...catalog.OldHome) []OldHome {
			table.Apply(&catalog.Snapshot{Maps: map[string]*catalog.Map{"db.c": {NS: "db.c", V: v, Retired: old, Partitions: []catalog.Partition{{Backend: "b", Physical: "c@9.0.0"}}}}})
			return table.View().Collection("db.c").Old
		}
		now := time.Now()
		first := catalog.OldHome{Backend: "b", Physical: "c", Marker: bson.Timestamp{T: 1}, FlippedAt: now.Add(-23 * time.Hour)}
		again := catalog.OldHome{Backend: "b", Physical: "c", Marker: bson.Timestamp{T: 2}, FlippedAt: now.Add(23 * time.Hour)}
		ancient := catalog.OldHome{Backend: "b", Physical: "c@1.0.0", FlippedAt: now.Add(-25 * time.Hour)}
		const window = time.Hour
		matter := func(all []OldHome) (n int) {
			for i := range all {
				if all[i].Matters(window) {
					n |= 1 << i
				}
			}
			return n
		}
		if got := matter(apply(1, first, ancient)); got != 0b01 {
			t.Errorf("at once: %b", got)
		}
		time.Sleep(50 * time.Minute)
		if got := matter(apply(2, again, first)); got != 0b11 {
			t.Errorf("replaced again: %b", got)
		}
		time.Sleep(20 * time.Minute)
		if got := matter(apply(3, again, first)); got != 0b01 {
			t.Errorf("after the first's window: %b", got)
		}
		time.Sleep(50 * time.Minute)
		if got := matter(table.View().Collection("db.c").Old); got != 0 {
			t.Errorf("after both: %b", got)
		}
	})
}
