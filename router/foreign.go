package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// checkForeign refuses stages that name another collection unless that collection lives, under its own name, on the backend
// that its database's primary is; anything else would be read or written as if it were a plain one.
func (r *Router) checkForeign(db string, pipeline []bson.Raw) error {
	view := r.cfg.Table.View()
	var bad error
	for _, stage := range pipeline {
		foreignIn(db, stage, func(stageName, ns string) {
			if bad == nil {
				bad = checkForeignNS(view, stageName, ns)
			}
		})
	}
	return bad
}

func checkForeignNS(view *partition.View, stage, ns string) error {
	c := view.Collection(ns)
	if c == nil || c.Map == nil {
		return nil
	}
	return wire.Errorf(wire.CommandNotSupported, "%s names '%s', which is sharded or was moved: that is not supported yet", stage, ns)
}

// foreignIn calls found for each collection that a stage, or a pipeline within it, names.
func foreignIn(db string, stage bson.Raw, found func(stage, ns string)) {
	elems, err := bsoncore.Document(stage).Elements()
	if err != nil {
		return
	}
	for _, e := range elems {
		v := e.Value()
		switch e.Key() {
		case "$lookup", "$graphLookup":
			if d, ok := v.DocumentOK(); ok {
				nameIn(db, e.Key(), d.Lookup("from"), found)
				pipelineIn(db, d.Lookup("pipeline"), found)
			}
		case "$unionWith":
			nameIn(db, e.Key(), v, found)
			if d, ok := v.DocumentOK(); ok {
				nameIn(db, e.Key(), d.Lookup("coll"), found)
				pipelineIn(db, d.Lookup("pipeline"), found)
			}
		case "$merge":
			nameIn(db, e.Key(), v, found)
			if d, ok := v.DocumentOK(); ok {
				nameIn(db, e.Key(), d.Lookup("into"), found)
			}
		case "$out":
			nameIn(db, e.Key(), v, found)
		case "$facet":
			if d, ok := v.DocumentOK(); ok {
				subs, _ := d.Elements()
				for _, s := range subs {
					pipelineIn(db, s.Value(), found)
				}
			}
		}
	}
}

func pipelineIn(db string, v bsoncore.Value, found func(stage, ns string)) {
	arr, ok := v.ArrayOK()
	if !ok {
		return
	}
	values, _ := arr.Values()
	for _, s := range values {
		if d, ok := s.DocumentOK(); ok {
			foreignIn(db, bson.Raw(d), found)
		}
	}
}

// nameIn reports "coll", or {db, coll}.
func nameIn(db, stage string, v bsoncore.Value, found func(stage, ns string)) {
	if s, ok := v.StringValueOK(); ok {
		found(stage, db+"."+s)
		return
	}
	d, ok := v.DocumentOK()
	if !ok {
		return
	}
	coll, ok := d.Lookup("coll").StringValueOK()
	if !ok {
		return
	}
	if other, ok := d.Lookup("db").StringValueOK(); ok {
		db = other
	}
	found(stage, db+"."+coll)
}

// aggregateFunc answers an aggregate that is not run on the collection's partitions alone.
type aggregateFunc func(ctx context.Context, q *Request, ns string, a *aggArgs) (Reply, error)

// firstStage returns the name of a pipeline's first stage, "" when there is none.
func firstStage(pipeline []bson.Raw) string {
	if len(pipeline) == 0 {
		return ""
	}
	elems, err := bsoncore.Document(pipeline[0]).Elements()
	if err != nil || len(elems) == 0 {
		return ""
	}
	return elems[0].Key()
}

// specialAggregate finds the handler of a pipeline whose first stage asks about the collection rather than its documents.
func (r *Router) specialAggregate(ns string, a *aggArgs) aggregateFunc {
	if f := r.special[firstStage(a.pipeline)]; f != nil {
		return f
	}
	return nil
}

// aggregateDB answers aggregate: 1, which reads no collection.
func (r *Router) aggregateDB(ctx context.Context, q *Request, a *aggArgs) (Reply, error) {
	if f := r.special[firstStage(a.pipeline)]; f != nil {
		return f(ctx, q, q.DB, a)
	}
	switch firstStage(a.pipeline) {
	case "$documents", "":
	case "$changeStream":
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "change streams are not supported yet")
	default:
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "the stage %s is not supported without a collection", firstStage(a.pipeline))
	}
	if err := r.checkForeign(q.DB, a.pipeline); err != nil {
		return Reply{}, err
	}
	home := partition.Part{Home: partition.Home{Backend: r.primaryOf(q.DB), DB: q.DB, Physical: "$cmd.aggregate"}}
	drop := func(key []byte) bool { return string(key) == "aggregate" }
	body := q.appendFor(nil, &home, true, drop, nil)
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendInt32Element(d, "aggregate", 1)
	elems, _ := bsoncore.Document(body).Elements()
	for _, e := range elems[1:] {
		d = append(d, e...)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	got, err := r.do(ctx, q.target(&home), wire.AppendMsg(nil, 0, 0, 0, d))
	if err != nil {
		return Reply{}, err
	}
	f := newFanoutPlain(r, q, &home)
	if err := settleOne(f.branches[0], got, nil); err != nil {
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, maxBatch))
	}
	c := &partition.Collection{NS: q.DB + ".$cmd.aggregate", DB: q.DB}
	return r.firstBatch(ctx, q, c, f, nil, limit, a.hasBatchSize && a.batchSize == 0, false, false, false)
}

// primaryOf returns the backend of a database's plain collections; the catalog's for one that is not known.
func (r *Router) primaryOf(db string) string {
	if d := r.cfg.Table.View().Catalog.Databases[db]; d != nil {
		return d.Primary
	}
	return r.cfg.CatalogBackend
}

// aggregateNowhere answers a pipeline over a collection of an unknown database: nothing, unless a stage makes documents without
// input, for which a server is asked that has no such collection.
func (r *Router) aggregateNowhere(_ context.Context, _ *Request, ns string, a *aggArgs) (Reply, error) {
	for _, s := range a.pipeline {
		switch firstStage([]bson.Raw{s}) {
		case "$out", "$merge", "$unionWith", "$changeStream":
			return Reply{}, wire.Errorf(wire.NamespaceNotFound, "database of '%s' not found", ns)
		}
	}
	return Reply{Body: cursorReply("firstBatch", &batch{}, 0, ns, false)}, nil
}
