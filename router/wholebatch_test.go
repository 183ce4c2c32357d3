package router_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestLargeBatches reads megabytes over several partitions in the ways that give whole batches through, and in those that do not.
func TestLargeBatches(t *testing.T) {
	p := startProxy(t, 3)
	p.shard(t, "db.c", "_id", 5)
	c := p.client.Database("db").Collection("c")
	const n = 6000
	pad := strings.Repeat("x", 1500)
	for from := 0; from < n; from += 1000 {
		var docs []any
		for i := from; i < from+1000; i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: int32(i)}, {Key: "half", Value: int32(i % 2)}, {Key: "pad", Value: pad[:i%len(pad)]}})
		}
		if _, err := c.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i)
	}
	even := slices.DeleteFunc(slices.Clone(all), func(i int32) bool { return i%2 != 0 })
	tests := map[string]struct {
		filter bson.D
		opts   *options.FindOptionsBuilder
		want   []int32
		sorted bool
	}{
		"unsorted":              {bson.D{}, options.Find(), all, false},
		"sorted":                {bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}), all, true},
		"small batches":         {bson.D{}, options.Find().SetBatchSize(97), all, false},
		"large batches":         {bson.D{}, options.Find().SetBatchSize(2500), all, false},
		"with a filter":         {bson.D{{Key: "half", Value: 0}}, options.Find(), even, false},
		"with a projection":     {bson.D{}, options.Find().SetProjection(bson.D{{Key: "pad", Value: 0}}), all, false},
		"sorted by what it has": {bson.D{}, options.Find().SetSort(bson.D{{Key: "pad", Value: 1}, {Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "pad", Value: 0}}), all, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cur, err := c.Find(t.Context(), tt.filter, tt.opts)
			got := ids(t, cur, err)
			if tt.sorted {
				slices.Reverse(got)
			} else {
				slices.Sort(got)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%d documents, not each of %d once in order", len(got), len(tt.want))
			}
		})
	}
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSkip(1000).SetLimit(4500))
	got := ids(t, cur, err)
	slices.Sort(got)
	if len(slices.Compact(got)) != 4500 {
		t.Errorf("skip and limit gave %d documents", len(got))
	}
	// Compressed, a reply is made in another buffer.
	compressed := connect(t, "mongodb://"+p.addr+"/?compressors=zlib")
	cur, err = compressed.Database("db").Collection("c").Find(t.Context(), bson.D{})
	got = ids(t, cur, err)
	slices.Sort(got)
	if !slices.Equal(got, all) {
		t.Errorf("compressed: %d documents", len(got))
	}
}
