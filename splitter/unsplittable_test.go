package splitter

import (
	"testing"
	"time"
)

func TestWhenAPartitionIsLookedAtAgain(t *testing.T) {
	now := time.Now()
	u := unsplittable{bytes: 1000, at: now}
	for _, c := range []struct {
		name  string
		size  int64
		after time.Duration
		due   bool
	}{
		{"as it was", 1000, time.Second, false},
		{"a little larger", 1099, time.Second, false},
		{"a tenth larger", 1100, time.Second, true},
		{"a minute later", 1000, lookAgain, true},
		{"smaller", 500, time.Second, false},
	} {
		if due := u.due(c.size, now.Add(c.after)); due != c.due {
			t.Errorf("%s: due is %v", c.name, due)
		}
	}
}
