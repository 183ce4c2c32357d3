package splitter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// Recover finishes or takes back what earlier processes left, before this one serves. A reshape that was closing is ended
// by burning the version its record names, whether or not a closing is to be seen; if that loses to the flip, it rolls forward. Then its
// closings go, and its outputs or its inputs, whichever the newest map does not name. A backend that cannot be reached is left to Sweep.
func (s *Splitter) Recover(ctx context.Context) error {
	all, err := s.cfg.Catalog.Reshapes(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if err := s.recoverOne(ctx, &all[i]); err != nil {
			return fmt.Errorf("finish the reshape %s of %s: %w", all[i].ID.Hex(), all[i].NS, err)
		}
	}
	s.Sweep(ctx)
	return nil
}

func (s *Splitter) recoverOne(ctx context.Context, rec *catalog.Reshape) error {
	if err := s.cfg.Catalog.SwapReshape(ctx, rec, func(n *catalog.Reshape) { n.Owner, n.Epoch = s.cfg.Server, n.Epoch+1 }); err != nil {
		return err
	}
	m, err := s.cfg.Catalog.NewestMap(ctx, rec.NS)
	if err != nil {
		return err
	}
	if rec.Phase == catalog.Closing && m != nil && m.V < rec.EndV {
		if err := s.burnRecorded(ctx, m, rec.EndV); err != nil {
			return err
		}
	}
	s.log.Info().Str("ns", rec.NS).Str("kind", rec.Kind).Str("phase", string(rec.Phase)).Msg("a reshape of an earlier process is taken up and ended")
	db, _ := catalog.SplitNS(rec.NS)
	reached := s.rollForward(ctx, rec, m)
	for _, h := range rec.Inputs {
		b := s.cfg.Backends.Get(h.Backend)
		if b == nil {
			continue
		}
		bctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		reached = cleanClosings(bctx, member.DB(b), rec.ID) && reached
		cancel()
	}
	for _, h := range append(append([]catalog.RecordedHome{}, rec.Inputs...), rec.Outputs...) {
		home := partition.Home{Backend: h.Backend, DB: db, Physical: h.Physical}
		if s.cfg.Backends.Get(h.Backend) == nil {
			continue
		}
		if _, err := s.dropIfUnnamed(ctx, home); err != nil {
			s.log.Warn().Err(err).Str("backend", h.Backend).Msg("a physical collection could not be dropped; the next sweep does it")
			reached = false
		}
	}
	if !reached {
		return nil // the record stays, so that the next start looks again
	}
	return s.cfg.Catalog.DeleteReshape(ctx, rec.ID)
}

// rollForward does what follows a flip and comes before the inputs are dropped: floors and, if it may not have been done, the outputs' expiry.
// It reports whether every backend was reached; without a flip there is nothing to do.
func (s *Splitter) rollForward(ctx context.Context, rec *catalog.Reshape, m *catalog.Map) bool {
	if m == nil || len(rec.Outputs) == 0 || len(rec.Inputs) == 0 {
		return true
	}
	db, _ := catalog.SplitNS(rec.NS)
	flipped, err := s.cfg.Catalog.Named(ctx, rec.Outputs[0].Backend, db, rec.Outputs[0].Physical)
	if err != nil || !flipped {
		return err == nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reached := true
	for _, h := range rec.Inputs {
		if err := s.raiseFloor(ctx, h.Backend, rec.NS, m.V); err != nil {
			s.log.Warn().Err(err).Str("backend", h.Backend).Msg("a floor could not be raised")
			reached = false
		}
	}
	if rec.Phase != catalog.Closing {
		return reached
	}
	input := partition.Home{Backend: rec.Inputs[0].Backend, DB: db, Physical: rec.Inputs[0].Physical}
	info, err := s.inspectHome(ctx, input)
	if err != nil {
		s.log.Warn().Err(err).Str("backend", input.Backend).Msg("indexes could not be read")
		return false
	}
	outputs := make([]partition.Home, len(rec.Outputs))
	for i, h := range rec.Outputs {
		outputs[i] = partition.Home{Backend: h.Backend, DB: db, Physical: h.Physical}
	}
	s.expire(ctx, info.indexes, outputs)
	return reached
}

// burnRecorded inserts version v with the partitions of the newest map.
func (s *Splitter) burnRecorded(ctx context.Context, m *catalog.Map, v int64) error {
	b := *m
	b.V, b.Burnt, b.Reshape, b.Created = v, true, bson.NilObjectID, time.Time{}
	err := s.cfg.Catalog.InsertMap(ctx, &b)
	if errors.Is(err, catalog.ErrMapExists) {
		return nil
	}
	return err
}

// cleanClosings removes a reshape's closings, their answers and its markers from a backend, and reports whether that worked.
func cleanClosings(ctx context.Context, db *mongo.Database, id bson.ObjectID) bool {
	cur, err := db.Collection(member.Closings).Find(ctx, bson.D{{Key: "reshape", Value: id}})
	var all []member.Closing
	if err == nil {
		err = cur.All(ctx, &all)
	}
	for _, c := range all {
		if err == nil {
			_, err = db.Collection(member.Answers).DeleteMany(ctx, bson.D{{Key: "_id.closing", Value: c.ID}})
		}
		if err == nil {
			_, err = db.Collection(member.Closings).DeleteOne(ctx, bson.D{{Key: "_id", Value: c.ID}})
		}
	}
	if err == nil {
		_, err = db.Collection(member.Markers).DeleteMany(ctx, bson.D{{Key: "reshape", Value: id}})
	}
	return err == nil
}

// Sweep drops physical collections that neither a newest map nor the record of a reshape names: mongod makes a dropped collection
// anew for a write that arrives late.
func (s *Splitter) Sweep(ctx context.Context) {
	for _, b := range s.cfg.Backends.All() {
		bctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		if err := s.sweepOne(bctx, b.ID()); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("backend", b.ID()).Msg("not swept for collections that nothing names")
		}
		cancel()
	}
}

func (s *Splitter) sweepOne(ctx context.Context, id string) error {
	body, err := s.cfg.Backends.Get(id).Run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return err
	}
	var list struct {
		Databases []struct {
			Name string `bson:"name"`
		} `bson:"databases"`
	}
	if err := bson.Unmarshal(body, &list); err != nil {
		return err
	}
	for _, d := range list.Databases {
		if catalog.IsInternalDB(d.Name) || d.Name == "local" || d.Name == "config" || d.Name == "admin" {
			continue
		}
		if err := s.sweepDB(ctx, id, d.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Splitter) sweepDB(ctx context.Context, id, db string) error {
	all, err := s.cfg.Backends.Get(id).Client().Database(db).ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return err
	}
	known := s.knownHomes(id, db)
	for _, name := range all {
		if !catalog.IsPhysicalName(name) || known[name] {
			continue
		}
		h := partition.Home{Backend: id, DB: db, Physical: name}
		needed, err := s.needed(ctx, db+"."+catalog.LogicalName(name), h)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		s.log.Info().Str("backend", id).Str("db", db).Str("physical", name).Msg("dropping a physical collection that nothing names")
		var we *wire.Error
		if err := s.dropHome(ctx, h); err != nil && !(errors.As(err, &we) && we.Code == wire.NamespaceNotFound) {
			return err
		}
	}
	return nil
}

// knownHomes are the physical collections of a database on a backend that the snapshot's maps name, for which the catalog need not be asked one by one.
func (s *Splitter) knownHomes(backendID, db string) map[string]bool {
	known := map[string]bool{}
	for ns, m := range s.cfg.Catalog.Snapshot().Maps {
		if in, _ := catalog.SplitNS(ns); in != db {
			continue
		}
		for _, p := range m.Partitions {
			if p.Backend == backendID {
				known[p.Physical] = true
			}
		}
	}
	return known
}

// needed reports whether a physical collection is named by the newest map of any namespace or by a live record. Records are read before the
// map: what a record names moves into the map, never the other way.
func (s *Splitter) needed(ctx context.Context, ns string, h partition.Home) (bool, error) {
	s.mu.Lock()
	_, busy := s.locks[ns]
	s.mu.Unlock()
	if busy {
		return true, nil // whoever changes the map of ns cleans up himself
	}
	records, err := s.cfg.Catalog.Reshapes(ctx)
	if err != nil {
		return true, err
	}
	for _, r := range records {
		for _, o := range append(append([]catalog.RecordedHome{}, r.Inputs...), r.Outputs...) {
			if o.Backend == h.Backend && o.Physical == h.Physical {
				return true, nil
			}
		}
	}
	return s.cfg.Catalog.Named(ctx, h.Backend, h.DB, h.Physical)
}
