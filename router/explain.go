package router

import (
	"context"
	"errors"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{{Name: "explain", API1: true, Help: "tells how a command would run", Run: r.explain}}
})

// explain answers the command of that name by asking every partition that the explained command concerns.
func (r *Router) explain(ctx context.Context, q *Request) (reply Reply, err error) {
	inner, ok := q.First.DocumentOK()
	if !ok {
		return Reply{}, typeMismatch("explain", q.First, "object")
	}
	elems, err := inner.Elements()
	if err != nil || len(elems) == 0 {
		return Reply{}, wire.Errorf(wire.FailedToParse, "explain command requires a nested object")
	}
	if err := r.checkExplained(q, elems[0].Key(), inner); err != nil {
		return Reply{}, err
	}
	coll, ok := elems[0].Value().StringValueOK()
	if !ok {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "collection name has invalid type %s", elems[0].Value().Type)
	}
	if err := checkCollection(q.DB, coll); err != nil {
		return Reply{}, err
	}
	filter, collation, err := explainedFilter(elems[0].Key(), inner)
	if err != nil {
		return Reply{}, err
	}
	err = r.within(ctx, q.DB+"."+coll, partition.Read, planFilter(filter, collation), func(c *partition.Collection, parts []*partition.Part) error {
		reply, err = r.explainParts(ctx, q, c, parts, inner)
		return err
	})
	if errors.Is(err, errUnknownDB) {
		body := bsoncore.NewDocumentBuilder().
			AppendDocument("queryPlanner", bsoncore.NewDocumentBuilder().AppendInt32("mongosPlannerVersion", 1).
				AppendDocument("winningPlan", bsoncore.NewDocumentBuilder().AppendString("stage", "EOF").Build()).Build()).
			AppendDouble("ok", 1).Build()
		return Reply{Body: bson.Raw(body)}, nil
	}
	return reply, err
}

// checkExplained refuses commands that cannot be explained, and such as are said to be for another database.
func (r *Router) checkExplained(q *Request, name string, inner bsoncore.Document) error {
	switch name {
	case "find", "count", "distinct", "findAndModify", "findandmodify", "aggregate", "update", "delete":
	default:
		if r.commands[name] == nil {
			return wire.Errorf(wire.CommandNotFound, "Explain failed due to unknown command: %s", name)
		}
		return wire.Errorf(wire.IllegalOperation, "Cannot explain cmd: %s", name)
	}
	if v, err := inner.LookupErr("$db"); err == nil {
		if db, _ := v.StringValueOK(); db != q.DB {
			return wire.Errorf(wire.InvalidNamespace, "Mismatched $db in explain command. Expected %s but got %s", q.DB, db)
		}
	}
	return nil
}

// explainedFilter returns the filter of an explained command, by which it is targeted.
func explainedFilter(name string, cmd bsoncore.Document) (filter bson.Raw, collation bool, err error) {
	var v bsoncore.Value
	switch name {
	case "find":
		v = cmd.Lookup("filter")
	case "count", "distinct", "findAndModify", "findandmodify":
		v = cmd.Lookup("query")
	case "aggregate":
		stages, err := parsePipeline(cmd.Lookup("pipeline"))
		if err != nil {
			return nil, false, err
		}
		filter = leadingMatch(stages)
	case "update", "delete":
		list, _ := cmd.Lookup(name + "s").ArrayOK()
		all, _ := list.Values()
		if len(all) != 1 {
			return nil, false, wire.Errorf(wire.InvalidLength, "explained write batches must be of size 1")
		}
		if d, ok := all[0].DocumentOK(); ok {
			v = d.Lookup("q")
		}
	}
	if v.Type != 0 {
		if filter, err = documentOrNull("filter", v); err != nil {
			return nil, false, err
		}
	}
	if cv := cmd.Lookup("collation"); cv.Type != 0 {
		collation, err = notSimple(cv)
	}
	return filter, collation, err
}

// explainParts asks every part to explain and puts the answers together as mongos does. inner is the explained command; nil when
// the request itself is an aggregate with explain: true.
func (r *Router) explainParts(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, inner bsoncore.Document) (Reply, error) {
	pipeline, err := explainedPipeline(q, inner)
	if err != nil {
		return Reply{}, err
	}
	var split *merge.Plan
	if pipeline != nil && len(parts) > 1 {
		p, err := merge.PlanPipeline(*pipeline, false)
		if err != nil {
			return Reply{}, err
		}
		split = &p
	}
	targets := make([]target, len(parts))
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		targets[i] = q.target(p)
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, explainFor(q, p, inner))
	}
	replies, errs := r.scatter(ctx, targets, msgs)
	defer releaseAll(replies)
	for i := range replies {
		if errs[i] == nil {
			errs[i] = commandError(replies[i].Body)
		}
		if errs[i] != nil {
			return Reply{}, errs[i]
		}
	}
	switch {
	case pipeline != nil && !c.Sharded() && len(parts) == 1:
		return Reply{Body: hideNames(relay(replies[0].Body))}, nil
	case pipeline != nil:
		return Reply{Body: r.explainSplit(split, parts, cleaned(replies))}, nil
	}
	return Reply{Body: r.explainBody(q, inner, explainStage(inner, len(parts)), parts, cleaned(replies))}, nil
}

// explainStage names what a router does with the answers of n partitions.
func explainStage(inner bsoncore.Document, n int) string {
	elems, _ := inner.Elements()
	switch name := elems[0].Key(); {
	case name == "update", name == "delete":
		return "SHARD_WRITE"
	case n == 1:
		return "SINGLE_SHARD"
	case name == "find" && len(inner.Lookup("sort").Data) > 5:
		return "SHARD_MERGE_SORT"
	}
	return "SHARD_MERGE"
}

// explainedPipeline returns the pipeline of an explained aggregate, nil for another command.
func explainedPipeline(q *Request, inner bsoncore.Document) (*[]bson.Raw, error) {
	cmd := bsoncore.Document(q.Msg.Body)
	if inner != nil {
		if elems, _ := inner.Elements(); len(elems) == 0 || elems[0].Key() != "aggregate" {
			return nil, nil
		}
		cmd = inner
	}
	stages, err := parsePipeline(cmd.Lookup("pipeline"))
	return &stages, err
}

// explainSplit builds mongos' shape for a pipeline (mongos-behaviour §6.4). A backend's second partition of the collection has a
// number behind the backend's name, since the names must differ.
func (r *Router) explainSplit(split *merge.Plan, parts []*partition.Part, bodies []bson.Raw) bson.Raw {
	shards := bsoncore.NewDocumentBuilder()
	times := map[string]int{}
	for i, p := range parts {
		name := p.Backend
		if times[p.Backend]++; times[p.Backend] > 1 {
			name += "/" + strconv.Itoa(times[p.Backend])
		}
		one := bsoncore.NewDocumentBuilder().AppendString("host", r.hostOf(p.Backend))
		elems, _ := bsoncore.Document(bodies[i]).Elements()
		for _, e := range elems {
			switch e.Key() {
			case "stages", "queryPlanner", "executionStats", "explainVersion":
				one.AppendValue(e.Key(), e.Value())
			}
		}
		shards.AppendDocument(name, one.Build())
	}
	out := bsoncore.NewDocumentBuilder()
	if split == nil {
		out.AppendNull("splitPipeline")
	} else {
		out.AppendString("mergeType", "mongos").AppendDocument("splitPipeline", bsoncore.NewDocumentBuilder().
			AppendArray("shardsPart", stageArray(split.Shard)).AppendArray("mergerPart", stageArray(split.Merger())).Build())
	}
	out.AppendDocument("shards", shards.Build()).AppendDocument("serverInfo", r.serverInfo())
	return bson.Raw(out.AppendDouble("ok", 1).Build())
}

func stageArray(stages []bson.Raw) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, s := range stages {
		b.AppendDocument(bsoncore.Document(s))
	}
	return b.Build()
}

func cleaned(replies []backend.Reply) []bson.Raw {
	out := make([]bson.Raw, len(replies))
	for i := range replies {
		out[i] = hideNames(relay(replies[i].Body))
	}
	return out
}

func explainFor(q *Request, p *partition.Part, inner bsoncore.Document) []byte {
	if inner == nil {
		return q.appendFor(nil, p, true, nil, nil)
	}
	start, d := bsoncore.AppendDocumentStart(nil)
	at, d := bsoncore.AppendDocumentElementStart(d, "explain")
	elems, _ := inner.Elements()
	d = bsoncore.AppendStringElement(d, elems[0].Key(), p.Physical)
	for _, e := range elems[1:] {
		if !consumed(e.KeyBytes()) {
			d = append(d, e...)
		}
	}
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("verbosity"); err == nil {
		d = bsoncore.AppendValueElement(d, "verbosity", v)
	}
	d = q.appendTail(d, p.DB)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return d
}

func number(d bsoncore.Document, field string) int64 {
	n, _ := d.Lookup(field).AsInt64OK()
	return n
}

// hideNames replaces physical names in every string of a document, however deep.
func hideNames(doc bson.Raw) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		out = bsoncore.AppendValueElement(out, catalog.HidePhysicalNames(e.Key()), hideIn(e.Value()))
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

func hideIn(v bsoncore.Value) bsoncore.Value {
	if s, ok := v.StringValueOK(); ok {
		return bsoncore.Value{Type: v.Type, Data: bsoncore.AppendString(nil, catalog.HidePhysicalNames(s))}
	}
	if d, ok := v.DocumentOK(); ok {
		return bsoncore.Value{Type: v.Type, Data: hideNames(bson.Raw(d))}
	}
	if a, ok := v.ArrayOK(); ok {
		values, _ := a.Values()
		b := bsoncore.NewArrayBuilder()
		for _, el := range values {
			b.AppendValue(hideIn(el))
		}
		return bsoncore.Value{Type: v.Type, Data: b.Build()}
	}
	return v
}
