package router

import (
	"net"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
)

// explained adds up what the partitions say of an execution.
type explained struct {
	returned, keys, docs, slowest, millis int64

	stages, plans    *bsoncore.ArrayBuilder
	executed, others bool // whether there are executionStats, and other plans in them
}

// add takes one partition's executionStats.
func (x *explained) add(backend string, st bsoncore.Document) {
	x.executed = true
	x.returned += number(st, "nReturned")
	x.keys += number(st, "totalKeysExamined")
	x.docs += number(st, "totalDocsExamined")
	x.millis += number(st, "executionTimeMillis")
	x.slowest = max(x.slowest, number(st, "executionTimeMillis"))
	one := bsoncore.NewDocumentBuilder().AppendString("shardName", backend)
	elems, _ := st.Elements()
	for _, e := range elems {
		if e.Key() == "allPlansExecution" {
			x.others = true
			x.plans.AppendDocument(bsoncore.NewDocumentBuilder().AppendString("shardName", backend).AppendValue("allPlans", e.Value()).Build())
			continue
		}
		one.AppendValue(e.Key(), e.Value())
	}
	x.stages.AppendDocument(one.Build())
}

// stats is mongos' executionStats.
func (x *explained) stats(stage string) bsoncore.Document {
	stages := bsoncore.NewDocumentBuilder().AppendString("stage", stage).AppendInt64("nReturned", x.returned).
		AppendInt64("executionTimeMillis", x.slowest).AppendInt64("totalKeysExamined", x.keys).AppendInt64("totalDocsExamined", x.docs).
		AppendInt64("totalChildMillis", x.millis).AppendArray("shards", x.stages.Build()).Build()
	out := bsoncore.NewDocumentBuilder().AppendInt64("nReturned", x.returned).AppendInt64("executionTimeMillis", x.slowest).
		AppendInt64("totalKeysExamined", x.keys).AppendInt64("totalDocsExamined", x.docs).AppendDocument("executionStages", stages)
	if x.others {
		out.AppendArray("allPlansExecution", x.plans.Build())
	}
	return out.Build()
}

// explainBody builds mongos' shape of what every command but an aggregate explains (mongos-behaviour §3.13). bodies are the parts' answers without physical
// names; inner is the explained command.
func (r *Router) explainBody(q *Request, inner bsoncore.Document, stage string, parts []*partition.Part, bodies []bson.Raw) bson.Raw {
	shards := bsoncore.NewArrayBuilder()
	x := explained{stages: bsoncore.NewArrayBuilder(), plans: bsoncore.NewArrayBuilder()}
	var parameters bsoncore.Value
	for i, p := range parts {
		one := bsoncore.NewDocumentBuilder().AppendString("shardName", p.Backend).AppendString("connectionString", r.hostOf(p.Backend))
		whole := bsoncore.Document(bodies[i])
		if v := whole.Lookup("serverInfo"); v.Type == bsoncore.TypeEmbeddedDocument {
			one.AppendValue("serverInfo", v)
		}
		if v := whole.Lookup("serverParameters"); v.Type == bsoncore.TypeEmbeddedDocument {
			parameters = v
		}
		if planner, ok := whole.Lookup("queryPlanner").DocumentOK(); ok {
			elems, _ := planner.Elements()
			for _, e := range elems {
				one.AppendValue(e.Key(), e.Value())
			}
		}
		shards.AppendDocument(one.Build())
		if st, ok := whole.Lookup("executionStats").DocumentOK(); ok {
			x.add(p.Backend, st)
		}
	}
	winning := bsoncore.NewDocumentBuilder().AppendString("stage", stage).AppendArray("shards", shards.Build()).Build()
	out := bsoncore.NewDocumentBuilder().AppendDocument("queryPlanner",
		bsoncore.NewDocumentBuilder().AppendInt32("mongosPlannerVersion", 1).AppendDocument("winningPlan", winning).Build())
	if x.executed {
		out.AppendDocument("executionStats", x.stats(stage))
	}
	out.AppendDocument("serverInfo", r.serverInfo())
	if parameters.Type != 0 {
		out.AppendValue("serverParameters", parameters)
	}
	return bson.Raw(out.AppendDocument("command", explainedCommand(inner, q.DB)).AppendDouble("ok", 1).Build())
}

// explainedCommand is the command as the client gave it, with the database.
func explainedCommand(inner bsoncore.Document, db string) bsoncore.Document {
	dst := make([]byte, 4, len(inner)+len(db)+16)
	elems, _ := inner.Elements()
	for _, e := range elems {
		if !consumed(e.KeyBytes()) {
			dst = append(dst, e...)
		}
	}
	return bsoncore.Document(closeDocument(bsoncore.AppendStringElement(dst, "$db", db), 0))
}

// serverInfo tells who has explained.
func (r *Router) serverInfo() bsoncore.Document {
	_, port, _ := net.SplitHostPort(r.cfg.Server)
	n, _ := strconv.Atoi(port)
	return bsoncore.NewDocumentBuilder().AppendString("host", hostname()).AppendInt32("port", int32(n)).
		AppendString("version", r.version()).AppendString("gitVersion", buildRevision()).Build()
}
