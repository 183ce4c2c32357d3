package backend

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardway/shardway/wire"
)

// Target says where RunOn runs a command. The zero Target is the primary.
type Target struct {
	// ReadPref chooses the server; nil is the primary. RunOn adds $readPreference to the command.
	ReadPref *readpref.ReadPref
	// Host is the server to use whatever ReadPref says; empty for any that suits.
	Host string
	// Deadline, when not zero, ends the command like ctx's deadline does.
	Deadline time.Time
}

// UnconfirmedError says that a command was executed, as its reply's ok:1 tells, and that its write
// concern was not met. A change of the primary may still undo it, so it does not count as done.
type UnconfirmedError struct {
	// Concern is the reply's writeConcernError.
	Concern *wire.Error
}

func (e *UnconfirmedError) Error() string {
	return "executed, but not confirmed by a majority: " + e.Concern.Error()
}

// Unwrap returns the write concern's error, which a client would be told.
func (e *UnconfirmedError) Unwrap() error { return e.Concern }

// Run runs a command on the primary and returns the reply, whose bytes are the caller's. A reply
// with ok:0 is returned with a *wire.Error made of it, a reply with ok:1 and a writeConcernError
// with an *UnconfirmedError. Write errors inside a reply with ok:1 are the caller's to look for.
// Run is for the control plane; clients' messages go through Start.
func (b *Backend) Run(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	return b.RunOn(ctx, Target{}, db, cmd)
}

// RunOn is Run on a server of the caller's choice.
func (b *Backend) RunOn(ctx context.Context, to Target, db string, cmd bson.D) (bson.Raw, error) {
	full := make(bson.D, 0, len(cmd)+2)
	full = append(full, cmd...)
	full = append(full, bson.E{Key: "$db", Value: db})
	if to.ReadPref != nil && to.ReadPref.Mode() != readpref.PrimaryMode {
		full = append(full, bson.E{Key: "$readPreference", Value: readPrefDoc(to.ReadPref)})
	}
	body, err := bson.Marshal(full)
	if err != nil {
		return nil, fmt.Errorf("backend %s: the command cannot be encoded: %w", b.cfg.ID, err)
	}
	msg := wire.AppendMsg(nil, 0, 0, 0, body)
	reply, err := b.Do(ctx, Request{Message: msg, ReadPref: to.ReadPref, Host: to.Host, Deadline: to.Deadline})
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	own := append(bson.Raw(nil), reply.Body...)
	b.clock.note(own)
	if err := wire.ErrorFromReply(own); err != nil {
		return own, err
	}
	if err := wire.WriteConcernError(own); err != nil {
		return own, &UnconfirmedError{Concern: err}
	}
	return own, nil
}

// readPrefDoc writes a read preference as commands carry it.
func readPrefDoc(rp *readpref.ReadPref) bson.D {
	d := bson.D{{Key: "mode", Value: rp.Mode().String()}}
	if sets := rp.TagSets(); len(sets) > 0 {
		tags := make(bson.A, 0, len(sets))
		for _, set := range sets {
			t := bson.D{}
			for _, tag := range set {
				t = append(t, bson.E{Key: tag.Name, Value: tag.Value})
			}
			tags = append(tags, t)
		}
		d = append(d, bson.E{Key: "tags", Value: tags})
	}
	if s, ok := rp.MaxStaleness(); ok && s > 0 {
		d = append(d, bson.E{Key: "maxStalenessSeconds", Value: int32(s / time.Second)})
	}
	return d
}

func itoa(i int) string { return strconv.Itoa(i) }
