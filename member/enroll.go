package member

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// Examined are backends that have passed every check and may be registered.
type Examined struct {
	store *catalog.Store
	all   []examined
}

type examined struct {
	b  *backend.Backend
	id Identity
}

// Examine looks whether every one of the backends is what its id says: each server under one id,
// each id on its own server, none of another fleet, none restored from an older copy, and none that
// knows more than the catalog does. It writes nothing that stays. All ways into the fleet go through
// it: a start, addShard, and a proxy that reaches a backend again.
//
// The error names the ids and the hosts: 20 IllegalOperation for a server that is another backend,
// 96 OperationFailed for one of another fleet and for what cannot be told.
func Examine(ctx context.Context, store *catalog.Store, backends ...*backend.Backend) (*Examined, error) {
	s := store.Snapshot()
	e := &Examined{store: store}
	var refusals []error
	for _, b := range backends {
		// Before the backend: it counts first, and the catalog remembers then.
		var pulse int64
		if known := s.Backends[b.ID()]; known != nil && !known.Token.IsZero() {
			var err error
			if pulse, err = store.Pulse(ctx, b.ID(), known.Token); err != nil {
				return nil, err
			}
		}
		id, err := ReadIdentity(ctx, b)
		if err != nil {
			return nil, err
		}
		err = id.check(s, b.ID(), b.HostString())
		switch {
		case err != nil:
		case !id.complete():
			err = claimable(ctx, b, id, s)
		case id.Pulse < pulse:
			err = wire.Errorf(wire.IllegalOperation, "backend '%s' (%s) was restored from a copy that is older than what was acknowledged since: it has counted to %d, and to %d before. "+
				"Restore a newer copy; or, if what it has lost is given up, delete {_id: '%s'} in %s.pulses and start again", b.ID(), b.HostString(), id.Pulse, pulse, b.ID(), catalog.DB)
		default:
			err = notOlder(ctx, b.ID(), id.Seen, store)
		}
		if err != nil {
			refusals = append(refusals, err)
		}
		e.all = append(e.all, examined{b, id})
	}
	if len(refusals) == 0 {
		refusals = append(refusals, e.twins(ctx))
	}
	if err := join(refusals); err != nil {
		return nil, err
	}
	return e, nil
}

// join makes one error of several, with the first one's code.
func join(errs []error) error {
	errs = append([]error(nil), errs...)
	var texts []string
	var code wire.Code
	for _, err := range errs {
		var we *wire.Error
		switch {
		case err == nil:
			continue
		case !errors.As(err, &we):
			return errors.Join(errs...)
		case len(texts) == 0:
			code = we.Code
		}
		texts = append(texts, we.Message)
	}
	if len(texts) == 0 {
		return nil
	}
	return wire.Errorf(code, "%s", strings.Join(texts, "; "))
}

// twins refuses two of the backends that are one server under two addresses. Only those without a
// mark can be: a mark tells who has it.
func (e *Examined) twins(ctx context.Context) error {
	var unmarked []*backend.Backend
	for _, x := range e.all {
		if !x.id.complete() {
			unmarked = append(unmarked, x.b)
		}
	}
	for i, a := range unmarked {
		for _, b := range unmarked[i+1:] {
			same, err := SameServer(ctx, a, b)
			if err != nil {
				return err
			}
			if same {
				return wire.Errorf(wire.IllegalOperation, "the backends '%s' (%s) and '%s' (%s) are one server: one server has one id; nothing was registered", a.ID(), a.HostString(), b.ID(), b.HostString())
			}
		}
	}
	return nil
}

// SameServer reports whether two backends lead to one server: by their hosts, or since one of them
// has what was just written to the other.
func SameServer(ctx context.Context, a, b *backend.Backend) (bool, error) {
	if shareHost(a.HostString(), b.HostString()) {
		return true, nil
	}
	probe := bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "reshape", Value: bson.NewObjectID()}} // a sweep takes it, should it stay
	if _, err := DB(a).Collection(Markers).InsertOne(ctx, probe); err != nil {
		return false, wire.Errorf(wire.OperationFailed, "backend '%s' cannot be written to: %v", a.ID(), err)
	}
	defer func() { _, _ = DB(a).Collection(Markers).DeleteOne(context.WithoutCancel(ctx), probe) }()
	n, err := DB(b).Collection(Markers).CountDocuments(ctx, probe, options.Count().SetLimit(1))
	if err != nil {
		return false, wire.Errorf(wire.OperationFailed, "whether backend '%s' is the same as '%s' cannot be told: '%s' does not answer: %v", a.ID(), b.ID(), b.ID(), err)
	}
	return n > 0, nil
}

// claimable looks whether a server without a mark of its own, or with one that an older version has
// written, may become the backend that it was given as. What the maps say of the partitions that are
// on it decides; then the address that the catalog knows.
func claimable(ctx context.Context, b *backend.Backend, id Identity, s *catalog.Snapshot) error {
	known := s.Backends[b.ID()]
	partitions, err := partitionsOn(ctx, b)
	if err != nil {
		return err
	}
	theirs, mine := "", false
	for ns, m := range s.Maps {
		db, _ := catalog.SplitNS(ns)
		for _, p := range m.Partitions {
			switch {
			case !partitions[db+"."+p.Physical]:
			case p.Backend == b.ID():
				mine = true
			default:
				theirs = p.Backend
			}
		}
	}
	another := ""
	for other, k := range s.Backends {
		if other != b.ID() && shareHost(k.Host, b.HostString()) {
			another = other
		}
	}
	switch {
	case mine:
		return nil
	case theirs != "":
		return wire.Errorf(wire.IllegalOperation, "the server at %s has partitions of the backend '%s' of this fleet, and was given as '%s'; nothing was registered", b.HostString(), theirs, b.ID())
	case known != nil && shareHost(known.Host, b.HostString()):
		return nil
	case another != "":
		return wire.Errorf(wire.IllegalOperation, "the server at %s is the backend '%s' of this fleet, and was given as '%s'; nothing was registered", b.HostString(), another, b.ID())
	case known != nil && s.Holds(b.ID()):
		return wire.Errorf(wire.IllegalOperation, "the server at %s was given as backend '%s', and has neither that backend's partitions nor the address at which the catalog knows it (%s): "+
			"start once with that address; nothing was registered", b.HostString(), b.ID(), known.Host)
	case known == nil && !id.Fleet.IsZero():
		return wire.Errorf(wire.IllegalOperation, "the server at %s belongs to this fleet already, and the catalog has no backend '%s': start once with the ids that the catalog has, "+
			"or, if the server has left the fleet, drop the database '%s' on it; nothing was registered", b.HostString(), b.ID(), catalog.MemberDB)
	case len(partitions) > 0:
		for name := range partitions {
			return wire.Errorf(wire.OperationFailed, "backend '%s' (%s) has a partition '%s', and this catalog names none on it: name the catalog of the fleet that it belongs to "+
				"(--catalog); collections of that form that are in no fleet must be renamed or dropped first", b.ID(), b.HostString(), name)
		}
	}
	return nil
}

// partitionsOn are the collections on a backend whose names only partitions have, with their databases.
func partitionsOn(ctx context.Context, b *backend.Backend) (map[string]bool, error) {
	dbs, err := b.Client().ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, wire.Errorf(wire.OperationFailed, "the databases of backend '%s' cannot be listed: %v", b.ID(), err)
	}
	found := map[string]bool{}
	for _, db := range dbs {
		if catalog.IsInternalDB(db) {
			continue
		}
		names, err := b.Client().Database(db).ListCollectionNames(ctx, bson.D{})
		if err != nil {
			return nil, wire.Errorf(wire.OperationFailed, "the collections of database '%s' on backend '%s' cannot be listed: %v", db, b.ID(), err)
		}
		for _, name := range names {
			if catalog.IsPhysicalName(name) && !strings.HasPrefix(name, "system.") {
				found[db+"."+name] = true
			}
		}
	}
	return found, nil
}

// Register marks the backends that have no mark yet and writes all of them into the catalog. The mark
// comes first: a start that dies in between finds it again.
func (e *Examined) Register(ctx context.Context) error {
	s := e.store.Snapshot()
	for i := range e.all {
		x := &e.all[i]
		if x.id.complete() {
			continue
		}
		var err error
		if x.id, err = claim(ctx, x.b, s.ClusterID); err != nil {
			return err
		}
		if err := x.id.check(s, x.b.ID(), x.b.HostString()); err != nil { // another proxy was faster
			return err
		}
	}
	for _, x := range e.all {
		now := catalog.Backend{ID: x.b.ID(), URI: x.b.URI(), Host: x.b.HostString(), Token: x.id.Token, SetName: x.id.SetName, SetID: x.id.SetID}
		if k := s.Backends[now.ID]; k != nil && k.URI == now.URI && k.Host == now.Host && k.Token == now.Token && k.SetName == now.SetName &&
			(now.SetID.IsZero() || k.SetID == now.SetID) {
			continue
		}
		if err := e.store.PutBackend(ctx, now); err != nil {
			return err
		}
	}
	return nil
}

// Enroll is Examine and Register.
func Enroll(ctx context.Context, store *catalog.Store, backends ...*backend.Backend) error {
	e, err := Examine(ctx, store, backends...)
	if err != nil {
		return err
	}
	return e.Register(ctx)
}

// Verify is Examine of a backend that this process is about to use; a mark that is missing is made,
// where it may be. While the catalog does not answer, the snapshot decides.
func Verify(ctx context.Context, store *catalog.Store, b *backend.Backend) error {
	s := store.Snapshot()
	known := s.Backends[b.ID()]
	if known == nil {
		return wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", b.ID())
	}
	if known.Token.IsZero() {
		return Enroll(ctx, store, b)
	}
	e, err := Examine(ctx, store, b)
	var refusal *wire.Error
	if err == nil || errors.As(err, &refusal) {
		if err == nil && known.SetName == "" && e.all[0].id.SetName != "" {
			return e.Register(ctx) // a standalone has become a replica set
		}
		return err
	}
	id, err := ReadIdentity(ctx, b)
	if err != nil {
		return err
	}
	return id.check(s, b.ID(), b.HostString())
}
