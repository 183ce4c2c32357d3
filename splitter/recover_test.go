package splitter

import (
	"testing"
	"time"

	"github.com/shardway/shardway/catalog"
)

// TestRecordWatch: a record is taken over when it has been seen unchanged for a lease. While the catalog cannot be read nobody can renew, so that time does not count.
func TestRecordWatch(t *testing.T) {
	const lease, s = 10 * time.Second, time.Second
	type reading struct {
		began, ended time.Duration
		rec          catalog.Reshape
	}
	a := catalog.Reshape{Slot: "db.c", Epoch: 1, Phase: catalog.Copying}
	renewed, other, closing := a, a, a
	renewed.Renewals, other.Epoch, closing.Phase = 1, 2, catalog.Closing
	every := func(from, to time.Duration, rec catalog.Reshape) (all []reading) {
		for at := from; at <= to; at += s {
			all = append(all, reading{at, at, rec})
		}
		return all
	}
	for name, tt := range map[string]struct {
		readings []reading
		silent   bool
	}{
		"unchanged for a lease":                {every(0, 10*s, a), true},
		"unchanged for less":                   {every(0, 9*s, a), false},
		"renewed":                              {append(every(0, 5*s, a), every(6*s, 15*s, renewed)...), false},
		"taken over by another":                {append(every(0, 5*s, a), every(6*s, 15*s, other)...), false},
		"in another phase":                     {append(every(0, 5*s, a), every(6*s, 15*s, closing)...), false},
		"the first reading took long":          {append([]reading{{0, 4 * s, a}}, every(5*s, 13*s, a)...), false},
		"the catalog was away for a lease":     {append(every(0, 2*s, a), every(14*s, 15*s, a)...), false},
		"it was away, and is back for a lease": {append(every(0, 2*s, a), every(14*s, 24*s, a)...), true},
		"it was away for a moment":             {append(every(0, 2*s, a), every(6*s, 10*s, a)...), true},
	} {
		w, began := recordWatch{lease: lease}, time.Now()
		var silent []*catalog.Reshape
		for i, r := range tt.readings {
			if silent = w.look(began.Add(r.began), began.Add(r.ended), []catalog.Reshape{r.rec}); len(silent) > 0 && i < len(tt.readings)-1 {
				t.Errorf("%s: taken over at the reading that began at %s", name, r.began)
			}
		}
		if got := len(silent) > 0; got != tt.silent {
			t.Errorf("%s: %v", name, got)
		}
	}
}
