package router

import (
	"context"
	"errors"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{{Name: "aggregate", API1: true, Help: "runs an aggregation pipeline", Run: r.aggregate}}
})

// aggArgs are the fields of an aggregate that the router must understand.
type aggArgs struct {
	pipeline     []bson.Raw
	batchSize    int64
	hasBatchSize bool
	hasCursor    bool
	explain      bool
	collation    bool
}

func parseAggregate(body bson.Raw) (a aggArgs, err error) {
	elems, err := bsoncore.Document(body).Elements()
	if err != nil {
		return a, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	hasPipeline := false
	for _, e := range elems[1:] {
		v := e.Value()
		switch e.Key() {
		case "pipeline":
			hasPipeline = true
			a.pipeline, err = parsePipeline(v)
		case "cursor":
			a.hasCursor = true
			err = a.parseCursor(v)
		case "explain":
			a.explain = isTrue(v)
		case "collation":
			a.collation, err = notSimple(v)
		case "fromMongos", "needsMerge":
			err = wire.Errorf(51089, "Internal option '%s' is not allowed from a client", e.Key())
		case "exchange":
			err = wire.Errorf(51028, "Internal option 'exchange' is not allowed from a client")
		case "runtimeConstants", "legacyRuntimeConstants":
			err = wire.Errorf(51143, "Internal option '%s' is not allowed from a client", e.Key())
		}
		if err != nil {
			return a, err
		}
	}
	if !hasPipeline {
		return a, wire.Errorf(40414, "BSON field 'aggregate.pipeline' is missing but a required field")
	}
	if !a.hasCursor && !a.explain {
		return a, wire.Errorf(wire.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument")
	}
	return a, nil
}

func (a *aggArgs) parseCursor(v bsoncore.Value) error {
	doc, err := documentField("cursor", v)
	if err != nil {
		return err
	}
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return wire.Errorf(wire.InvalidBSON, "cursor is not a valid BSON document")
	}
	for _, e := range elems {
		if e.Key() != "batchSize" {
			return wire.Errorf(40415, "BSON field 'cursor.%s' is an unknown field.", e.Key())
		}
		a.hasBatchSize = true
		if a.batchSize, err = wholeNumber("batchSize", e.Value(), 51024); err != nil {
			return err
		}
	}
	return nil
}

func parsePipeline(v bsoncore.Value) ([]bson.Raw, error) {
	arr, ok := v.ArrayOK()
	if !ok {
		return nil, wire.Errorf(wire.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	values, err := arr.Values()
	if err != nil {
		return nil, wire.Errorf(wire.InvalidBSON, "the pipeline is not a valid array")
	}
	stages := make([]bson.Raw, len(values))
	for i, s := range values {
		d, ok := s.DocumentOK()
		if !ok {
			return nil, wire.Errorf(wire.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		stages[i] = bson.Raw(d)
	}
	return stages, nil
}

// leadingMatch returns the filter that every document of the pipeline has passed before anything else, nil if there is none: that of a first $match, or the
// query of a first $geoNear.
func leadingMatch(pipeline []bson.Raw) bson.Raw {
	if len(pipeline) == 0 {
		return nil
	}
	if near, ok := bsoncore.Document(pipeline[0]).Lookup("$geoNear").DocumentOK(); ok {
		d, _ := near.Lookup("query").DocumentOK()
		return bson.Raw(d)
	}
	d, _ := bsoncore.Document(pipeline[0]).Lookup("$match").DocumentOK()
	return bson.Raw(d)
}

// aggregate answers the command of that name.
func (r *Router) aggregate(ctx context.Context, q *Request) (reply Reply, err error) {
	a, err := parseAggregate(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	if q.api.strict {
		if err := strictStages(a.pipeline); err != nil {
			return Reply{}, err
		}
	}
	if _, named := q.First.StringValueOK(); !named {
		if n, ok := q.First.AsFloat64OK(); !ok || n != 1 {
			return Reply{}, wire.Errorf(wire.FailedToParse, "Invalid command format: the 'aggregate' field must specify a collection name or 1")
		}
		return r.aggregateDB(ctx, q, &a)
	}
	ns, err := q.NS()
	if err != nil {
		return Reply{}, err
	}
	if special := r.specialAggregate(ns, &a); special != nil {
		return special(ctx, q, ns, &a)
	}
	if firstStage(a.pipeline) == "$changeStream" {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "change streams are not supported yet")
	}
	mode, err := r.prepareWrite(ctx, q.DB, ns, &a)
	if err != nil {
		return Reply{}, err
	}
	var also foreign
	own := planFilter(leadingMatch(a.pipeline), a.collation)
	plan := func(c *partition.Collection) ([]*partition.Part, error) {
		parts, err := own(c)
		if err != nil || len(parts) != 1 {
			return parts, err // what names another collection is refused when the pipeline is planned over partitions
		}
		also, err = r.planForeign(ctx, q.DB, parts[0].Backend, a.pipeline)
		return append(parts[:1:1], also.parts...), err
	}
	err = r.within(ctx, ns, mode, plan, func(c *partition.Collection, parts []*partition.Part) error {
		r.stats.toAggregate.count(c, parts[:len(parts)-len(also.parts)])
		c = q.named(c)
		switch {
		case a.explain:
			reply, err = r.explainParts(ctx, q, c, parts[:len(parts)-len(also.parts)], nil)
		case len(parts) == 1+len(also.parts):
			reply, err = r.aggregateOne(ctx, q, c, parts, also)
		default:
			reply, err = r.aggregateMany(ctx, q, c, parts, &a)
		}
		return err
	})
	if errors.Is(err, errUnknownDB) {
		return r.aggregateNowhere(ctx, q, ns, &a)
	}
	if v := onView(err); v != nil && !a.explain {
		return r.readView(ctx, q, v, a.pipeline, 0, func(string) bool { return true })
	}
	return reply, routersCode(err)
}

// routersCode gives the error of a $merge whose fields no unique index covers the code that a router has for it (mongos-behaviour §6.5).
func routersCode(err error) error {
	const server, router = 51183, 51190
	if err == nil {
		return nil
	}
	if e := wire.AsError(err); e.Code == server {
		told := *e
		told.Code = router
		return &told
	}
	return err
}

// prepareWrite makes ready what a pipeline's last stage writes to, and tells in which mode the gates are to be passed. A database that does
// not exist yet is registered where the documents come from.
func (r *Router) prepareWrite(ctx context.Context, db, ns string, a *aggArgs) (partition.Mode, error) {
	to, err := writtenTo(db, a.pipeline)
	if err != nil || to == "" || a.explain {
		return partition.Read, err
	}
	toDB, coll := catalog.SplitNS(to)
	if err := checkDB(toDB); err != nil {
		return partition.Read, err
	}
	if err := checkCollection(toDB, coll); err != nil {
		return partition.Read, err
	}
	view := r.cfg.Table.View()
	if c := view.Collection(ns); c != nil && len(c.Parts) == 1 && view.Catalog.Database(toDB) == nil && toDB != "config" && toDB != "admin" {
		if err := r.cfg.Catalog.CreateDatabase(ctx, toDB, c.Parts[0].Backend); err != nil {
			return partition.Read, err
		}
	}
	return partition.Write, r.ensureCollection(ctx, toDB, to)
}

// aggregateOne passes a pipeline whole to the one partition that it concerns, parts[0]; the others are homes that it names.
func (r *Router) aggregateOne(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, also foreign) (Reply, error) {
	var drop func([]byte) bool
	var more func([]byte) []byte
	q.bornAfter(also.parts)
	if also.changed {
		drop = func(key []byte) bool { return string(key) == "pipeline" }
		more = func(d []byte) []byte { return appendPipeline(d, also.pipeline) }
	}
	return r.openOne(ctx, q, c, parts, q.appendFor(nil, parts[0], true, drop, more), 0, false)
}

// aggregateMany plans and runs a pipeline over several partitions.
func (r *Router) aggregateMany(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, a *aggArgs) (Reply, error) {
	return r.aggregateBehind(ctx, q, c, parts, a, a.pipeline, nil)
}

// aggregateBehind runs a pipeline over several partitions, behind the stages that before, if not nil, gives for each.
func (r *Router) aggregateBehind(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, a *aggArgs,
	pipeline []bson.Raw, before func(*partition.Part) []bson.Raw) (Reply, error) {
	plan, err := merge.PlanPipeline(pipeline, a.collation)
	if err != nil {
		return Reply{}, err
	}
	if err := checkMerge(q, plan.Sort, &findArgs{}); err != nil {
		return Reply{}, err
	}
	f := newFanout(r, q, c.Name, plan.Sort, plan.Projection)
	f.skip, f.limit, f.plain = plan.Skip, plan.Limit, true
	batchSize := a.batchSize
	merged := len(plan.Combine) > 0 || len(plan.Rest) > 0
	if merged {
		batchSize = 0
	}
	f.batchSize = min(batchSize, maxBatch)
	if _, err := r.openBranches(ctx, q, f, parts, aggregateMessages(q, parts, before, plan.Shard, f.batchSize), false); err != nil {
		f.close()
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, math.MaxInt32))
	}
	var src source = f
	if merged {
		src = newRest(q, f, plan, parts[0])
	}
	return r.firstBatch(ctx, q, c, src, parts, limit, a.hasBatchSize && a.batchSize == 0, false, false, false)
}

func aggregateMessages(q *Request, parts []*partition.Part, before func(*partition.Part) []bson.Raw, pipeline []bson.Raw, batchSize int64) [][]byte {
	drop := func(key []byte) bool { return string(key) == "pipeline" || string(key) == "cursor" }
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		stages := pipeline
		if before != nil {
			stages = append(before(p), pipeline...)
		}
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, q.appendFor(nil, p, true, drop, func(d []byte) []byte {
			return appendCursorArg(appendPipeline(d, stages), firstOf(batchSize, len(parts)))
		}))
	}
	return msgs
}

func appendPipeline(d []byte, pipeline []bson.Raw) []byte {
	at, d := bsoncore.AppendArrayElementStart(d, "pipeline")
	for i, s := range pipeline {
		d = bsoncore.AppendDocumentElement(d, arrayIndex(i), bsoncore.Document(s))
	}
	d, _ = bsoncore.AppendArrayEnd(d, at)
	return d
}

func appendCursorArg(d []byte, batchSize int64) []byte {
	at, d := bsoncore.AppendDocumentElementStart(d, "cursor")
	if batchSize > 0 {
		d = bsoncore.AppendInt64Element(d, "batchSize", batchSize)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	return d
}
