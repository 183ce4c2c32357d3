package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
)

// home is where a partition's documents are: "b1/db.people@1f.2.0".
type home string

func homeOf(backend, db, coll string) home { return home(backend + "/" + db + "." + coll) }

// newestMap is what these tests read of a map.
type newestMap struct {
	ID struct {
		NS string
		V  int64
	} `bson:"_id"`
	Partitions []struct{ Backend, Physical string }
}

// noLeftovers waits until the servers have no collection that belongs to a sharded collection and is not in its newest map: the
// outputs of what was abandoned and the inputs of what was finished are dropped.
func noLeftovers(t *testing.T, limit time.Duration, servers []*fleet.Server) {
	t.Helper()
	var left []home
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		if left, err = leftovers(t.Context(), servers); err == nil && len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("left on the backends: %v, %v", left, err)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func leftovers(ctx context.Context, servers []*fleet.Server) ([]home, error) {
	named, mapped := map[home]bool{}, map[string]bool{}
	var exist []home
	for i, s := range servers {
		client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + s.Addr() + "/?directConnection=true"))
		if err != nil {
			return nil, err
		}
		if i == 0 { // the catalog's
			err = nothingUnderWay(ctx, client)
			if err == nil {
				err = readMaps(ctx, client, named, mapped)
			}
		}
		if err == nil {
			var more []home
			more, err = homesOn(ctx, client, fmt.Sprintf("b%d", i+1), mapped)
			exist = append(exist, more...)
		}
		_ = client.Disconnect(context.WithoutCancel(ctx))
		if err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(exist, func(h home) bool { return named[h] }), nil
}

// nothingUnderWay is an error while a change is recorded, which may still drop: on the stand-in a list of collections makes anew what is
// dropped beside it (docs/test-server.md).
func nothingUnderWay(ctx context.Context, client *mongo.Client) error {
	n, err := client.Database(catalog.DB).Collection("reshapes").CountDocuments(ctx, bson.D{})
	if err == nil && n > 0 {
		err = fmt.Errorf("%d changes are recorded", n)
	}
	return err
}

func readMaps(ctx context.Context, client *mongo.Client, named map[home]bool, mapped map[string]bool) error {
	cursor, err := client.Database("shardway").Collection("maps").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return err
	}
	var all []newestMap
	if err := cursor.All(ctx, &all); err != nil {
		return err
	}
	newest := map[string]newestMap{}
	for _, m := range all {
		if m.ID.V > newest[m.ID.NS].ID.V {
			newest[m.ID.NS] = m
		}
	}
	for ns, m := range newest {
		mapped[ns] = true
		db, _, _ := strings.Cut(ns, ".")
		for _, p := range m.Partitions {
			named[homeOf(p.Backend, db, p.Physical)] = true
		}
	}
	return nil
}

// homesOn are the collections on one backend that have a physical name or the name of a collection with a map.
func homesOn(ctx context.Context, client *mongo.Client, backend string, mapped map[string]bool) ([]home, error) {
	dbs, err := client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var all []home
	for _, db := range dbs {
		colls, err := client.Database(db).ListCollectionNames(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		for _, c := range colls {
			if strings.Contains(c, "@") || mapped[db+"."+c] {
				all = append(all, homeOf(backend, db, c))
			}
		}
	}
	return all, nil
}
