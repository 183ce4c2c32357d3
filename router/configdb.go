package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// The database config is not stored: its collections are made of the catalog when they are read, in mongos' shapes, and one
// backend runs the client's query over them ($documents). So every filter, sort and stage works that a server knows.

// configRead answers a read of config.
func (r *Router) configRead(ctx context.Context, q *Request) (Reply, error) {
	coll, err := q.Collection()
	if err != nil {
		return Reply{}, err
	}
	docs, err := r.configDocuments(ctx, coll)
	if err != nil {
		return Reply{}, err
	}
	switch q.Command.Name {
	case "find":
		return r.configFind(ctx, q, coll, docs)
	case "aggregate":
		return r.configAggregate(ctx, q, coll, docs)
	case "count":
		return r.configCount(ctx, q, docs)
	}
	return r.configDistinct(ctx, q, docs)
}

// configRun runs stages over documents and returns the cursor of the answer.
func (r *Router) configRun(ctx context.Context, q *Request, docs []bson.Raw, stages []bson.Raw) (*rest, error) {
	f := newFanout(r, q, "", order.Sort{}, merge.Projection{})
	home := &partition.Part{Home: partition.Home{Backend: r.cfg.CatalogBackend, DB: catalog.DB}}
	s := newRest(q, f, merge.Plan{Rest: stages, Limit: -1}, home)
	s.ended = true
	b := &batch{}
	for _, d := range docs {
		b.add(d)
		if tooManyLiterals(b, stages) {
			return nil, wire.Errorf(wire.QueryExceededMemoryLimitNoDiskUseAllowed, "the collection of config is larger than %d MB", restMax>>20)
		}
	}
	if err := s.run(ctx, q, b, s.stages); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func stage(name string, v bsoncore.Value) bson.Raw {
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, name, v)))
}

func (r *Router) configFind(ctx context.Context, q *Request, coll string, docs []bson.Raw) (Reply, error) {
	a, err := parseFind(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	var stages []bson.Raw
	doc := func(name string, d bson.Raw) {
		if len(d) > 5 {
			stages = append(stages, stage(name, bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}))
		}
	}
	num := func(name string, n int64) {
		if n > 0 {
			stages = append(stages, stage(name, bsoncore.Value{Type: bsoncore.TypeInt64, Data: bsoncore.AppendInt64(nil, n)}))
		}
	}
	doc("$match", a.filter)
	doc("$sort", a.sort)
	num("$skip", a.skip)
	num("$limit", a.limit)
	doc("$project", a.projection)
	s, err := r.configRun(ctx, q, docs, stages)
	if err != nil {
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, maxBatch))
	}
	return r.firstBatch(ctx, q, &partition.Collection{NS: "config." + coll}, s, nil, limit, a.hasBatchSize && a.batchSize == 0, a.singleBatch, false, false)
}

func (r *Router) configAggregate(ctx context.Context, q *Request, coll string, docs []bson.Raw) (Reply, error) {
	a, err := parseAggregate(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	if coll == "system.sessions" && firstStage(a.pipeline) == "$listSessions" {
		return r.aggregateSessions(ctx, q, "config."+coll, &a)
	}
	w := &stageWalk{db: "config", resolve: func(name, _ string) (string, error) {
		return "", wire.Errorf(wire.CommandNotSupported, "%s is not supported on the database config", name)
	}}
	if _, err := w.stages(a.pipeline, 0); err != nil {
		return Reply{}, err
	}
	s, err := r.configRun(ctx, q, docs, a.pipeline)
	if err != nil {
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, maxBatch))
	}
	return r.firstBatch(ctx, q, &partition.Collection{NS: "config." + coll}, s, nil, limit, a.hasBatchSize && a.batchSize == 0, false, false, false)
}

// configAll returns all documents that match the request's query.
func (r *Router) configAll(ctx context.Context, q *Request, docs []bson.Raw, more ...bson.Raw) ([]bson.Raw, error) {
	filter, _, err := filterArgs(q.Msg.Body)
	if err != nil {
		return nil, err
	}
	stages := more
	if len(filter) > 5 {
		stages = append([]bson.Raw{stage("$match", bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: filter})}, more...)
	}
	s, err := r.configRun(ctx, q, docs, stages)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var out []bson.Raw
	for {
		d, err := s.nextLimited(ctx, q)
		if d == nil || err != nil {
			return out, err
		}
		out = append(out, append(bson.Raw(nil), d...))
	}
}

func (r *Router) configCount(ctx context.Context, q *Request, docs []bson.Raw) (Reply, error) {
	skip, limit, err := countBounds(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	all, err := r.configAll(ctx, q, docs)
	n := max(0, int64(len(all))-skip)
	if limit > 0 {
		n = min(n, limit)
	}
	return Reply{Body: countReply(nil, n)}, err
}

func (r *Router) configDistinct(ctx context.Context, q *Request, docs []bson.Raw) (Reply, error) {
	key, ok := bsoncore.Document(q.Msg.Body).Lookup("key").StringValueOK()
	if !ok {
		return Reply{}, wire.Errorf(40414, "BSON field 'distinct.key' is missing but a required field")
	}
	group := bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$group", bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", "$"+key))))
	all, err := r.configAll(ctx, q, docs, bson.Raw(group))
	if err != nil {
		return Reply{}, err
	}
	values := bsoncore.NewArrayBuilder()
	for _, d := range all {
		if v, err := bsoncore.Document(d).LookupErr("_id"); err == nil {
			values.AppendValue(v)
		}
	}
	return Reply{Body: bson.Raw(bsoncore.NewDocumentBuilder().AppendArray("values", values.Build()).AppendDouble("ok", 1).Build())}, nil
}
