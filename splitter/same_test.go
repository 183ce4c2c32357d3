package splitter

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/shardkey"
)

// TestOutputsAreLikeTheirInputs: what a copy lacks of the collection that it is a copy of, and what
// is no difference.
func TestOutputsAreLikeTheirInputs(t *testing.T) {
	key, err := shardkey.ParsePattern(raw(t, bson.D{{Key: "k", Value: "hashed"}}))
	if err != nil {
		t.Fatal(err)
	}
	index := func(name string, fields bson.D, more ...bson.E) bson.D {
		return append(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: fields}, {Key: "name", Value: name}}, more...)
	}
	a := index("a_1", bson.D{{Key: "a", Value: int32(1)}}, bson.E{Key: "unique", Value: true})
	validator := bson.E{Key: "validator", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$gte", Value: int32(0)}}}}}
	collation := func(version string) bson.E {
		return bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}, {Key: "strength", Value: int32(2)}, {Key: "version", Value: version}}}
	}
	of := func(options bson.D, indexes ...bson.D) collectionInfo {
		return collectionInfo{exists: true, options: options, indexes: indexes}
	}
	series := bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}}
	for name, c := range map[string]struct {
		have, want collectionInfo
		same       bool
	}{
		"the same":                     {of(bson.D{validator}, a), of(bson.D{validator}, a), true},
		"not there":                    {collectionInfo{}, of(nil), false},
		"a view":                       {collectionInfo{exists: true, view: true}, of(nil), false},
		"no validator":                 {of(nil, a), of(bson.D{validator}, a), false},
		"a validator too many":         {of(bson.D{validator}), of(nil), false},
		"no index":                     {of(nil), of(nil, a), false},
		"not unique":                   {of(nil, index("a_1", bson.D{{Key: "a", Value: int32(1)}})), of(nil, a), false},
		"another key":                  {of(nil, index("a_1", bson.D{{Key: "a", Value: int32(-1)}}, bson.E{Key: "unique", Value: true})), of(nil, a), false},
		"another collation":            {of(bson.D{collation("57.1")}), of(bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}}), false},
		"an index too many":            {of(nil, a, index("b_1", bson.D{{Key: "b", Value: int32(1)}})), of(nil, a), false},
		"the shard key's index":        {of(nil, a, index("k_hashed", bson.D{{Key: "k", Value: "hashed"}})), of(nil, a), true},
		"a time series' own index":     {of(series, index("m_1_t_1", bson.D{{Key: "m", Value: int32(1)}, {Key: "t", Value: int32(1)}})), of(series), true},
		"another one of a time series": {of(series, index("t_1", bson.D{{Key: "t", Value: int32(1)}})), of(series), false},
		"the same of no time series":   {of(nil, index("m_1_t_1", bson.D{{Key: "m", Value: int32(1)}, {Key: "t", Value: int32(1)}})), of(nil), false},
		"the key and _id":              {of(nil, index("k_1__id_-1", bson.D{{Key: "k", Value: int32(1)}, {Key: "_id", Value: int32(-1)}})), of(nil), true},
		"the expiry":                   {of(nil, index("t_1", bson.D{{Key: "t", Value: int32(1)}})), of(nil, index("t_1", bson.D{{Key: "t", Value: int32(1)}}, bson.E{Key: "expireAfterSeconds", Value: int32(60)})), true},
		"numbers of other types":       {of(bson.D{{Key: "size", Value: int64(4096)}}, index("b_1", bson.D{{Key: "b", Value: 1.0}})), of(bson.D{{Key: "size", Value: int32(4096)}}, index("b_1", bson.D{{Key: "b", Value: int32(1)}})), true},
		"defaults that are listed":     {of(bson.D{validator, {Key: "validationLevel", Value: "strict"}, {Key: "validationAction", Value: "error"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}}}), of(bson.D{validator}), true},
		"another validation level":     {of(bson.D{validator, {Key: "validationLevel", Value: "moderate"}}), of(bson.D{validator}), false},
		"flags that are false":         {of(nil, index("b_1", bson.D{{Key: "b", Value: int32(1)}}, bson.E{Key: "sparse", Value: false})), of(nil, index("b_1", bson.D{{Key: "b", Value: int32(1)}})), true},
		"versions of formats":          {of(bson.D{collation("153.80")}), of(bson.D{collation("57.1")}), true},
		"old fields":                   {of(nil, index("b_1", bson.D{{Key: "b", Value: int32(1)}})), of(bson.D{{Key: "autoIndexId", Value: true}}, index("b_1", bson.D{{Key: "b", Value: int32(1)}}, bson.E{Key: "ns", Value: "d.c"}, bson.E{Key: "background", Value: true})), true},
		"a time series' derived spans": {of(bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "granularity", Value: "seconds"}, {Key: "bucketMaxSpanSeconds", Value: int32(3600)}}}}), of(bson.D{{Key: "timeseries", Value: bson.D{{Key: "granularity", Value: "seconds"}, {Key: "timeField", Value: "t"}}}}), true},
	} {
		if got := c.have.lacks(c.want, &key); (got == "") != c.same {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestSameCollection: two looks have seen one collection unless both have seen a UUID, and not the
// same.
func TestSameCollection(t *testing.T) {
	one, other := collectionInfo{hasUUID: true, uuid: catalog.NewUUID()}, collectionInfo{hasUUID: true, uuid: catalog.NewUUID()}
	none := collectionInfo{uuid: catalog.NewUUID()}
	if !one.sameCollection(one) || !one.sameCollection(none) || !none.sameCollection(other) || one.sameCollection(other) {
		t.Error("UUIDs are not compared as they should be")
	}
}
