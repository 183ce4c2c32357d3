package splitter

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// kindDDL is the kind of records of commands that are to reach all partitions of a collection or none.
const kindDDL = "ddl"

// Everywhere runs do, which sends a DDL command to all of a collection's parts, with a record of it
// in the catalog: when this process dies half-way, another one finishes the command or undoes it.
// The caller is inside the parts' gates. It does not wait for a reshape of the collection: that
// brings to its outputs what its inputs were given. One DDL command of a collection runs at a time.
// An *backend.UnconfirmedError of do says that the command was done on all parts and not confirmed
// on some: it is repeated in the background, and returned.
func (s *Splitter) Everywhere(ctx context.Context, ns string, parts []*partition.Part, command bson.Raw, do func(context.Context) error) error {
	if err := s.awaitSettled(ctx, ns, len(parts) < 2); err != nil {
		return err
	}
	if len(parts) < 2 {
		return do(ctx)
	}
	clean, err := bare(command)
	if err != nil {
		return err
	}
	rec := s.newRecord(ns, kindDDL, homesOfParts(parts), nil)
	rec.Slot, rec.Command = ns+" ddl", clean
	if err := s.insertRecord(ctx, rec); err != nil {
		return err
	}
	kept, done := s.keep(ctx, rec, nil)
	defer done()
	err = do(kept)
	var unconfirmed *backend.UnconfirmedError
	switch {
	case err == nil:
		return s.cfg.Catalog.DeleteReshape(context.WithoutCancel(ctx), rec)
	case errors.As(err, &unconfirmed):
		// A change of a primary may undo it on one part. Whoever takes the record over repeats the
		// command until a majority has it everywhere.
		s.log.Warn().Err(err).Str("ns", ns).Msg("a DDL command was done and not confirmed by a majority; it is repeated in the background")
		return err
	}
	// Nobody may see it half done: what was refused somewhere is undone where it was done.
	if left := s.settleDDL(context.WithoutCancel(ctx), rec, parts, false); left != nil {
		s.log.Warn().Err(left).Str("ns", ns).Msg("a DDL command that failed is left to be finished or undone when its partitions can be reached")
		return err
	}
	return errors.Join(err, s.cfg.Catalog.DeleteReshape(context.WithoutCancel(ctx), rec))
}

// bare is a command without what belongs to the request that it came with.
func bare(command bson.Raw) (bson.Raw, error) {
	elems, err := command.Elements()
	if err != nil {
		return nil, wire.Errorf(wire.InvalidBSON, "the command is not a valid document")
	}
	var d bson.D
	for _, e := range elems {
		switch k := e.Key(); k {
		case "lsid", "$db", "txnNumber", "writeConcern", "$clusterTime", "comment", "maxTimeMS", "apiVersion", "apiStrict", "apiDeprecationErrors", "$readPreference", "$audit":
		default:
			d = append(d, bson.E{Key: k, Value: e.Value()})
		}
	}
	return bson.Marshal(d)
}

// finishDDL ends a DDL command that another process began: on all partitions that the collection has now, or on none.
func (s *Splitter) finishDDL(ctx context.Context, rec *catalog.Reshape) error {
	for {
		c, err := s.current(ctx, rec.NS)
		if err != nil {
			return err
		}
		if c == nil || c.Dropped() {
			return s.cfg.Catalog.DeleteReshape(ctx, rec)
		}
		err = partition.Enter(ctx, c.Parts, partition.Write)
		if errors.Is(err, partition.ErrReplan) {
			continue
		}
		if err != nil {
			return err
		}
		err = s.settleDDL(ctx, rec, c.Parts, true)
		partition.Leave(c.Parts, partition.Write)
		if err != nil {
			return err
		}
		return s.cfg.Catalog.DeleteReshape(ctx, rec)
	}
}

// settleDDL makes a DDL command done on all parts, if again says to try, or undoes indexes that only some have got. An error says that a part cannot be reached.
func (s *Splitter) settleDDL(ctx context.Context, rec *catalog.Reshape, parts []*partition.Part, again bool) error {
	elems, err := rec.Command.Elements()
	if err != nil || len(elems) == 0 {
		return nil
	}
	refused := !again
	for i := 0; again && i < len(parts); i++ {
		cmd := bson.D{{Key: elems[0].Key(), Value: parts[i].Physical}}
		for _, e := range elems[1:] {
			cmd = append(cmd, bson.E{Key: e.Key(), Value: e.Value()})
		}
		err := s.changeHome(ctx, parts[i].Home, cmd, alreadyDone[elems[0].Key()])
		var we *wire.Error
		switch {
		case err == nil:
		case errors.As(err, &we) && !passing(err):
			refused = true
		default:
			return err
		}
	}
	if !refused || elems[0].Key() != "createIndexes" {
		return nil
	}
	return s.dropPartial(ctx, rec, parts)
}

// alreadyDone has the codes by which servers say that a repeated command has nothing to do, for
// those that do not answer ok.
var alreadyDone = map[string]wire.Code{"dropIndexes": wire.IndexNotFound, "deleteIndexes": wire.IndexNotFound}

// unreached reports whether an error says nothing of the command: its backend cannot be reached, or has no primary now.
func unreached(e *wire.Error) bool {
	switch e.Code {
	case wire.HostUnreachable, wire.HostNotFound, wire.NetworkTimeout, wire.ShutdownInProgress, wire.PrimarySteppedDown, wire.ExceededTimeLimit,
		wire.MaxTimeMSExpired, wire.SocketException, wire.NotWritablePrimary, wire.InterruptedAtShutdown, wire.InterruptedDueToReplStateChange,
		wire.NotPrimaryNoSecondaryOk, wire.NotPrimaryOrSecondary:
		return true
	}
	return e.HasLabel("RetryableWriteError")
}

// dropPartial drops the indexes of a createIndexes command that some parts have and others do not.
func (s *Splitter) dropPartial(ctx context.Context, rec *catalog.Reshape, parts []*partition.Part) error {
	var cmd struct {
		Indexes []struct {
			Name string `bson:"name"`
		} `bson:"indexes"`
	}
	if err := bson.Unmarshal(rec.Command, &cmd); err != nil {
		return nil
	}
	has := make([]map[string]bson.D, len(parts))
	for i, p := range parts {
		all, err := s.indexes(ctx, p.Home)
		if err != nil {
			return err
		}
		has[i] = byName(all)
	}
	for _, ix := range cmd.Indexes {
		var with []partition.Home
		for i, p := range parts {
			if has[i][ix.Name] != nil {
				with = append(with, p.Home)
			}
		}
		if len(with) == len(parts) {
			continue
		}
		for _, h := range with {
			drop := bson.D{{Key: "dropIndexes", Value: h.Physical}, {Key: "index", Value: ix.Name}}
			if err := s.changeHome(ctx, h, drop, wire.IndexNotFound); err != nil {
				return err
			}
		}
	}
	return nil
}
