package splitter

import (
	"context"
	"errors"
	"maps"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
)

// A partition that could not be split is looked at again when it has grown by a tenth, or after lookAgain.
const lookAgain = time.Minute

// unsplittable is a partition over its limit whose documents all had one shard key value when they were last looked at.
type unsplittable struct {
	// bytes is how large the partition was then.
	bytes int64
	// at is when that was.
	at time.Time
	// key is the shard key value; null where the documents had none.
	key bson.RawValue
}

// due reports whether the partition is to be looked at again, now that it has size bytes.
func (u unsplittable) due(size int64, now time.Time) bool {
	return size >= u.bytes+u.bytes/10 || now.Sub(u.at) >= lookAgain
}

// cannotSplit notes that all documents of a partition have one shard key value. It reports whether that is news.
func (s *Splitter) cannotSplit(ctx context.Context, c *partition.Collection, p *partition.Part, size int64) (news bool) {
	key, err := s.someKey(ctx, c, p.Home)
	if err != nil {
		return false // the next look measures the partition anew
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.stuck[p.Home]
	s.stuck[p.Home] = unsplittable{bytes: size, at: time.Now(), key: key}
	return !known
}

// mayBeSplit reports whether a partition that is over its limit is worth measuring: always, unless it could not be split a short time ago or still has
// documents of one shard key value only. That it asks of the index on the key, so a large partition costs no scan.
func (s *Splitter) mayBeSplit(ctx context.Context, c *partition.Collection, p *partition.Part, size int64) bool {
	s.mu.Lock()
	u, known := s.stuck[p.Home]
	s.mu.Unlock()
	if !known {
		return true
	}
	if !u.due(size, time.Now()) {
		return false
	}
	other, err := s.hasOtherKey(ctx, c, p.Home, u.key)
	if err != nil || other {
		return err == nil
	}
	s.mu.Lock()
	u.bytes, u.at = size, time.Now()
	s.stuck[p.Home] = u
	s.mu.Unlock()
	return false
}

// forgetReplaced forgets what is known of partitions that are no more.
func (s *Splitter) forgetReplaced() {
	live := map[partition.Home]bool{}
	s.cfg.Table.View().Mapped(func(c *partition.Collection) bool {
		for _, p := range c.Parts {
			live[p.Home] = true
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.stuck, func(h partition.Home, _ unsplittable) bool { return !live[h] })
}

// CannotSplit lists the partitions of a collection that this process has found over their limit and not to be split, since all their documents have one shard
// key value; with their sizes in bytes.
func (s *Splitter) CannotSplit(c *partition.Collection) map[partition.Home]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[partition.Home]int64{}
	for _, p := range c.Parts {
		if u, ok := s.stuck[p.Home]; ok {
			found[p.Home] = u.bytes
		}
	}
	return found
}

// someKey returns the shard key value of one of a partition's documents.
func (s *Splitter) someKey(ctx context.Context, c *partition.Collection, h partition.Home) (bson.RawValue, error) {
	coll, err := s.collection(h)
	if err != nil {
		return bson.RawValue{}, err
	}
	doc, err := coll.FindOne(ctx, bson.D{}, options.FindOne().SetProjection(keyOnly(c))).Raw()
	if err != nil {
		return bson.RawValue{}, err
	}
	v, err := c.Key.Value(doc)
	if err != nil || v.Type == 0 || v.Type == bsoncore.TypeUndefined {
		return bson.RawValue{Type: bson.TypeNull}, err // one value as a shard key, and only null can be asked for
	}
	return bson.RawValue{Type: bson.Type(v.Type), Value: append([]byte(nil), v.Data...)}, nil
}

// hasOtherKey reports whether a partition has a document whose shard key value is another one.
func (s *Splitter) hasOtherKey(ctx context.Context, c *partition.Collection, h partition.Home, key bson.RawValue) (bool, error) {
	coll, err := s.collection(h)
	if err != nil {
		return false, err
	}
	// $nor with $eq takes every type of value; $ne refuses regular expressions.
	other := bson.D{{Key: "$nor", Value: bson.A{bson.D{{Key: c.Key.Path(), Value: bson.D{{Key: "$eq", Value: key}}}}}}}
	err = coll.FindOne(ctx, other, options.FindOne().SetProjection(keyOnly(c))).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}

// keyOnly is the projection to a collection's shard key.
func keyOnly(c *partition.Collection) bson.D {
	project := bson.D{{Key: c.Key.Path(), Value: 1}}
	if c.Key.Path() != "_id" {
		project = append(project, bson.E{Key: "_id", Value: 0})
	}
	return project
}
