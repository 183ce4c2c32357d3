package protocol

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ID names instances, closings and reshapes; one is never used twice.
type ID = bson.ObjectID

// Instance is one process's registration at one backend.
type Instance struct {
	ID      ID        `bson:"_id"`
	Proxy   string    `bson:"proxy"`
	PID     int       `bson:"pid"`
	Started time.Time `bson:"started"`
	// Renewals counts the renewals of the lease; whoever has seen it unchanged for longer than a lease may end the instance.
	Renewals int64 `bson:"renewals"`
	// Lease is how long the instance's lease lasts, with the margin, in milliseconds: whoever would end it waits for at least that long. 0: it does not say.
	Lease int64 `bson:"lease,omitempty"`
	// Transactions says that the instance may have left a transaction open: it is written before the first one begins.
	Transactions bool `bson:"transactions,omitempty"`
	// Ended says that the lease was not renewed in time: it cannot be renewed any more. An ended instance excuses nobody yet.
	Ended bool `bson:"ended,omitempty"`
	// Gone says that nothing that the instance began can still become visible on the backend and be acknowledged.
	Gone bool `bson:"gone"`
}

// Unrenewed is how long the instance's count of renewals must have been seen unchanged before it may be ended, as far as the instance says so itself. So
// processes whose leases are of different lengths, such as before and after a change of a setting, never end one another too early.
func (in Instance) Unrenewed() time.Duration { return time.Duration(in.Lease) * time.Millisecond }

// Closing asks that the gates of homes be closed until version Ends of the map of NS.
type Closing struct {
	ID ID `bson:"_id"`
	// NS is the namespace; a name without a dot is a database, all of whose namespaces without a map are meant.
	NS      string `bson:"ns"`
	Ends    int64  `bson:"ends"`
	Reshape ID     `bson:"reshape"`
	Epoch   int64  `bson:"epoch"`
	DB      string `bson:"db"`
	// Physical are the inputs on this backend; none for a database.
	Physical []string `bson:"physical"`
	// WritesOnly holds writes and lets reads pass.
	WritesOnly bool `bson:"writesOnly,omitempty"`
	// Abort asks that transactions that touched the inputs be aborted: attempt after attempt has waited for them in vain.
	Abort bool `bson:"abort,omitempty"`
	// Patience is how long an instance waits for version Ends before it burns it, in milliseconds; 0 is the default.
	Patience int64 `bson:"patience,omitempty"`
}

// OfDatabase reports whether the closing is of all namespaces of a database that have no map.
func (c *Closing) OfDatabase() bool { return !strings.Contains(c.NS, ".") }

// Answer says that an instance has nothing in flight behind the gates of a closing.
type Answer struct {
	ID AnswerID  `bson:"_id"`
	At time.Time `bson:"at"`
	// Released says that the instance has no request, cursor or transaction on the inputs any more.
	Released bool `bson:"released,omitempty"`
}

// AnswerID names closing and instance, so that answers to two closings never add up.
type AnswerID struct {
	Closing  ID `bson:"closing"`
	Instance ID `bson:"instance"`
}

// Floor is the lowest map version of a namespace that may be used on a backend.
type Floor struct {
	NS string `bson:"_id"`
	V  int64  `bson:"v"`
}
