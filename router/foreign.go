package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// foreign is what a pipeline names beside the collection that it runs on: the stages with the names that its backend knows, and the
// homes of what they name.
type foreign struct {
	pipeline []bson.Raw
	parts    []*partition.Part
	changed  bool
}

// planForeign looks up what a pipeline that runs whole on one backend names. Such a collection must live whole on that
// backend (115 otherwise): it would be read there as if it were empty, or be written beside the real one.
func (r *Router) planForeign(ctx context.Context, db, backend string, pipeline []bson.Raw) (foreign, error) {
	f := foreign{pipeline: pipeline}
	w := &stageWalk{db: db, resolve: func(stage, ns string) (string, error) {
		part, name, err := r.foreignHome(ctx, backend, stage, ns)
		if part != nil {
			f.parts = append(f.parts, part)
		}
		return name, err
	}}
	stages, err := w.stages(pipeline, 0)
	f.pipeline, f.changed = stages, w.changed
	return f, err
}

// foreignHome finds the home of a collection that a stage names, and its name there; there is no part for a database that does not exist.
func (r *Router) foreignHome(ctx context.Context, backend, stage, ns string) (*partition.Part, string, error) {
	db, coll := catalog.SplitNS(ns)
	if err := checkDB(db); err != nil {
		return nil, "", err
	}
	if err := checkCollection(db, coll); err != nil {
		return nil, "", err
	}
	if db == "config" {
		return nil, "", wire.Errorf(wire.CommandNotSupported, "%s names '%s': the database 'config' is served by the proxy and cannot be joined", stage, ns)
	}
	c, err := r.lookup(ctx, ns)
	if err != nil {
		return nil, "", err
	}
	switch {
	case c == nil:
		return nil, coll, nil
	case c.Dropped():
		return nil, catalog.PhysicalName(db, coll, 0, 0, 0), nil // no home ever has this name: it is empty
	case c.Sharded() && stage == "$out": // not on any router: the collection is replaced as a whole
		return nil, "", wire.Errorf(wire.NamespaceCannotBeSharded, "namespace '%s' is sharded so it can't be used for $out", ns)
	case len(c.Parts) != 1 || c.Sharded() && writesTo(stage):
		return nil, "", wire.Errorf(wire.CommandNotSupported, "%s names '%s', which is sharded: that is not supported", stage, ns)
	case c.Parts[0].Backend != backend:
		return nil, "", wire.Errorf(wire.CommandNotSupported,
			"%s names '%s', which lives on another backend ('%s') than the documents it would meet ('%s'): that is not supported; movePrimary or moveChunk can bring them together",
			stage, ns, c.Parts[0].Backend, backend)
	}
	err = r.checkView(ctx, c)
	if v := onView(err); v != nil {
		err = v.Unwrap() // it is not the view that the command is on
	}
	return c.Parts[0], c.Parts[0].Physical, err
}

func writesTo(stage string) bool { return stage == "$out" || stage == "$merge" }

// writtenTo returns the namespace that a pipeline's last stage writes to, "" when it only reads.
func writtenTo(db string, pipeline []bson.Raw) (ns string, err error) {
	if len(pipeline) == 0 || !writesTo(firstStage(pipeline[len(pipeline)-1:])) {
		return "", nil
	}
	w := &stageWalk{db: db, resolve: func(_, name string) (string, error) {
		ns = name
		_, coll := catalog.SplitNS(name)
		return coll, nil
	}}
	_, err = w.stages(pipeline[len(pipeline)-1:], 0)
	return ns, err
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
func (r *Router) aggregateDB(ctx context.Context, q *Request, a *aggArgs) (reply Reply, err error) {
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
	home := partition.Part{Home: partition.Home{Backend: r.primaryOf(q.DB), DB: q.DB, Physical: "$cmd.aggregate"}}
	if ns, err := writtenTo(q.DB, a.pipeline); ns != "" || err != nil {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s is not supported without a collection to read from", firstStage(a.pipeline[len(a.pipeline)-1:]))
	}
	var also foreign
	plan := func(*partition.Collection) ([]*partition.Part, error) {
		var err error
		also, err = r.planForeign(ctx, q.DB, home.Backend, a.pipeline)
		return also.parts, err
	}
	err = r.within(ctx, q.DB+".$cmd.aggregate", partition.Read, plan, func(*partition.Collection, []*partition.Part) error {
		reply, err = r.aggregateDocuments(ctx, q, a, &home, also)
		return err
	})
	return reply, err
}

// aggregateDocuments has a backend run a pipeline that begins with its own documents.
func (r *Router) aggregateDocuments(ctx context.Context, q *Request, a *aggArgs, home *partition.Part, also foreign) (Reply, error) {
	q.bornAfter(also.parts)
	drop := func(key []byte) bool { return string(key) == "aggregate" || string(key) == "pipeline" }
	body := q.appendFor(nil, home, true, drop, func(d []byte) []byte { return appendPipeline(d, also.pipeline) })
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendInt32Element(d, "aggregate", 1)
	elems, _ := bsoncore.Document(body).Elements()
	for _, e := range elems[1:] {
		d = append(d, e...)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	got, err := r.do(ctx, q.target(home), wire.AppendMsg(nil, 0, 0, 0, d))
	if err != nil {
		return Reply{}, err
	}
	f := newFanoutPlain(r, q, home)
	if err := settleOne(f.branches[0], got, nil); err != nil {
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, maxBatch))
	}
	c := &partition.Collection{NS: q.DB + ".$cmd.aggregate", DB: q.DB}
	return r.firstBatch(ctx, q, c, f, also.parts, limit, a.hasBatchSize && a.batchSize == 0, false, false, false)
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
func (r *Router) aggregateNowhere(_ context.Context, q *Request, ns string, a *aggArgs) (Reply, error) {
	for _, s := range a.pipeline {
		switch firstStage([]bson.Raw{s}) {
		case "$out", "$merge", "$unionWith", "$changeStream":
			return Reply{}, wire.Errorf(wire.NamespaceNotFound, "database of '%s' not found", ns)
		}
	}
	if q.asNS != "" {
		ns = q.asNS
	}
	return Reply{Body: cursorReply("firstBatch", &batch{}, 0, ns, false)}, nil
}
