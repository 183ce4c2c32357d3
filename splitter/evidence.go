package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// A physical collection is dropped on evidence only. Its backend records, in package member's
// Collections, what became of it: a change records each collection before it makes it, completes the
// record with the collection's UUID before it closes gates, says that it is used after the flip, and
// that it is retired before it is dropped. That no map names a collection is needed as well, and is
// never enough: a wrong configuration or a restored catalog would drop everything.

// recordedName is the name under which a backend records a physical collection.
func recordedName(db, physical string) string { return db + "." + physical }

// byBackend groups homes that can exist, by backend, as names under which they are recorded.
func byBackend(db string, homes []catalog.RecordedHome) map[string][]string {
	names := map[string][]string{}
	for _, h := range homes {
		if !catalog.IsAbsentName(h.Physical) && h.Physical != catalog.PrimaryHome {
			names[h.Backend] = append(names[h.Backend], recordedName(db, h.Physical))
		}
	}
	return names
}

// announce makes sure, before a change makes anything, that every backend that it concerns is the one
// that it is taken for and that the catalog is not older than it. Then it records what the change is
// about to make.
func (s *Splitter) announce(ctx context.Context, rec *catalog.Reshape) error {
	concerned := map[string]*backend.Backend{}
	for _, h := range append(slices.Clone(rec.Inputs), rec.Outputs...) {
		b := s.cfg.Backends.Get(h.Backend)
		if b == nil {
			return wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", h.Backend)
		}
		concerned[h.Backend] = b
	}
	for _, b := range concerned {
		if err := member.Current(ctx, b, s.cfg.Catalog); err != nil {
			return mayPass(err)
		}
	}
	number, err := s.cfg.Catalog.NextNumber(ctx)
	if err != nil {
		return retryable{err}
	}
	db, _ := catalog.SplitNS(rec.NS)
	outputs := byBackend(db, rec.Outputs)
	for id, b := range concerned {
		if err := member.See(ctx, b, s.cfg.Catalog, int64(number)); err != nil {
			return mayPass(err)
		}
		if err := member.BoardOf(b).RecordMade(ctx, rec.ID, outputs[id]); err != nil {
			return retryable{fmt.Errorf("record what is about to be made on backend '%s': %w", id, err)}
		}
	}
	return nil
}

// mayPass says of an error that another attempt may not meet it, unless it is a refusal.
func mayPass(err error) error {
	var refusal *wire.Error
	if errors.Is(err, member.ErrOther) || errors.As(err, &refusal) && refusal.Code == wire.OperationFailed {
		return err
	}
	return retryable{err}
}

// identify completes the records of a change's inputs and outputs with the collections' UUIDs. It is
// called when the outputs have been made, before gates are closed.
func (s *Splitter) identify(ctx context.Context, rec *catalog.Reshape) error {
	db, _ := catalog.SplitNS(rec.NS)
	wanted := map[string][]string{}
	for _, h := range append(slices.Clone(rec.Inputs), rec.Outputs...) {
		if !catalog.IsAbsentName(h.Physical) && h.Physical != catalog.PrimaryHome {
			wanted[h.Backend] = append(wanted[h.Backend], h.Physical)
		}
	}
	for id, physical := range wanted {
		b := s.cfg.Backends.Get(id)
		if b == nil {
			return wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", id)
		}
		found, err := listed(ctx, b, db, physical...)
		if err != nil {
			return err
		}
		uuids := map[string]*bson.Binary{}
		for name, c := range found {
			uuids[recordedName(db, name)] = c.uuid
		}
		if err := member.BoardOf(b).RecordUUIDs(ctx, rec.ID, uuids); err != nil {
			return fmt.Errorf("record the collections on backend '%s': %w", id, err)
		}
	}
	return nil
}

// recordUsed says, after a change's flip, that a map names its outputs.
func (s *Splitter) recordUsed(ctx context.Context, rec *catalog.Reshape) error {
	db, _ := catalog.SplitNS(rec.NS)
	for id, names := range byBackend(db, rec.Outputs) {
		if b := s.cfg.Backends.Get(id); b != nil {
			if err := member.BoardOf(b).RecordUsed(ctx, names); err != nil {
				return err
			}
		}
	}
	return nil
}

// listedCollection is a collection in a backend's list.
type listedCollection struct {
	kind string
	uuid *bson.Binary // nil for a view
}

// listed lists those of a database's collections on a backend that have one of the names; all without
// names.
func listed(ctx context.Context, b *backend.Backend, db string, names ...string) (map[string]listedCollection, error) {
	filter := bson.D{}
	if len(names) > 0 {
		filter = bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: names}}}}
	}
	specs, err := b.Client().Database(db).ListCollectionSpecifications(ctx, filter)
	if err != nil {
		return nil, err
	}
	found := make(map[string]listedCollection, len(specs))
	for _, c := range specs {
		found[c.Name] = listedCollection{c.Type, c.UUID}
	}
	return found, nil
}

// Why a collection may be dropped.
var (
	// abandoned: the change that made it is over, and is not in the map.
	abandoned = []member.State{member.Made, member.Retired, member.Dropped}
	// replaced: a change has put others into its place.
	replaced = []member.State{member.Made, member.Used, member.Retired, member.Dropped}
)

// errNoEvidence says that nothing tells that a collection may be dropped. It is left alone.
var errNoEvidence = errors.New("nothing on record says that it may be dropped")

// dropOnEvidence drops a physical collection if three things come together: its server is the backend
// that it is taken for, no newest map names it, and its backend's record of it is in one of the
// states from, for a change that is over. A record that is missing is errNoEvidence; so is a UUID
// that is not the recorded one, unless the name is one that only partitions have: such a name is
// never used twice, and what has it again was made by a write that came late, which nobody was told
// to have been done.
//
// Between the look at the UUID and the drop nothing makes a collection of that name but such a write.
// A mongod from 6.0 compares the UUID itself.
func (s *Splitter) dropOnEvidence(ctx context.Context, h partition.Home, reshape catalog.ID, from []member.State) error {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil // it has left, and nothing was on it
	}
	if err := member.Current(ctx, b, s.cfg.Catalog); err != nil {
		return err
	}
	board, name := member.BoardOf(b), recordedName(h.DB, h.Physical)
	found, err := listed(ctx, b, h.DB, h.Physical)
	if err != nil {
		return err
	}
	there, exists := found[h.Physical]
	if named, err := s.cfg.Catalog.Named(ctx, h.Backend, h.DB, h.Physical); err != nil || named {
		return err
	}
	record, err := board.RecordRetired(ctx, name, reshape, from...)
	switch {
	case err != nil:
		return err
	case !exists && record == nil:
		return nil
	case !exists:
		return board.RecordDropped(ctx, name)
	case record == nil:
		return errNoEvidence
	case !catalog.IsPhysicalName(h.Physical) && !sameUUID(record.UUID, there.uuid):
		return errNoEvidence
	}
	if err := s.dropHome(ctx, h, there.uuid); err != nil {
		return err
	}
	return board.RecordDropped(ctx, name)
}

func sameUUID(a, b *bson.Binary) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

// dropHome drops a collection that has that UUID, where it has one.
func (s *Splitter) dropHome(ctx context.Context, h partition.Home, uuid *bson.Binary) error {
	ctx, cancel := context.WithTimeout(ctx, dropLimit)
	defer cancel()
	drop := bson.D{{Key: "drop", Value: h.Physical}}
	var err error = errUnknownField
	if _, old := s.plainDrops.Load(h.Backend); uuid != nil && !old {
		err = s.changeHome(ctx, h, append(slices.Clone(drop), bson.E{Key: "collectionUUID", Value: *uuid}), wire.NamespaceNotFound)
	}
	var we *wire.Error
	if errors.As(err, &we) && we.Code == errUnknownField.Code { // before 6.0
		if uuid != nil {
			s.plainDrops.Store(h.Backend, true)
		}
		err = s.changeHome(ctx, h, drop, wire.NamespaceNotFound)
	}
	select {
	case s.dropped <- struct{}{}:
	default:
	}
	return err
}

// errUnknownField is a server's answer to a command with a field that it does not know.
var errUnknownField = &wire.Error{Code: 40415, Message: "unknown field"}
