package protocol

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
)

// Board is what stands on one backend about its own collections. All of it is written and read with majority. An error leaves it unknown whether a
// write happened, now or later.
type Board interface {
	// Register inserts an instance.
	Register(ctx context.Context, in Instance) error
	// Renew counts one renewal; it reports false when the instance has been ended.
	Renew(ctx context.Context, id ID) (bool, error)
	// MarkTransactions says that an instance may have transactions open from now on; false when it has been ended.
	MarkTransactions(ctx context.Context, id ID) (bool, error)
	// Instances lists those that are not gone.
	Instances(ctx context.Context) ([]Instance, error)
	// End ends an instance if its count of renewals is still that; it reports whether it did.
	End(ctx context.Context, id ID, renewals int64) (bool, error)
	// Gone says of instances that they are gone.
	Gone(ctx context.Context, ids []ID) error

	// PutClosing inserts a closing.
	PutClosing(ctx context.Context, c Closing) error
	// Closings lists all.
	Closings(ctx context.Context) ([]Closing, error)
	// DropClosing removes a closing; one that is not there is no error.
	DropClosing(ctx context.Context, id ID) error

	// PutAnswer inserts an answer; one that is there is no error.
	PutAnswer(ctx context.Context, a Answer) error
	// Release says in an answer that its instance uses the inputs no more.
	Release(ctx context.Context, a AnswerID) error
	// Answers lists the answers to a closing.
	Answers(ctx context.Context, closing ID) ([]Answer, error)
	// Forget removes a reshape's answers to a closing, if that is not zero, and its markers.
	Forget(ctx context.Context, reshape, closing ID) error

	// RaiseFloor makes v the floor of ns unless it is higher already.
	RaiseFloor(ctx context.Context, ns string, v int64) error
	// Floors lists all.
	Floors(ctx context.Context) ([]Floor, error)
}

// Maps are the catalog's maps: append-only, each version inserted once. *catalog.Store is one.
type Maps interface {
	// InsertMap inserts a version; catalog.ErrMapExists says that somebody has inserted it. After any other error it is not known
	// whether it was inserted, or will be.
	InsertMap(ctx context.Context, m *catalog.Map) error
	// NewestMap reads the highest version, linearizably; nil when there is none.
	NewestMap(ctx context.Context, ns string) (*catalog.Map, error)
	// MapAt reads one version; nil when there is none.
	MapAt(ctx context.Context, ns string, v int64) (*catalog.Map, error)
}

// Records are the catalog's records of reshapes. *catalog.Store is one.
type Records interface {
	// SwapReshape changes a record if owner, epoch and phase are still what r says, and then r itself; otherwise it is catalog.ErrReshapeMoved.
	SwapReshape(ctx context.Context, r *catalog.Reshape, change func(*catalog.Reshape)) error
	// DeleteReshape removes a record of that owner and epoch.
	DeleteReshape(ctx context.Context, r *catalog.Reshape) error
}

// Stream is the change stream of one backend with inputs.
type Stream interface {
	// Mark inserts a marker on the backend and applies to the outputs what the stream shows before it. It returns how much that was and the
	// marker's time. All of it is settled when it returns.
	Mark(ctx context.Context) (before int, at bson.Timestamp, err error)
}

// ErrUnreachable says that a backend with inputs is not part of the fleet.
var ErrUnreachable = errors.New("protocol: the backend is not part of the fleet")
