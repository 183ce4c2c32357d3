package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

// shareBackend reports whether two of the partitions are on one backend.
func shareBackend(parts []*partition.Part) bool {
	seen := map[string]bool{}
	for _, p := range parts {
		if seen[p.Backend] {
			return true
		}
		seen[p.Backend] = true
	}
	return false
}

// collStatsBehind answers a pipeline that begins with $collStats where a backend holds several partitions: their documents
// become one, since clients (the shell's stats() among them) take each for all that the shard has, as it is behind a mongos.
func (r *Router) collStatsBehind(ctx context.Context, q *Request, c *partition.Collection, parts []*partition.Part, a *aggArgs) (Reply, error) {
	rest := a.pipeline[1:]
	if _, err := merge.PlanPipeline(rest, false); err != nil {
		return Reply{}, err
	}
	walk := &stageWalk{db: c.DB, resolve: func(name, _ string) (string, error) {
		return "", wire.Errorf(wire.CommandNotSupported, "%s is not supported behind $collStats of a sharded collection", name)
	}}
	if _, err := walk.stages(rest, 0); err != nil {
		return Reply{}, err
	}
	drop := func(key []byte) bool { return string(key) == "pipeline" || string(key) == "cursor" }
	results := r.fan(ctx, q, parts, drop, func(p *partition.Part, dst []byte) []byte {
		return appendCursorArg(appendPipeline(dst, []bson.Raw{a.pipeline[0], statsFields("$collStats", c, p)}), firstBatch)
	})
	if err := fanError(results, 0); err != nil {
		return Reply{}, err
	}
	docs, err := mergeStatsDocs(results)
	if err != nil {
		return Reply{}, err
	}
	s, err := r.configRun(ctx, q, docs, rest)
	if err != nil {
		return Reply{}, err
	}
	limit := firstBatch
	if a.hasBatchSize {
		limit = int(min(a.batchSize, maxBatch))
	}
	return r.firstBatch(ctx, q, c, s, parts, limit, a.hasBatchSize && a.batchSize == 0, false, false, false)
}

// mergeStatsDocs makes of the partitions' $collStats documents one per backend.
func mergeStatsDocs(results []partReply) ([]bson.Raw, error) {
	perBackend := map[string][]bsoncore.Document{}
	var order []string
	for _, res := range results {
		values, err := bsoncore.Document(res.body).Lookup("cursor", "firstBatch").Array().Values()
		if err != nil || len(values) != 1 {
			return nil, wire.Errorf(wire.InternalError, "backend '%s' answered $collStats with %d documents", res.part.Backend, len(values))
		}
		d, ok := values[0].DocumentOK()
		if !ok {
			return nil, wire.Errorf(wire.InternalError, "backend '%s' answered $collStats without a document", res.part.Backend)
		}
		id := res.part.Backend
		if perBackend[id] == nil {
			order = append(order, id)
		}
		perBackend[id] = append(perBackend[id], d)
	}
	docs := make([]bson.Raw, len(order))
	for i, id := range order {
		docs[i] = mergeStats(perBackend[id])
	}
	return docs, nil
}

// mergeStats adds up what can be added of one backend's $collStats documents; the rest is the first one's.
func mergeStats(docs []bsoncore.Document) bson.Raw {
	first := docs[0]
	if len(docs) == 1 {
		return bson.Raw(first)
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	elems, _ := first.Elements()
	for _, e := range elems {
		switch key := e.Key(); key {
		case "storageStats":
			var t collTotals
			for _, d := range docs {
				if s, ok := d.Lookup(key).DocumentOK(); ok {
					t.add(bson.Raw(s))
				}
			}
			dst = bsoncore.AppendDocumentElement(dst, key, bsoncore.BuildDocument(nil, t.appendTo(nil)))
		case "count":
			var n tally
			for _, d := range docs {
				n.add(d.Lookup(key))
			}
			dst = n.append(dst, key)
		case "latencyStats", "queryExecStats":
			dst = append(dst, addNumbers(e, docs)...)
		default:
			dst = append(dst, e...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// addNumbers returns the first document's element with the numbers in it, at any depth of embedded documents, summed over all of
// the documents. Arrays (the histograms of latencies) are the first one's.
func addNumbers(e bsoncore.Element, docs []bsoncore.Document) []byte {
	key := e.Key()
	inner, isDoc := e.Value().DocumentOK()
	if !isDoc {
		var n tally
		for _, d := range docs {
			if !n.add(d.Lookup(key)) {
				return e
			}
		}
		return n.append(nil, key)
	}
	var below []bsoncore.Document
	for _, d := range docs {
		if b, ok := d.Lookup(key).DocumentOK(); ok {
			below = append(below, b)
		}
	}
	var dst []byte
	elems, _ := inner.Elements()
	for _, e := range elems {
		dst = append(dst, addNumbers(e, below)...)
	}
	return bsoncore.AppendDocumentElement(nil, key, bsoncore.BuildDocument(nil, dst))
}
