package router

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// maxViewDepth is how deep views may lie upon one another (mongod's limit).
const maxViewDepth = 20

// onView returns the view that a read met, nil when err says something else.
func onView(err error) *viewError {
	var v *viewError
	if errors.As(err, &v) {
		return v
	}
	return nil
}

// readView runs stages behind a view's pipeline over what the view is on, as a mongos does. keep says which of the command's own fields the aggregate takes over.
func (r *Router) readView(ctx context.Context, q *Request, v *viewError, stages []bson.Raw, batchSize int64, keep func(key string) bool) (Reply, error) {
	over := *q
	if over.viewDepth++; over.viewDepth > maxViewDepth {
		return Reply{}, wire.Errorf(wire.ViewDepthLimitExceeded, "View depth too deep or view cycle detected; maximum depth is %d", maxViewDepth)
	}
	if over.asNS == "" {
		over.asNS = v.ns
	}
	if err := v.def.sameCollation(q.Msg.Body); err != nil {
		return Reply{}, err
	}
	start, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendStringElement(body, "aggregate", v.def.on)
	body = appendPipeline(body, slices.Concat(v.def.pipeline, stages))
	elems, _ := bsoncore.Document(q.Msg.Body).Elements()
	for _, e := range elems[1:] {
		key := e.Key()
		if key != "pipeline" && key != "collation" && (consumed(e.KeyBytes()) || keep(key)) {
			body = append(body, e...)
		}
	}
	// What it is on may have a default collation of its own.
	simple := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "locale", "simple"))
	if v.def.collation != nil {
		simple = bsoncore.Document(v.def.collation)
	}
	body = bsoncore.AppendDocumentElement(body, "collation", simple)
	if q.Name != "aggregate" {
		at := int32(0)
		at, body = bsoncore.AppendDocumentElementStart(body, "cursor")
		if batchSize >= 0 {
			body = bsoncore.AppendInt64Element(body, "batchSize", batchSize)
		}
		body, _ = bsoncore.AppendDocumentEnd(body, at)
	}
	body, _ = bsoncore.AppendDocumentEnd(body, start)
	over.Msg = &wire.Msg{Body: bson.Raw(body)}
	over.Name, over.Command = "aggregate", r.commands["aggregate"]
	over.First = bsoncore.Document(body).Index(0).Value()
	reply, err := r.aggregate(ctx, &over)
	q.note = over.note
	return reply, err
}

// sameCollation refuses a collation other than the view's own: 167.
func (d *viewDef) sameCollation(body bson.Raw) error {
	asked, err := bsoncore.Document(body).LookupErr("collation")
	if err != nil {
		return nil
	}
	doc, err := documentOrNull("collation", asked)
	if err != nil || len(doc) <= 5 {
		return err
	}
	special, err := notSimple(asked)
	if err != nil || !special && d.collation == nil {
		return err
	}
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		if own, err := bsoncore.Document(d.collation).LookupErr(e.Key()); err != nil || order.Compare(own, e.Value()) != 0 {
			return wire.Errorf(wire.OptionNotSupportedOnView, "Cannot override a view's default collation")
		}
	}
	return nil
}

// named is a collection under the name of the view that it is read through.
func (q *Request) named(c *partition.Collection) *partition.Collection {
	if q.asNS == "" {
		return c
	}
	as := *c
	as.NS = q.asNS
	return &as
}

func stageOf(name string, v bsoncore.Value) bson.Raw {
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, name, v)))
}

func documentValue(d bson.Raw) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}
}

func int64Value(n int64) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt64, Data: bsoncore.AppendInt64(nil, n)}
}

// findView is a find through a view; what has no counterpart in a pipeline is 168, as mongod says.
func (r *Router) findView(ctx context.Context, q *Request, v *viewError, a *findArgs) (Reply, error) {
	for _, option := range []string{"min", "max", "returnKey", "showRecordId", "tailable", "awaitData", "oplogReplay"} {
		if got, err := bsoncore.Document(q.Msg.Body).LookupErr(option); err == nil && (got.Type == bsoncore.TypeEmbeddedDocument && len(got.Data) > 5 || isTrue(got)) {
			return Reply{}, wire.Errorf(wire.InvalidPipelineOperator, "Option %s not supported in aggregation.", option)
		}
	}
	if a.singleBatch && a.limit != 1 {
		return Reply{}, wire.Errorf(wire.InvalidPipelineOperator, "Option singleBatch not supported in aggregation.")
	}
	var stages []bson.Raw
	if len(a.filter) > 5 {
		stages = append(stages, stageOf("$match", documentValue(a.filter)))
	}
	if len(a.sort) > 5 {
		stages = append(stages, stageOf("$sort", documentValue(a.sort)))
	}
	if a.skip > 0 {
		stages = append(stages, stageOf("$skip", int64Value(a.skip)))
	}
	if a.limit > 0 {
		stages = append(stages, stageOf("$limit", int64Value(a.limit)))
	}
	if len(a.projection) > 5 {
		stages = append(stages, stageOf("$project", documentValue(a.projection)))
	}
	batchSize := int64(-1)
	if a.hasBatchSize {
		batchSize = a.batchSize
	}
	return r.readView(ctx, q, v, stages, batchSize, func(key string) bool {
		return key == "hint" || key == "let" || key == "allowDiskUse" || key == "comment" || key == "readConcern"
	})
}

// readViewWhole is readView for a result that is one document at most; nil when there is none.
func (r *Router) readViewWhole(ctx context.Context, q *Request, v *viewError, stages []bson.Raw) (bsoncore.Document, error) {
	over := *q
	over.asNS = v.ns
	reply, err := r.readView(ctx, &over, v, stages, -1, func(key string) bool { return key == "hint" || key == "comment" || key == "readConcern" })
	if err != nil {
		return nil, err
	}
	if reply.Owner != nil {
		defer reply.Owner.Release()
	}
	doc, ok := bsoncore.Document(reply.Body).Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok {
		return nil, nil
	}
	return bsoncore.Document(slices.Clone(doc)), nil
}

// countView counts through a view.
func (r *Router) countView(ctx context.Context, q *Request, v *viewError, filter bson.Raw, skip, limit int64) (int64, error) {
	var stages []bson.Raw
	if len(filter) > 5 {
		stages = append(stages, stageOf("$match", documentValue(filter)))
	}
	if skip > 0 {
		stages = append(stages, stageOf("$skip", int64Value(skip)))
	}
	if limit > 0 {
		stages = append(stages, stageOf("$limit", int64Value(limit)))
	}
	stages = append(stages, stageOf("$count", bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "n")}))
	doc, err := r.readViewWhole(ctx, q, v, stages)
	n, _ := doc.Lookup("n").AsInt64OK()
	return n, err
}

// distinctView lists a field's values through a view: arrays on the path are opened, as distinct opens them.
func (r *Router) distinctView(ctx context.Context, q *Request, v *viewError, filter bson.Raw) (Reply, error) {
	field, ok := bsoncore.Document(q.Msg.Body).Lookup("key").StringValueOK()
	if !ok {
		return Reply{}, wire.Errorf(40414, "BSON field 'distinct.key' is missing but a required field")
	}
	var stages []bson.Raw
	if len(filter) > 5 {
		stages = append(stages, stageOf("$match", documentValue(filter)))
	}
	for path := range pathsTo(field) {
		unwind := bsoncore.BuildDocument(nil, bsoncore.AppendBooleanElement(bsoncore.AppendStringElement(nil, "path", "$"+path), "preserveNullAndEmptyArrays", true))
		stages = append(stages, stageOf("$unwind", documentValue(bson.Raw(unwind))))
	}
	set := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$addToSet", "$"+field))
	group := bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(bsoncore.AppendNullElement(nil, "_id"), "values", set))
	stages = append(stages, stageOf("$group", documentValue(bson.Raw(group))))
	doc, err := r.readViewWhole(ctx, q, v, stages)
	if err != nil {
		return Reply{}, err
	}
	values, _ := doc.Lookup("values").ArrayOK()
	all, _ := values.Values()
	slices.SortStableFunc(all, order.Compare)
	return distinctValues(all)
}

// pathsTo yields "a", "a.b", "a.b.c" for the last.
func pathsTo(field string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for at := 0; ; {
			dot := strings.IndexByte(field[at:], '.')
			if dot < 0 {
				yield(field)
				return
			}
			if !yield(field[:at+dot]) {
				return
			}
			at += dot + 1
		}
	}
}
