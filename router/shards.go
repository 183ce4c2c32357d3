package router

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "addShard", Aliases: []string{"addshard"}, Admin: true, Writes: true, Help: "has a backend join the fleet", Run: r.addShard},
		{Name: "removeShard", Aliases: []string{"removeshard"}, Admin: true, Writes: true, Help: "empties a backend and has it leave the fleet", Run: r.removeShard},
		{Name: "shardDrainingStatus", Admin: true, Help: "tells how far removeShard has come", Run: r.shardDrainingStatus},
		{Name: "movePrimary", Aliases: []string{"moveprimary"}, Admin: true, Writes: true, Help: "moves a database's unsharded collections to another backend", Run: r.movePrimary},
	}
})

// shardAddress reads what addShard names: "rs/h:p,…", "h:p" or a connection string. The error quotes nothing that may be a password.
func shardAddress(s string) (uri, set string, hosts []string, err error) {
	if !strings.Contains(s, "://") {
		list := s
		if name, rest, ok := strings.Cut(s, "/"); ok {
			set, list = name, rest
		}
		if list == "" || strings.ContainsAny(list, "/?@# ") || strings.Contains(s, "/") && set == "" {
			return "", "", nil, wire.Errorf(wire.FailedToParse, "a shard is named as host:port, as setName/host:port,… or by a connection string")
		}
		var full []string
		for _, h := range strings.Split(list, ",") {
			if _, _, err := net.SplitHostPort(h); err != nil {
				h = net.JoinHostPort(strings.Trim(h, "[]"), "27017")
			}
			full = append(full, h)
		}
		s = "mongodb://" + strings.Join(full, ",") + "/"
		if set != "" {
			s += "?replicaSet=" + set
		}
	}
	opts := options.Client().ApplyURI(s)
	if opts.Validate() != nil || len(opts.Hosts) == 0 {
		return "", "", nil, wire.Errorf(wire.FailedToParse, "the shard's connection string is not one that drivers take (mongodb://HOST:PORT/…)")
	}
	if opts.ReplicaSet != nil {
		set = *opts.ReplicaSet
	}
	for _, h := range opts.Hosts {
		hosts = append(hosts, strings.ToLower(h))
	}
	return s, set, hosts, nil
}

func (r *Router) addShard(ctx context.Context, q *Request) (Reply, error) {
	address, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("addShard", q.First, "string")
	}
	if r.cfg.AddBackend == nil {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "this proxy takes its backends from its configuration only")
	}
	uri, set, hosts, err := shardAddress(address)
	if err != nil {
		return Reply{}, err
	}
	name := ""
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("name"); err == nil {
		if name, ok = v.StringValueOK(); !ok {
			return Reply{}, typeMismatch("addShard.name", v, "string")
		}
		if name == "" || name == "config" || strings.ContainsAny(name, " ./$") {
			return Reply{}, wire.Errorf(wire.BadValue, "'%s' cannot be a shard's name: it must not be empty, nor 'config', nor hold blanks, dots, slashes or dollars", name)
		}
	}
	known, err := r.sameShard(name, set, hosts)
	if err != nil {
		return Reply{}, err
	}
	if known == "" {
		if known = name; known == "" {
			known = r.freeShardName()
		}
		if err := r.cfg.AddBackend(ctx, known, uri); err != nil {
			return Reply{}, err
		}
		r.cfg.Catalog.AppendChange(ctx, r.cfg.Server, "addShard", "", bson.D{{Key: "name", Value: known}, {Key: "host", Value: r.cfg.Backends.Get(known).HostString()}})
	} else if was, err := r.cfg.Catalog.CancelDraining(ctx, known); err != nil {
		return Reply{}, err
	} else if was { // there is no other way to take a removeShard back
		r.cfg.Catalog.AppendChange(ctx, r.cfg.Server, "removeShard.cancel", "", bson.D{{Key: "shard", Value: known}})
	}
	body := bsoncore.NewDocumentBuilder().AppendString("shardAdded", known).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

// sameShard returns the id of the backend that these hosts are already; "" when none is. One that is there under another name, or the name with
// other hosts, is 20.
func (r *Router) sameShard(name, set string, hosts []string) (string, error) {
	for _, b := range r.cfg.Backends.All() {
		theirs := hostsOf(b.HostString())
		theirSet, _, isSet := strings.Cut(b.HostString(), "/")
		shared := slices.ContainsFunc(hosts, func(h string) bool { return slices.Contains(theirs, h) })
		switch {
		case shared && (name == "" || name == b.ID()) && (set == "" || isSet && set == theirSet):
			return b.ID(), nil
		case shared:
			return "", wire.Errorf(wire.IllegalOperation, "a host of the new shard is a member of the shard '%s' (%s) already", b.ID(), b.HostString())
		case name == b.ID():
			return "", wire.Errorf(wire.IllegalOperation, "the shard '%s' exists already and is %s", name, b.HostString())
		}
	}
	return "", nil
}

func (r *Router) freeShardName() string {
	for n := 0; ; n++ {
		name := fmt.Sprintf("shard%04d", n)
		if r.cfg.Backends.Get(name) == nil && r.cfg.Table.View().Catalog.Backends[name] == nil {
			return name
		}
	}
}

// onBackend counts what lives on a backend: partitions of all collections, and the databases whose primary it is.
func onBackend(s *catalog.Snapshot, id string) (parts int, dbs []string) {
	for _, m := range s.Maps {
		for _, p := range m.Partitions {
			if p.Backend == id {
				parts++
			}
		}
	}
	for _, name := range sorted(s.Databases) {
		if d := s.Database(name); d != nil && d.Primary == id {
			dbs = append(dbs, name)
		}
	}
	return parts, dbs
}

const drainNote = "the balancer moves the shard's partitions away, while it is not stopped; move the databases in dbsToMove with movePrimary, or drop them; " +
	"the shard leaves the fleet once it has been empty for as long as writes may be repeated; take it out of the proxies' configuration then, too"

func (r *Router) removeShard(ctx context.Context, q *Request) (Reply, error) {
	id, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("removeShard", q.First, "string")
	}
	snap := r.cfg.Table.View().Catalog
	known := snap.Backends[id]
	if known == nil {
		return Reply{}, wire.Errorf(wire.ShardNotFound, "shard '%s' does not exist", id)
	}
	if r.cfg.RemoveBackend == nil {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "this proxy takes its backends from its configuration only")
	}
	if !known.Draining {
		return r.beginDrain(ctx, snap, id)
	}
	parts, dbs := onBackend(snap, id)
	if parts > 0 || len(dbs) > 0 || known.DrainedAt.IsZero() || time.Since(known.DrainedAt) < r.retryWindow() || r.asksOld(id) {
		return drainOngoing(parts, dbs), nil
	}
	if err := r.cfg.RemoveBackend(ctx, id); err != nil {
		return Reply{}, err
	}
	r.cfg.Catalog.AppendChange(ctx, r.cfg.Server, "removeShard", "", bson.D{{Key: "shard", Value: id}})
	body := bsoncore.NewDocumentBuilder().AppendString("msg", "removeshard completed successfully").AppendString("state", "completed").
		AppendString("shard", id).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

// drainOngoing is the reply that tells what is left on a backend that is being emptied.
func drainOngoing(parts int, dbs []string) Reply {
	body := bsoncore.NewDocumentBuilder().AppendString("msg", "draining ongoing").AppendString("state", "ongoing").
		AppendDocument("remaining", bsoncore.NewDocumentBuilder().AppendInt64("chunks", int64(parts)).
			AppendInt64("dbs", int64(len(dbs))).AppendInt64("jumboChunks", 0).Build()).
		AppendString("note", drainNote).AppendArray("dbsToMove", stringArray(dbs))
	return Reply{Body: bson.Raw(body.AppendDouble("ok", 1).Build())}
}

// shardDrainingStatus tells how far removeShard has come, and changes nothing: 20 IllegalOperation for a backend that is not being emptied.
func (r *Router) shardDrainingStatus(_ context.Context, q *Request) (Reply, error) {
	id, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("shardDrainingStatus", q.First, "string")
	}
	snap := r.cfg.Table.View().Catalog
	known := snap.Backends[id]
	switch {
	case known == nil:
		return Reply{}, wire.Errorf(wire.ShardNotFound, "shard '%s' does not exist", id)
	case !known.Draining:
		return Reply{}, wire.Errorf(wire.IllegalOperation, "shard '%s' is not in draining", id)
	}
	if parts, dbs := onBackend(snap, id); parts > 0 || len(dbs) > 0 {
		return drainOngoing(parts, dbs), nil
	}
	body := bsoncore.NewDocumentBuilder().AppendString("msg", "draining completed; the shard leaves the fleet by removeShard").
		AppendString("state", "drainingComplete").AppendDouble("ok", 1)
	return Reply{Body: bson.Raw(body.Build())}, nil
}

// asksOld reports whether a write that is repeated may still be looked up at an old home on a backend. What another machine's clock says of when it was drained does not decide.
func (r *Router) asksOld(id string) bool {
	found := false
	r.cfg.Table.View().Mapped(func(c *partition.Collection) bool {
		for i := range c.Old {
			found = found || c.Old[i].Backend == id && c.Old[i].Matters(r.retryWindow())
		}
		return !found
	})
	return found
}

func (r *Router) beginDrain(ctx context.Context, snap *catalog.Snapshot, id string) (Reply, error) {
	if id == r.cfg.CatalogBackend {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "shard '%s' holds the catalog and cannot be removed", id)
	}
	staying := 0
	for other, b := range snap.Backends {
		if other != id && !b.Draining {
			staying++
		}
	}
	if staying == 0 {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "Operation not allowed because it would remove the last shard")
	}
	if err := r.cfg.Catalog.SetDraining(ctx, id); err != nil {
		return Reply{}, err
	}
	r.cfg.Catalog.AppendChange(ctx, r.cfg.Server, "removeShard.start", "", bson.D{{Key: "shard", Value: id}})
	_, dbs := onBackend(snap, id)
	body := bsoncore.NewDocumentBuilder().AppendString("msg", "draining started successfully").AppendString("state", "started").
		AppendString("shard", id).AppendString("note", drainNote).AppendArray("dbsToMove", stringArray(dbs)).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, nil
}

func stringArray(all []string) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, s := range all {
		b.AppendString(s)
	}
	return b.Build()
}

func (r *Router) movePrimary(ctx context.Context, q *Request) (Reply, error) {
	db, ok := q.First.StringValueOK()
	if !ok {
		return Reply{}, typeMismatch("movePrimary", q.First, "string")
	}
	if err := checkDB(db); err != nil {
		return Reply{}, err
	}
	if db == "admin" || db == "config" || db == "local" {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "Can't move primary for %s database", db)
	}
	to, ok := bsoncore.Document(q.Msg.Body).Lookup("to").StringValueOK()
	if !ok || to == "" {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "you have to specify where you want to move it")
	}
	return Reply{Body: okBody}, r.cfg.Reshaper.MovePrimary(ctx, db, to)
}
