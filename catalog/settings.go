package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

type collectionDoc struct {
	NS                string `bson:"_id"`
	MaxPartitionBytes int64  `bson:"maxPartitionBytes,omitempty"`
	NoBalance         bool   `bson:"noBalance,omitempty"`
}

func (s *Store) readCollections(ctx context.Context, next *Snapshot) error {
	var rows []collectionDoc
	if err := s.all(ctx, nsColl, &rows); err != nil {
		return err
	}
	for _, d := range rows {
		next.Collections[d.NS] = CollectionSettings(d)
	}
	return nil
}

// SetCollection replaces the settings of a namespace.
func (s *Store) SetCollection(ctx context.Context, c CollectionSettings) error {
	_, err := s.db.Collection(nsColl).ReplaceOne(ctx, bson.D{{Key: "_id", Value: c.NS}}, collectionDoc(c), options.Replace().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("set what is set for %s: %w", c.NS, err)
	}
	return s.Refresh(ctx)
}

const (
	balancerID  = "balancer"
	clusterID   = "cluster"
	chunkSizeID = "chunksize"
	autoSplitID = "autosplit"
	autoMergeID = "automerge"
)

func (s *Store) readSettings(ctx context.Context, next *Snapshot) error {
	var rows []struct {
		ID        string        `bson:"_id"`
		Stopped   bool          `bson:"stopped"`
		ClusterID bson.ObjectID `bson:"clusterId"`
		Bytes     int64         `bson:"bytes"`
		Enabled   bool          `bson:"enabled"`
	}
	if err := s.all(ctx, settingsColl, &rows); err != nil {
		return err
	}
	for _, d := range rows {
		switch d.ID {
		case balancerID:
			next.BalancerStopped = d.Stopped
		case clusterID:
			next.ClusterID = d.ClusterID
		case chunkSizeID:
			next.MaxPartitionBytes = d.Bytes
		case autoSplitID:
			next.AutoSplit = switchOf(d.Enabled)
		case autoMergeID:
			next.AutoMerge = switchOf(d.Enabled)
		}
	}
	return nil
}

func switchOf(on bool) Switch {
	if on {
		return SwitchOn
	}
	return SwitchOff
}

// SetBalancerStopped stops or starts automatic splits, moves and merges.
func (s *Store) SetBalancerStopped(ctx context.Context, stopped bool) error {
	if err := s.putSetting(ctx, balancerID, balancerFields(stopped)); err != nil {
		return err
	}
	return s.Refresh(ctx)
}

func balancerFields(stopped bool) bson.D {
	mode := "full"
	if stopped {
		mode = "off"
	}
	return bson.D{{Key: "stopped", Value: stopped}, {Key: "mode", Value: mode}}
}

// PutSettings writes what of n differs from the snapshot's settings. What is unset in n is left as it is.
func (s *Store) PutSettings(ctx context.Context, n Settings) error {
	now := s.Snapshot().Settings
	var errs []error
	put := func(changed bool, id string, fields bson.D) {
		if changed {
			errs = append(errs, s.putSetting(ctx, id, fields))
		}
	}
	put(n.BalancerStopped != now.BalancerStopped, balancerID, balancerFields(n.BalancerStopped))
	put(n.MaxPartitionBytes != now.MaxPartitionBytes && n.MaxPartitionBytes > 0, chunkSizeID, bson.D{{Key: "bytes", Value: n.MaxPartitionBytes}})
	put(n.AutoSplit != now.AutoSplit && n.AutoSplit != SwitchUnset, autoSplitID, bson.D{{Key: "enabled", Value: n.AutoSplit == SwitchOn}})
	put(n.AutoMerge != now.AutoMerge && n.AutoMerge != SwitchUnset, autoMergeID, bson.D{{Key: "enabled", Value: n.AutoMerge == SwitchOn}})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.Refresh(ctx)
}

func (s *Store) putSetting(ctx context.Context, id string, fields bson.D) error {
	_, err := s.db.Collection(settingsColl).UpdateByID(ctx, id, bson.D{{Key: "$set", Value: fields}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("set %s: %w", id, err)
	}
	return nil
}

func (s *Store) ensureClusterID(ctx context.Context) error {
	_, err := s.db.Collection(settingsColl).UpdateByID(ctx, clusterID,
		bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "clusterId", Value: bson.NewObjectID()}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("name the cluster: %w", err)
	}
	return nil
}

// ReadClusterID reads which cluster a server holds the catalog of; zero if it holds none.
func ReadClusterID(ctx context.Context, client *mongo.Client) (bson.ObjectID, error) {
	var d struct {
		ClusterID bson.ObjectID `bson:"clusterId"`
	}
	err := client.Database(DB, options.Database().SetReadConcern(readconcern.Majority())).Collection(settingsColl).FindOne(ctx, bson.D{{Key: "_id", Value: clusterID}}).Decode(&d)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return bson.ObjectID{}, fmt.Errorf("read the catalog's cluster: %w", err)
	}
	return d.ClusterID, nil
}

// Change is one entry of the history, in the shape of config.changelog.
type Change struct {
	ID     string    `bson:"_id"`
	Server string    `bson:"server"`
	Shard  string    `bson:"shard,omitempty"`
	Client string    `bson:"clientAddr"`
	Time   time.Time `bson:"time"`
	What   string    `bson:"what"`
	NS     string    `bson:"ns"`
	Detail bson.D    `bson:"details"`
}

// AppendChange writes an entry of the history. It is for people to read: a failure is logged and nothing else.
func (s *Store) AppendChange(ctx context.Context, server, what, ns string, details bson.D) {
	c := Change{Server: server, Time: time.Now().UTC(), What: what, NS: ns, Detail: details}
	c.ID = fmt.Sprintf("%s-%s-%s", server, c.Time.Format(time.RFC3339Nano), bson.NewObjectID().Hex())
	if _, err := s.db.Collection(changelogColl).InsertOne(ctx, c); err != nil {
		s.log.Warn().Err(err).Str("what", what).Str("ns", ns).Msg("the history could not be written")
	}
}
