package splitter

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

const (
	// ddlTries is how often a command that changes a home's metadata is sent until a majority has
	// confirmed it.
	ddlTries = 5
	// ddlPause is the first pause between two tries; it doubles.
	ddlPause = 50 * time.Millisecond
)

// passing reports whether an error may not come again: the backend could not be reached, has no
// primary at the moment, or has executed the command without a majority's confirmation.
func passing(err error) bool {
	var unconfirmed *backend.UnconfirmedError
	return errors.As(err, &unconfirmed) || unreached(wire.AsError(err))
}

// ifPassing marks an error that may not come again as one after which the attempt is begun anew.
func ifPassing(err error) error {
	if err != nil && passing(err) {
		return retryable{err}
	}
	return err
}

// changeHome runs a command that changes a home's metadata and returns nil when a majority has
// confirmed it. It repeats the command while the outcome is open, so the command must be safe to
// repeat. already is the code by which a server says that there is nothing to do; that counts when
// a majority has what made it so.
func (s *Splitter) changeHome(ctx context.Context, h partition.Home, cmd bson.D, already wire.Code) error {
	cmd = append(cmd[:len(cmd):len(cmd)], majority)
	wait, before := ddlPause, ""
	for try := 1; ; try++ {
		_, err := s.run(ctx, h, cmd)
		var we *wire.Error
		done := errors.As(err, &we) && we.Code == already
		switch {
		case err == nil:
			return nil
		case done:
			// An earlier try may have done it on this primary only. When the confirmations before
			// and after an answer are of one term, one primary has given both, and the answer
			// between them.
			term, cerr := s.confirm(ctx, h.Backend)
			if cerr == nil && (term == noTerm || term == before) {
				return nil
			}
			before = term
			err = cmp.Or(cerr, err)
		case !passing(err):
			return err
		}
		if done && try == ddlTries {
			err = &backend.UnconfirmedError{Concern: we}
		}
		if try == ddlTries {
			return retryable{err}
		}
		if done && before != "" {
			continue // nothing to wait for
		}
		if perr := pause(ctx, wait); perr != nil {
			return errors.Join(perr, err)
		}
		wait *= 2
	}
}

// noTerm is the term of a server that has none: a standalone.
const noTerm = "none"

// confirm waits until a majority has all that a backend's primary has done so far. It returns the
// term of that primary, by which two confirmations are known to be of one primary without another
// one between them. A delete that matches nothing makes a server wait for its latest write of all.
func (s *Splitter) confirm(ctx context.Context, backendID string) (term string, err error) {
	b := s.cfg.Backends.Get(backendID)
	if b == nil {
		return "", wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", backendID)
	}
	if b.Kind() == backend.KindStandalone {
		return noTerm, nil
	}
	reply, err := b.Run(ctx, catalog.MemberDB, bson.D{{Key: "delete", Value: member.Markers}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "nothing"}}}, {Key: "limit", Value: 1}}}}, majority})
	if err != nil {
		return "", err
	}
	if _, err := reply.LookupErr("writeErrors"); err == nil {
		return "", wire.Errorf(wire.OperationFailed, "backend '%s' cannot confirm what it has done: %v", backendID, reply.Lookup("writeErrors"))
	}
	election, _ := reply.Lookup("electionId").ObjectIDOK()
	return election.Hex(), nil
}
