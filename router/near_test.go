package router_test

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// places fills a collection with documents whose distances to a point all differ, but for twins, and indexes it.
func places(t *testing.T, c *mongo.Collection) {
	t.Helper()
	var docs []any
	for i := range 40 {
		x := float64(i%20) + float64(i/20)/8
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "loc", Value: bson.A{x, 0.0}}, {Key: "geo", Value: bson.D{{Key: "type", Value: "Point"},
			{Key: "coordinates", Value: bson.A{x, 0.0}}}}, {Key: "odd", Value: i%2 == 1}, {Key: "s", Value: bson.A{1, 2, 3}}})
	}
	// Of several points in one document the nearest counts.
	docs = append(docs, bson.D{{Key: "_id", Value: 40}, {Key: "loc", Value: bson.A{bson.A{100.0, 0.0}, bson.A{10.03, 0.0}}}, {Key: "odd", Value: false}}, bson.D{{Key: "_id", Value: 41}})
	if _, err := c.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	for _, index := range []mongo.IndexModel{{Keys: bson.D{{Key: "loc", Value: "2d"}}}, {Keys: bson.D{{Key: "geo", Value: "2dsphere"}}}} {
		if _, err := c.Indexes().CreateOne(t.Context(), index); err != nil {
			t.Fatal(err)
		}
	}
}

// geoPoint is a near operator's argument in GeoJSON.
func geoPoint(x float64, more ...bson.E) bson.D {
	return append(bson.D{{Key: "$geometry", Value: bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{x, 0.0}}}}}, more...)
}

// TestNearestFirstOverPartitions: finds of the nearest documents over partitions answer what they answer over one collection.
func TestNearestFirstOverPartitions(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "_id", 4)
	db := p.client.Database("db")
	places(t, db.Collection("c"))
	places(t, db.Collection("one"))
	near := func(op string, arg any, more ...bson.E) bson.D { return append(bson.D{{Key: op, Value: arg}}, more...) }
	at := bson.A{10.04, 0.0}
	for name, test := range map[string]struct {
		filter bson.D
		opts   *options.FindOptionsBuilder
	}{
		"limit":                    {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetLimit(4)},
		"all, in small batches":    {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetBatchSize(3)},
		"skip and limit":           {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetSkip(3).SetLimit(5)},
		"distances":                {bson.D{{Key: "loc", Value: near("$near", at, bson.E{Key: "$maxDistance", Value: 3}, bson.E{Key: "$minDistance", Value: 1})}}, options.Find()},
		"a third number":           {bson.D{{Key: "loc", Value: near("$near", bson.A{10.04, 0.0, 2.5})}}, options.Find()},
		"a point as a document":    {bson.D{{Key: "loc", Value: near("$near", bson.D{{Key: "x", Value: 10.04}, {Key: "y", Value: 0}})}}, options.Find().SetLimit(7)},
		"on the sphere":            {bson.D{{Key: "geo", Value: near("$nearSphere", at)}}, options.Find().SetLimit(7)},
		"on the sphere, radians":   {bson.D{{Key: "geo", Value: near("$nearSphere", at, bson.E{Key: "$maxDistance", Value: 0.05})}}, options.Find()},
		"GeoJSON":                  {bson.D{{Key: "geo", Value: near("$near", geoPoint(7.2))}}, options.Find().SetLimit(9)},
		"GeoJSON, metres":          {bson.D{{Key: "geo", Value: near("$nearSphere", geoPoint(7.2, bson.E{Key: "$maxDistance", Value: 250000}, bson.E{Key: "$minDistance", Value: 50000}))}}, options.Find()},
		"other conditions":         {bson.D{{Key: "odd", Value: true}, {Key: "loc", Value: near("$near", at)}}, options.Find().SetLimit(6)},
		"inside $and":              {bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "loc", Value: near("$near", at)}}, bson.D{{Key: "odd", Value: false}}}}}, options.Find().SetLimit(6)},
		"an inclusion":             {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetLimit(6).SetProjection(bson.D{{Key: "odd", Value: 1}})},
		"an inclusion without _id": {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetLimit(6).SetProjection(bson.D{{Key: "odd", Value: 1}, {Key: "_id", Value: 0}})},
		"an exclusion":             {bson.D{{Key: "loc", Value: near("$near", at)}}, options.Find().SetLimit(6).SetProjection(bson.D{{Key: "loc", Value: 0}})},
		"under a sort":             {bson.D{{Key: "loc", Value: near("$near", at, bson.E{Key: "$maxDistance", Value: 3})}}, options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetLimit(4)},
	} {
		t.Run(name, func(t *testing.T) {
			read := func(coll string) (docs []bson.Raw) {
				cur, err := db.Collection(coll).Find(t.Context(), test.filter, test.opts)
				if err != nil {
					t.Fatal(err)
				}
				for cur.Next(t.Context()) {
					docs = append(docs, append(bson.Raw(nil), cur.Current...))
				}
				if cur.Err() != nil {
					t.Fatal(cur.Err())
				}
				return docs
			}
			got, want := read("c"), read("one")
			if len(got) == 0 || len(got) != len(want) {
				t.Fatalf("%d documents, want %d", len(got), len(want))
			}
			for i := range got {
				if got[i].String() != want[i].String() {
					t.Errorf("document %d is %v, want %v", i, got[i], want[i])
				}
			}
		})
	}
	if err := db.Collection("c").FindOne(t.Context(), bson.D{{Key: "loc", Value: near("$near", at)}},
		options.FindOne().SetProjection(bson.D{{Key: "s", Value: bson.D{{Key: "$slice", Value: 1}}}})).Err(); err == nil {
		t.Error("a projection that cannot be kept is not refused")
	}
	for name, filter := range map[string]bson.D{
		"two":                 {{Key: "loc", Value: near("$near", at)}, {Key: "geo", Value: near("$near", geoPoint(1))}},
		"another condition":   {{Key: "loc", Value: near("$near", at, bson.E{Key: "$exists", Value: true})}},
		"no point":            {{Key: "loc", Value: near("$near", "here")}},
		"not at the top":      {{Key: "$or", Value: bson.A{bson.D{{Key: "loc", Value: near("$near", at)}}}}},
		"without an index":    {{Key: "nowhere", Value: near("$near", at)}},
		"of too many numbers": {{Key: "loc", Value: near("$near", bson.A{1, 2, 3, 4})}},
	} {
		if err := db.Collection("c").FindOne(t.Context(), filter).Err(); err == nil || errors.Is(err, mongo.ErrNoDocuments) {
			t.Errorf("%s: not refused: %v", name, err)
		}
	}
}

// TestSingleWritesChooseTheNearest of all partitions.
func TestSingleWritesChooseTheNearest(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "_id", 8)
	c := p.client.Database("db").Collection("c")
	places(t, c)
	near := func(x float64) bson.D {
		return bson.D{{Key: "loc", Value: bson.D{{Key: "$near", Value: bson.A{x, 0.0}}}}}
	}
	for x := range 19 {
		var doc struct {
			ID int `bson:"_id"`
		}
		if err := c.FindOneAndUpdate(t.Context(), near(float64(x)+0.01), bson.D{{Key: "$set", Value: bson.D{{Key: "found", Value: x}}}}).Decode(&doc); err != nil || doc.ID != x {
			t.Errorf("findAndModify near %d found %d (%v)", x, doc.ID, err)
		}
		if _, err := c.UpdateOne(t.Context(), near(float64(x)+0.12), bson.D{{Key: "$set", Value: bson.D{{Key: "updated", Value: x}}}}); err != nil {
			t.Fatal(err)
		}
		if err := c.FindOne(t.Context(), bson.D{{Key: "updated", Value: x}}).Decode(&doc); err != nil || doc.ID != x+20 {
			t.Errorf("update near %d found %d (%v)", x, doc.ID, err)
		}
	}
	if _, err := c.DeleteOne(t.Context(), near(3.01)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: 3}}); err != nil || n != 0 {
		t.Errorf("the nearest document was not deleted (%v)", err)
	}
}

// TestGeoNearOverPartitions: $geoNear as the first stage over partitions answers what it answers over one collection.
func TestGeoNearOverPartitions(t *testing.T) {
	p := startProxy(t, 2)
	p.shard(t, "db.c", "_id", 4)
	db := p.client.Database("db")
	places(t, db.Collection("c"))
	places(t, db.Collection("one"))
	point := bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{7.2, 0.0}}}
	for name, pipeline := range map[string][]bson.D{
		"planar":           {st("$geoNear", bson.D{{Key: "near", Value: bson.A{10.04, 0.0}}, {Key: "key", Value: "loc"}, {Key: "distanceField", Value: "d"}})},
		"a nested field":   {st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "key", Value: "geo"}, {Key: "distanceField", Value: "d.e"}, {Key: "spherical", Value: true}, {Key: "includeLocs", Value: "l"}, {Key: "distanceMultiplier", Value: 0.001}})},
		"distances, query": {st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "key", Value: "geo"}, {Key: "distanceField", Value: "d"}, {Key: "maxDistance", Value: 300000}, {Key: "minDistance", Value: 40000}, {Key: "query", Value: bson.D{{Key: "odd", Value: true}}}})},
		"skip and limit":   {st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "key", Value: "geo"}, {Key: "distanceField", Value: "d"}}), st("$skip", 2), st("$limit", 5)},
		"stages behind": {st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "key", Value: "geo"}, {Key: "distanceField", Value: "d"}}), st("$limit", 12), st("$match", bson.D{{Key: "odd", Value: false}}),
			st("$project", bson.D{{Key: "odd", Value: 1}})},
		"a group behind": {st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "key", Value: "geo"}, {Key: "distanceField", Value: "d"}}), st("$limit", 12),
			st("$group", bson.D{{Key: "_id", Value: "$odd"}, {Key: "first", Value: st("$first", "$_id")}, {Key: "d", Value: st("$max", "$d")}}), st("$sort", bson.D{{Key: "_id", Value: 1}})},
	} {
		t.Run(name, func(t *testing.T) {
			got, code := p.docs(t, "db", "c", pipeline...)
			want, wantCode := p.docs(t, "db", "one", pipeline...)
			if code != 0 || wantCode != 0 || len(got) == 0 || len(got) != len(want) {
				t.Fatalf("%d documents, code %d; want %d, code %d", len(got), code, len(want), wantCode)
			}
			for i := range got {
				g, w := fmt.Sprint(got[i]), fmt.Sprint(want[i])
				if g != w {
					t.Errorf("document %d is %v, want %v", i, g, w)
				}
			}
		})
	}
	if _, code := p.docs(t, "db", "c", st("$match", bson.D{}), st("$geoNear", bson.D{{Key: "near", Value: point}, {Key: "distanceField", Value: "d"}})); code != 40602 {
		t.Errorf("a $geoNear that is not first: code %d", code)
	}
}
