package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// What shells write to config themselves, instead of running a command, is taken (mongos-behaviour §10.6): updates of one document of
// config.settings or config.collections that set what the proxy knows. Everything else is refused: it would say something and change nothing.

// configUpdate answers an update of config.
func (r *Router) configUpdate(ctx context.Context, q *Request) (Reply, error) {
	coll, err := q.Collection()
	if err != nil {
		return Reply{}, err
	}
	if coll != "settings" && coll != "collections" {
		return Reply{}, checkWritable("config")
	}
	var array bsoncore.Value
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr(updates.list); err == nil {
		array = v
	}
	stmts, err := readStatements(q.Msg, updates.list, array)
	if err != nil {
		return Reply{}, err
	}
	if len(stmts) != 1 {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "config.%s takes one update at a time", coll)
	}
	id, set, upsert, err := configStatement(coll, stmts[0].raw)
	if err != nil {
		return Reply{}, err
	}
	var found, changed bool
	if coll == "settings" {
		found, changed, err = r.updateSetting(ctx, id, set, upsert)
	} else {
		found, changed, err = r.updateNoBalance(ctx, id, set)
		upsert = false // only shardCollection makes one
	}
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: configReply(id, found, changed, upsert)}, nil
}

// configReply is the reply of an update of one document.
func configReply(id string, found, changed, upsert bool) bson.Raw {
	b := bsoncore.NewDocumentBuilder()
	count := func(yes bool) int32 {
		if yes {
			return 1
		}
		return 0
	}
	b.AppendInt32("n", count(found || upsert)).AppendInt32("nModified", count(found && changed))
	if !found && upsert {
		up := bsoncore.NewDocumentBuilder().AppendInt32("index", 0).AppendString("_id", id).Build()
		b.AppendArray("upserted", bsoncore.NewArrayBuilder().AppendDocument(up).Build())
	}
	return bson.Raw(b.AppendDouble("ok", 1).Build())
}

// configStatement reads {q: {_id: id}, u: {$set: {…}}}; a replacement sets its fields as well.
func configStatement(coll string, raw bson.Raw) (id string, set []bsoncore.Element, upsert bool, err error) {
	d := bsoncore.Document(raw)
	refuse := func(why string) (string, []bsoncore.Element, bool, error) {
		return "", nil, false, wire.Errorf(wire.CommandNotSupported, "this update of config.%s is not supported: %s", coll, why)
	}
	filter, ok := d.Lookup("q").DocumentOK()
	elems, e := filter.Elements()
	if !ok || e != nil || len(elems) != 1 || elems[0].Key() != "_id" {
		return refuse("its filter must be {_id: …} and nothing else")
	}
	if id, ok = elems[0].Value().StringValueOK(); !ok {
		return refuse("the _id must be a string")
	}
	change, ok := d.Lookup("u").DocumentOK()
	if !ok {
		return refuse("pipelines are not taken")
	}
	if set, e = change.Elements(); e != nil || len(set) == 0 {
		return refuse("it changes nothing")
	}
	if key := set[0].Key(); strings.HasPrefix(key, "$") {
		fields, isDoc := set[0].Value().DocumentOK()
		if key != "$set" || len(set) != 1 || !isDoc {
			return refuse("only $set is taken")
		}
		if set, e = fields.Elements(); e != nil || len(set) == 0 {
			return refuse("it changes nothing")
		}
	}
	if v, err := d.LookupErr("upsert"); err == nil {
		upsert = isTrue(v)
	}
	return id, set, upsert, nil
}

// updateSetting sets fields of a document of config.settings.
func (r *Router) updateSetting(ctx context.Context, id string, set []bsoncore.Element, upsert bool) (found, changed bool, err error) {
	now := r.cfg.Table.View().Catalog.Settings
	next := now
	for _, e := range set {
		v := e.Value()
		yes, isBool := v.BooleanOK()
		switch field := id + "." + e.Key(); field {
		case "balancer._id", "chunksize._id", "autosplit._id", "automerge._id":
			if s, _ := v.StringValueOK(); s != id {
				return false, false, wire.Errorf(wire.ImmutableField, "Performing an update on the path '_id' would modify the immutable field '_id'")
			}
		case "balancer.stopped":
			if !isBool {
				return false, false, typeMismatch(field, v, "bool")
			}
			next.BalancerStopped = yes
		case "balancer.mode":
			s, _ := v.StringValueOK()
			if s != "full" && s != "off" {
				return false, false, wire.Errorf(wire.BadValue, "the balancer's mode is full or off")
			}
			next.BalancerStopped = s == "off"
		case "chunksize.value":
			mb, ok := v.AsFloat64OK()
			if !ok || !(mb > 0) || mb > 1<<40 {
				return false, false, wire.Errorf(wire.BadValue, "chunksize.value must be a positive number of MB")
			}
			next.MaxPartitionBytes = max(1, int64(mb*(1<<20)))
		case "autosplit.enabled", "automerge.enabled":
			if !isBool {
				return false, false, typeMismatch(field, v, "bool")
			}
			if id == "autosplit" {
				next.AutoSplit = setting(yes)
			} else {
				next.AutoMerge = setting(yes)
			}
		default:
			return false, false, wire.Errorf(wire.CommandNotSupported, "config.settings: '%s' of '%s' is not supported", e.Key(), id)
		}
	}
	found = id == "balancer" || id == "chunksize" || id == "autosplit" && now.AutoSplit != 0 || id == "automerge" && now.AutoMerge != 0
	if !found && !upsert {
		return false, false, nil
	}
	return found, next != now, r.cfg.Catalog.PutSettings(ctx, next)
}

func setting(on bool) catalog.Switch {
	if on {
		return catalog.SwitchOn
	}
	return catalog.SwitchOff
}

// updateNoBalance sets {noBalance} of a sharded collection.
func (r *Router) updateNoBalance(ctx context.Context, ns string, set []bsoncore.Element) (found, changed bool, err error) {
	no, ok := set[0].Value().BooleanOK()
	if len(set) != 1 || set[0].Key() != "noBalance" || !ok {
		return false, false, wire.Errorf(wire.CommandNotSupported, "of config.collections only noBalance can be set, to true or false")
	}
	snap := r.cfg.Table.View().Catalog
	if !snap.Maps[ns].Sharded() {
		return false, false, nil
	}
	c := snap.Collections[ns]
	if c.NoBalance == no {
		return true, false, nil
	}
	c.NS, c.NoBalance = ns, no
	return true, true, r.cfg.Catalog.SetCollection(ctx, c)
}
