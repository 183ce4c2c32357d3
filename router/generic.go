package router

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// checkGeneric checks, of what parseShared has read, what mongos checks of any command before it runs one (mongos-behaviour §1.5).
func (r *Router) checkGeneric(q *Request) error {
	if err := q.api.check(q.Command, r.params.requireAPIVersion.Load()); err != nil {
		return err
	}
	return checkConcerns(q)
}

// apiFields are the Stable API's fields of one command.
type apiFields struct {
	version                                        bsoncore.Value
	hasStrict, strict, hasDeprecation, deprecation bool
}

// apiParams are a command's Stable API fields, to be compared; the version can only be 1.
type apiParams struct{ version, hasStrict, strict, hasDeprecation, deprecation bool }

func (a *apiFields) params() apiParams {
	return apiParams{a.version.Type != 0, a.hasStrict, a.strict, a.hasDeprecation, a.deprecation}
}

func (p apiParams) String() string {
	text := "{"
	for _, f := range [...]struct {
		name string
		has  bool
		v    any
	}{{"apiVersion", p.version, `"1"`}, {"apiStrict", p.hasStrict, p.strict}, {"apiDeprecationErrors", p.hasDeprecation, p.deprecation}} {
		if f.has {
			text += fmt.Sprintf(" %s: %v", f.name, f.v)
		}
	}
	return text + " }"
}

func (a *apiFields) check(c *Command, required bool) error {
	if a.version.Type == 0 {
		switch {
		case a.hasStrict, a.hasDeprecation:
			return wire.Errorf(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
		case required && !c.NoAuth:
			return wire.Errorf(498870, "The apiVersion parameter is required, please configure your MongoClient's API version")
		}
		return nil
	}
	v, ok := a.version.StringValueOK()
	switch {
	case !ok:
		return typeMismatch("apiVersion", a.version, "string")
	case v != "1":
		return wire.Errorf(wire.APIVersionError, "API version must be \"1\"")
	case a.strict && !c.API1:
		return wire.Errorf(wire.APIStrictError, "Provided apiStrict:true, but the command %s is not in API Version 1", c.Name)
	}
	return nil
}

// noWriteConcern are commands that take no writeConcern; those that read take none, and of the others only some.
var noWriteConcern = map[string]bool{
	"find": true, "getMore": true, "killCursors": true, "count": true, "distinct": true, "explain": true, "ping": true,
	"listCollections": true, "listDatabases": true, "listIndexes": true, "collStats": true, "dbStats": true, "dataSize": true,
	"serverStatus": true, "hostInfo": true, "connectionStatus": true, "currentOp": true, "killOp": true, "getParameter": true,
	"startSession": true, "endSessions": true, "refreshSessions": true, "killSessions": true,
}

// noSnapshot are commands that take readConcern, but not of the level snapshot.
var noSnapshot = map[string]bool{"listDatabases": true, "count": true, "explain": true, "listCollections": true, "listIndexes": true}

func checkConcerns(q *Request) error {
	if q.WriteConcern != nil {
		if noWriteConcern[q.Command.Name] {
			return wire.Errorf(wire.InvalidOptions, "Command %s does not support writeConcern", q.Command.Name)
		}
		if err := checkProvenance("writeConcern", q.WriteConcern); err != nil {
			return err
		}
	}
	if q.ReadConcern == nil {
		return nil
	}
	if level, _ := bsoncore.Document(q.ReadConcern).Lookup("level").StringValueOK(); level == "snapshot" && noSnapshot[q.Command.Name] {
		return wire.Errorf(wire.InvalidOptions, "read concern level snapshot is not supported by the command %s", q.Command.Name)
	}
	return checkProvenance("readConcern", q.ReadConcern)
}

// checkProvenance refuses what only servers may say of a concern.
func checkProvenance(field string, concern bson.Raw) error {
	v, err := bsoncore.Document(concern).LookupErr("provenance")
	if err != nil {
		return nil
	}
	if s, ok := v.StringValueOK(); !ok || s != "clientSupplied" {
		return wire.Errorf(wire.InvalidOptions, "%s.provenance must be unset or \"clientSupplied\"", field)
	}
	return nil
}

// helpReply is what help:true gives in place of running the command.
func helpReply(c *Command) (Reply, error) {
	return docReply(bson.D{{Key: "help", Value: "help for: " + c.Name + " " + c.Help}})
}

// docReply makes a reply of doc and ok:1.
func docReply(doc bson.D) (Reply, error) {
	raw, err := bson.Marshal(append(doc, bson.E{Key: "ok", Value: 1.0}))
	if err != nil {
		return Reply{}, wire.Errorf(wire.InternalError, "the reply cannot be encoded: %v", err)
	}
	return Reply{Body: raw}, nil
}

// notAPI1 are stages that the Stable API does not have.
var notAPI1 = map[string]bool{"$currentOp": true, "$indexStats": true, "$listLocalSessions": true, "$listSessions": true,
	"$listSampledQueries": true, "$planCacheStats": true, "$search": true, "$searchMeta": true, "$shardedDataDistribution": true, "$collStats": true}

// strictStages refuses stages that the Stable API does not have; of $collStats it has the count.
func strictStages(pipeline []bson.Raw) error {
	for _, stage := range pipeline {
		elems, err := bsoncore.Document(stage).Elements()
		if err != nil || len(elems) != 1 || !notAPI1[elems[0].Key()] {
			continue
		}
		if name := elems[0].Key(); name != "$collStats" || !onlyCount(elems[0].Value()) {
			return wire.Errorf(wire.APIStrictError, "stage %s is not allowed with 'apiStrict: true' in API Version 1", name)
		}
	}
	return nil
}

func onlyCount(v bsoncore.Value) bool {
	doc, ok := v.DocumentOK()
	if !ok {
		return false
	}
	elems, err := doc.Elements()
	return err == nil && len(elems) == 1 && elems[0].Key() == "count"
}
