package member

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
)

// Names of a backend's collections of ours.
const (
	Instances = "instances"
	Closings  = "closings"
	Answers   = "answers"
	Markers   = "markers"
	Floors    = "floors"
)

// Instance is one process's registration.
type Instance struct {
	ID       bson.ObjectID `bson:"_id"`
	Proxy    string        `bson:"proxy"`
	PID      int           `bson:"pid"`
	Started  time.Time     `bson:"started"`
	Renewals int64         `bson:"renewals"`
	// Gone says that nothing of the instance can reach the backend any more.
	Gone bool `bson:"gone"`
}

// Closing asks that the gates of homes be closed until version Ends of the map of NS.
type Closing struct {
	ID      bson.ObjectID `bson:"_id"`
	NS      string        `bson:"ns"`
	Ends    int64         `bson:"ends"`
	Reshape bson.ObjectID `bson:"reshape"`
	Epoch   int64         `bson:"epoch"`
	DB      string        `bson:"db"`
	// Physical are the inputs on this backend.
	Physical []string `bson:"physical"`
	// WritesOnly holds writes and lets reads pass.
	WritesOnly bool `bson:"writesOnly,omitempty"`
}

// Answer says that an instance has nothing in flight behind the gates of a closing.
type Answer struct {
	ID AnswerID  `bson:"_id"`
	At time.Time `bson:"at"`
}

// AnswerID names closing and instance, so that answers to two closings never add up.
type AnswerID struct {
	Closing  bson.ObjectID `bson:"closing"`
	Instance bson.ObjectID `bson:"instance"`
}

// Floor is the lowest map version of a namespace that may be used on a backend.
type Floor struct {
	NS string `bson:"_id"`
	V  int64  `bson:"v"`
}

// DB is the database of ours on a backend, written and read with majority.
func DB(b *backend.Backend) *mongo.Database {
	return b.Client().Database(catalog.MemberDB, options.Database().
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
}
