package catalog

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const mongosColl = "mongos"

const (
	// announceEvery is how often a proxy says in the catalog that it is there; mongos does it every 30 s.
	announceEvery = 10 * time.Second
	// forgetAfter is when a proxy that has not said so is not shown any more.
	forgetAfter = 24 * time.Hour
)

// Mongos is a proxy as config.mongos shows it to clients. Nothing is decided by it: whose lease runs is written at each backend.
type Mongos struct {
	// Name is the proxy's "host:port".
	Name    string    `bson:"_id"`
	Created time.Time `bson:"created"`
	Ping    time.Time `bson:"ping"`
	// Up is for how many seconds it has been there.
	Up      int64  `bson:"up"`
	Waiting bool   `bson:"waiting"`
	Version string `bson:"mongoVersion"`
	FQDNs   bson.A `bson:"advisoryHostFQDNs"`
}

// Announce keeps the entry of a proxy of that name and version in the catalog until ctx ends. What fails is tried again at the next time.
func (s *Store) Announce(ctx context.Context, name, version string) {
	began := time.Now().UTC()
	t := time.NewTicker(announceEvery)
	defer t.Stop()
	for {
		now := time.Now().UTC()
		m := Mongos{Name: name, Created: began, Ping: now, Up: int64(now.Sub(began).Seconds()), Waiting: true, Version: version, FQDNs: bson.A{}}
		wctx, cancel := context.WithTimeout(ctx, announceEvery)
		_, _ = s.db.Collection(mongosColl).ReplaceOne(wctx, bson.D{{Key: "_id", Value: name}}, m, options.Replace().SetUpsert(true))
		cancel()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// AllMongos lists the proxies that have been there within a day.
func (s *Store) AllMongos(ctx context.Context) ([]Mongos, error) {
	cur, err := s.db.Collection(mongosColl).Find(ctx, bson.D{{Key: "ping", Value: bson.D{{Key: "$gt", Value: time.Now().Add(-forgetAfter)}}}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	var all []Mongos
	if err == nil {
		err = cur.All(ctx, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("list the proxies: %w", err)
	}
	return all, nil
}
