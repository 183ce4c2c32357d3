package router

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

var _ = register(ddlCommands)

func ddlCommands(r *Router) []Command {
	return []Command{
		{Name: "create", Writes: true, API1: true, Help: "makes a collection or a view", Run: r.create},
		{Name: "drop", Writes: true, API1: true, Help: "drops a collection or a view", Run: r.drop},
		{Name: "dropDatabase", Writes: true, API1: true, Help: "drops a database", Run: r.dropDatabase},
		{Name: "renameCollection", Admin: true, Writes: true, Help: "renames a collection within its database", Run: r.renameCollection},
		{Name: "collMod", Writes: true, API1: true, Help: "changes a collection's options", Run: r.collMod},
		{Name: "convertToCapped", Writes: true, Help: "makes an unsharded collection capped", Run: r.convertToCapped},
		{Name: "compact", Writes: true, Help: "refused: run it on the backends", Run: r.compact},
		{Name: "profile", Help: "tells that there is no profiler here", Run: r.profile},
		{Name: "planCacheClear", Writes: true, Help: "forgets cached plans", Run: r.planCache},
		{Name: "planCacheListFilters", Help: "lists index filters", Run: r.planCache},
		{Name: "planCacheSetFilter", Writes: true, Help: "sets an index filter", Run: r.planCache},
		{Name: "planCacheClearFilters", Writes: true, Help: "removes index filters", Run: r.planCache},
	}
}

// checkSystem refuses DDL on a database or collection that is not a client's to change.
func checkSystem(db, coll, verb string) error {
	switch {
	case db == "config" || db == "admin":
		return wire.Errorf(wire.IllegalOperation, "cannot %s a collection of database '%s' through this proxy", verb, db)
	case strings.HasPrefix(coll, "system.") && coll != "system.profile" && coll != "system.views" && !strings.HasPrefix(coll, "system.buckets."):
		return wire.Errorf(wire.IllegalOperation, "cannot %s system collection '%s.%s'", verb, db, coll)
	}
	return nil
}

// create makes a collection or a view on the database's primary backend. That it exists with the same options is no
// error, with others 48: the backend says so.
func (r *Router) create(ctx context.Context, q *Request) (Reply, error) {
	name, err := q.Collection()
	if err != nil {
		return Reply{}, err
	}
	if strings.HasPrefix(name, "system.") && name != "system.profile" {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "Invalid system namespace: %s.%s", q.DB, name)
	}
	if q.DB == "config" {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "cannot create a collection in database 'config' through this proxy")
	}
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("temp"); err == nil && isTrue(v) {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "the create command does not take 'temp'")
	}
	if err := r.ensureDatabase(ctx, q.DB); err != nil {
		return Reply{}, err
	}
	ns := q.DB + "." + name
	c, err := r.lookup(ctx, ns)
	if err != nil {
		return Reply{}, err
	}
	apart, err := r.viewApart(ctx, c, q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	if c != nil && c.Dropped() || apart {
		if err := r.cfg.Reshaper.Create(ctx, ns, createOptions(q.Msg.Body)); err != nil {
			return Reply{}, err
		}
		r.views.forget(q.DB)
		return okReply(ctx, q)
	}
	var reply Reply
	err = r.withinAny(ctx, ns, partition.Write, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return wire.Errorf(wire.HostUnreachable, "collection '%s' was dropped at this moment; try again", ns)
		}
		if err := r.refuseExisting(ctx, ns, parts[0]); err != nil {
			return err
		}
		res := r.fanDDL(ctx, q, parts[:1], nil, nil)[0]
		reply.Body = res.body
		return res.err
	})
	r.views.forget(q.DB)
	return reply, err
}

// viewApart reports whether a view is to be made with a map of its own: it reads what has a map, and all proxies must know at once. Where something has its name the
// backend is to say what that means.
func (r *Router) viewApart(ctx context.Context, c *partition.Collection, options bson.Raw) (bool, error) {
	if c == nil || c.Map != nil {
		return false, nil
	}
	if mapped, err := r.readsMapped(ctx, c, options); err != nil || !mapped {
		return false, err
	}
	info, err := r.exists(ctx, c.NS)
	return err == nil && info == nil, err
}

// createOptions are a create command's own fields, without its name and what every command shares.
func createOptions(body bson.Raw) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	elems, _ := bsoncore.Document(body).Elements()
	for i, e := range elems {
		key := e.KeyBytes()
		if i == 0 || consumed(key) || string(key) == "writeConcern" || string(key) == "comment" {
			continue
		}
		dst = append(dst, e...)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// drop drops a collection or a view. What does not exist is no error (mongod from 7.0).
func (r *Router) drop(ctx context.Context, q *Request) (Reply, error) {
	name, err := q.Collection()
	if err != nil {
		return Reply{}, err
	}
	if err := checkSystem(q.DB, name, "drop"); err != nil {
		return Reply{}, err
	}
	ns := q.DB + "." + name
	c, err := r.lookup(ctx, ns)
	if err != nil {
		return Reply{}, err
	}
	if c == nil {
		return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(
			bsoncore.AppendStringElement(nil, "info", "database does not exist"), "ok", 1)))}, nil
	}
	info, err := r.exists(ctx, ns)
	if err != nil {
		return Reply{}, err
	}
	if info == nil && c.Map == nil || c.Dropped() {
		return okReply(ctx, q)
	}
	if typeOf(info) == "view" && c.Map == nil || typeOf(info) == "timeseries" || strings.HasPrefix(name, "system.") {
		return r.dropPlain(ctx, q, ns)
	}
	indexes := r.countIndexes(ctx, ns)
	if err := r.cfg.Reshaper.Drop(ctx, ns); err != nil {
		return Reply{}, err
	}
	var body []byte
	if indexes > 0 {
		body = bsoncore.AppendInt32Element(body, "nIndexesWas", indexes)
	}
	body = bsoncore.AppendStringElement(body, "ns", ns)
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(body, "ok", 1)))}, nil
}

// dropPlain has the primary backend drop what needs no map: a view, or a collection of the server's own.
func (r *Router) dropPlain(ctx context.Context, q *Request, ns string) (Reply, error) {
	var reply Reply
	err := r.withinAny(ctx, ns, partition.Write, allParts, func(_ *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			reply.Body = okBody
			return nil
		}
		res := r.fanDDL(ctx, q, parts[:1], nil, nil)[0]
		reply.Body = res.body
		return res.err
	})
	r.views.forget(q.DB)
	if reply.Body != nil {
		reply.Body = withNS(reply.Body, ns)
	}
	return reply, err
}

// countIndexes counts a collection's indexes for drop's reply; 0 when they cannot be counted.
func (r *Router) countIndexes(ctx context.Context, ns string) int32 {
	var n int32
	_ = r.withinAny(ctx, ns, partition.Read, allParts, func(_ *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return nil
		}
		indexes, err := r.indexesOf(ctx, parts[0].Home)
		n = int32(len(indexes))
		return err
	})
	return n
}

// withNS replaces a reply's top-level ns, which names a physical collection.
func withNS(body bson.Raw, ns string) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(body)))
	elems, _ := bsoncore.Document(body).Elements()
	for _, e := range elems {
		if string(e.KeyBytes()) == "ns" {
			dst = bsoncore.AppendStringElement(dst, "ns", ns)
		} else {
			dst = append(dst, e...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// dropDatabase drops a database's collections one by one, each by its map, and forgets it. A collection that somebody makes
// meanwhile, in the database made anew, is not touched.
func (r *Router) dropDatabase(ctx context.Context, q *Request) (Reply, error) {
	if n, ok := q.First.AsInt64OK(); !ok || n != 1 {
		return Reply{}, wire.Errorf(wire.BadValue, "have to pass 1 as the argument of dropDatabase")
	}
	if q.DB == "config" || q.DB == "admin" {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "Cannot drop '%s' database", q.DB)
	}
	if err := r.cfg.Catalog.Refresh(ctx); err != nil {
		return Reply{}, err
	}
	d, err := r.database(ctx, q.DB)
	if err != nil {
		return Reply{}, err
	}
	if d == nil {
		return okReply(ctx, q)
	}
	view := r.cfg.Table.View()
	infos, err := r.rawCollections(ctx, q.DB, d.Primary)
	if err != nil {
		return Reply{}, err
	}
	for _, info := range infos {
		if err := r.dropListed(ctx, q.DB, d.Primary, info); err != nil {
			return Reply{}, err
		}
	}
	for c := range view.Mapped {
		if c.DB != q.DB || c.Dropped() {
			continue
		}
		if err := r.cfg.Reshaper.Drop(ctx, c.NS); err != nil {
			return Reply{}, err
		}
	}
	r.views.forget(q.DB)
	if err := r.cfg.Catalog.DropDatabase(ctx, q.DB); err != nil {
		return Reply{}, err
	}
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(
		bsoncore.AppendStringElement(nil, "dropped", q.DB), "ok", 1)))}, nil
}

// dropListed drops one entry of the primary backend's list that has no map.
func (r *Router) dropListed(ctx context.Context, db, primary string, info bson.Raw) error {
	name := info.Lookup("name").StringValue()
	ns := db + "." + name
	if r.cfg.Table.View().Catalog.Maps[ns] != nil || catalog.IsPhysicalName(name) {
		return nil // its map's, or what the sweep of physical names takes
	}
	if typeOf(info) == "collection" && !strings.HasPrefix(name, "system.") {
		return r.cfg.Reshaper.Drop(ctx, ns)
	}
	if name == "system.views" || strings.HasPrefix(name, "system.buckets.") {
		return nil // goes with the last view, or with its time series
	}
	reply, err := r.ask(ctx, primary, db, bson.D{{Key: "drop", Value: name}, {Key: "writeConcern", Value: bson.Raw(majority)}})
	if err != nil && wire.AsError(err).Code == wire.NamespaceNotFound {
		return nil
	}
	if err == nil {
		if concern := wire.WriteConcernError(reply); concern != nil {
			concern.Message = "the drop of '" + ns + "' is not confirmed by a majority: " + concern.Message
			err = concern
		}
	}
	return err
}

// renameCollection renames within a database: two maps, no copy.
func (r *Router) renameCollection(ctx context.Context, q *Request) (Reply, error) {
	from, err := namespaceField(q.First, "renameCollection")
	if err != nil {
		return Reply{}, err
	}
	v, err := bsoncore.Document(q.Msg.Body).LookupErr("to")
	if err != nil {
		return Reply{}, wire.Errorf(40414, "BSON field 'renameCollection.to' is missing but a required field")
	}
	to, err := namespaceField(v, "to")
	if err != nil {
		return Reply{}, err
	}
	dropTarget := false
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("dropTarget"); err == nil {
		dropTarget = isTrue(v)
	}
	fromDB, fromColl := catalog.SplitNS(from)
	toDB, toColl := catalog.SplitNS(to)
	if from == to {
		return Reply{}, wire.Errorf(wire.IllegalOperation, "Can't rename a collection to itself")
	}
	if err := errors.Join(checkSystem(fromDB, fromColl, "rename"), checkSystem(toDB, toColl, "rename to")); err != nil {
		return Reply{}, wire.AsError(err)
	}
	source, err := r.exists(ctx, from)
	if err != nil {
		return Reply{}, err
	}
	switch t := typeOf(source); {
	case source == nil:
		return Reply{}, wire.Errorf(wire.NamespaceNotFound, "Source collection %s does not exist", from)
	case t == "view":
		return Reply{}, wire.Errorf(wire.CommandNotSupportedOnView, "cannot rename view: %s", from)
	case t == "timeseries" || strings.HasPrefix(fromColl, "system."):
		return Reply{}, wire.Errorf(wire.IllegalOperation, "cannot rename '%s': it is a %s", from, t)
	case fromDB != toDB:
		return Reply{}, wire.Errorf(wire.CommandFailed, "renaming '%s' to '%s' would move it to another database; that is not supported", from, to)
	}
	target, err := r.exists(ctx, to)
	if err != nil {
		return Reply{}, err
	}
	if typeOf(target) == "view" || target != nil && !dropTarget {
		return Reply{}, wire.Errorf(wire.NamespaceExists, "target namespace '%s' exists", to)
	}
	if err := r.cfg.Reshaper.Rename(ctx, from, to, dropTarget); err != nil {
		return Reply{}, err
	}
	return okReply(ctx, q)
}

// namespaceField reads a full namespace, checked.
func namespaceField(v bsoncore.Value, field string) (string, error) {
	ns, ok := v.StringValueOK()
	if !ok {
		return "", typeMismatch(field, v, "string")
	}
	db, coll := catalog.SplitNS(ns)
	if err := checkDB(db); err != nil {
		return "", err
	}
	return ns, checkCollection(db, coll)
}

// collMod changes every partition alike. On a sharded collection an index may become unique only as createIndexes would
// let it be.
func (r *Router) collMod(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	if on, ok := q.Msg.Body.Lookup("viewOn").StringValueOK(); ok {
		q.note = "view on " + on
		c, err := r.lookup(ctx, ns)
		if err != nil {
			return Reply{}, err
		}
		if c != nil && c.Map == nil {
			if mapped, err := r.readsMapped(ctx, c, q.Msg.Body); err != nil {
				return Reply{}, err
			} else if mapped {
				return Reply{}, wire.Errorf(wire.CommandNotSupported, "the view '%s' would read a collection that is sharded, or was dropped, renamed or moved before: drop the view and create it anew", ns)
			}
		}
	}
	defer r.views.forget(q.DB)
	return r.onAll(ctx, q, ns, func(c *partition.Collection, parts []*partition.Part) error {
		return r.checkUniqueMod(ctx, q, c, parts)
	}, 0)
}

// checkUniqueMod looks at collMod's {index: {name | keyPattern, unique | prepareUnique: true}}.
func (r *Router) checkUniqueMod(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part) error {
	spec, ok := q.Msg.Body.Lookup("index").DocumentOK()
	if !ok || !c.Sharded() || !(boolField(spec, "unique") || boolField(spec, "prepareUnique")) {
		return nil
	}
	if key, ok := spec.Lookup("keyPattern").DocumentOK(); ok {
		return checkUnique(c, key, true)
	}
	name, _ := spec.Lookup("name").StringValueOK()
	indexes, err := r.indexesOf(ctx, parts[0].Home)
	if err != nil {
		return err
	}
	for _, ix := range indexes {
		if n, _ := ix.Lookup("name").StringValueOK(); n == name {
			return checkUnique(c, ix.Lookup("key").Document(), plainStrings(ix))
		}
	}
	return nil // the backends say that there is no such index
}

// onAll runs the request on all partitions as DDL and answers {raw, ok}. A namespace that does not exist is 26.
// Errors with the code forgiven count only when every partition gave them.
func (r *Router) onAll(ctx context.Context, q *Request, ns string, check func(*partition.Collection, []*partition.Part) error, forgiven wire.Code) (Reply, error) {
	var reply Reply
	err := r.withinAny(ctx, ns, partition.Write, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return errNoCollection(ns)
		}
		if check != nil {
			if err := check(c, parts); err != nil {
				return err
			}
		}
		return r.everywhere(ctx, q, c, parts, q.Msg.Body, &reply, forgiven, nil, nil)
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

// everywhere sends a DDL command to all parts, so that it is done on all of them or on none, and makes the reply {raw, ok}. command is what it does, for whoever
// finishes it if this process dies; drop and more change the request as fanDDL does.
func (r *Router) everywhere(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, command bson.Raw, reply *Reply, forgiven wire.Code,
	drop func(key []byte) bool, more func(*partition.Part, []byte) []byte) error {
	err := r.cfg.Reshaper.Everywhere(ctx, c.NS, parts, command, func(ctx context.Context) error {
		results := r.fanDDL(ctx, q, parts, drop, more)
		failed := fanError(results, forgiven)
		if failed == nil && forgiven != 0 && allFailed(results) {
			failed = results[0].err
		}
		var err error
		*reply, err = r.rawReply(results, failed)
		if at := slices.IndexFunc(results, partReply.unconfirmed); err == nil && at >= 0 {
			err = &backend.UnconfirmedError{Concern: wire.WriteConcernError(results[at].body)}
		}
		return err
	})
	if unconfirmed := (*backend.UnconfirmedError)(nil); errors.As(err, &unconfirmed) {
		return nil // the reply says so
	}
	return err
}

func allFailed(results []partReply) bool {
	for _, res := range results {
		if res.err == nil {
			return false
		}
	}
	return true
}

func errNoCollection(ns string) error {
	return wire.Errorf(wire.NamespaceNotFound, "ns does not exist: %s", ns)
}

func boolField(doc bson.Raw, name string) bool {
	v, err := bsoncore.Document(doc).LookupErr(name)
	return err == nil && isTrue(v)
}

// convertToCapped is for unsharded collections (20 otherwise).
func (r *Router) convertToCapped(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	var reply Reply
	err = r.withinAny(ctx, ns, partition.Write, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		switch {
		case c.Sharded():
			return wire.Errorf(wire.IllegalOperation, "cannot make sharded collection '%s' capped", ns)
		case len(parts) == 0:
			return errNoCollection(ns)
		}
		res := r.fanDDL(ctx, q, parts, nil, nil)[0]
		reply.Body = res.body
		return res.err
	})
	if errors.Is(err, errUnknownDB) {
		err = errNoCollection(ns)
	}
	return reply, err
}

func (r *Router) compact(context.Context, *Request) (Reply, error) {
	return Reply{}, wire.Errorf(wire.CommandNotSupported, "compact is not supported through this proxy; run it on the backends themselves")
}

// profile answers as mongos does, which has no profiler: reading the level and setting it to 0 work.
func (r *Router) profile(_ context.Context, q *Request) (Reply, error) {
	level, ok := q.First.AsInt64OK()
	if !ok {
		return Reply{}, typeMismatch("profile", q.First, "number")
	}
	if level > 0 {
		return Reply{}, wire.Errorf(wire.BadValue, "profiling is not permitted through this proxy: switch it on at the backends")
	}
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(
		bsoncore.AppendDoubleElement(bsoncore.AppendInt32Element(bsoncore.AppendInt32Element(nil, "was", 0),
			"slowms", int32(r.cfg.SlowRequest.Milliseconds())), "sampleRate", 1), "ok", 1)))}, nil
}

// planCache runs on all partitions; the reply is the first's, since the others' are alike.
func (r *Router) planCache(ctx context.Context, q *Request) (Reply, error) {
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	reply := Reply{Body: okBody}
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(_ *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			if q.Command.Name == "planCacheSetFilter" {
				reply.Body = nil
			}
			return nil
		}
		results := r.fan(ctx, q, parts, nil, nil)
		reply.Body = results[0].body
		return fanError(results, 0)
	})
	if errors.Is(err, errUnknownDB) && q.Command.Name != "planCacheSetFilter" {
		return okReply(ctx, q)
	}
	if errors.Is(err, errUnknownDB) || err == nil && reply.Body == nil {
		return Reply{}, wire.Errorf(wire.BadValue, "ns does not exist: %s", ns)
	}
	return reply, err
}
