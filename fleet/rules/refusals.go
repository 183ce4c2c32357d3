package rules

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

const (
	unknownFieldCode     wire.Code = 40415
	snapshotTransactions wire.Code = 5557800
)

// newField is a field that commands have since a version.
type newField struct {
	// field is the field's name; behind a dot that of the statements' documents.
	field string
	since Version
	// commands are those that have it.
	commands string
}

// later is after every version that is known.
const later Version = 1000

// newFields are what the stand-in knows and older servers do not. The names are those of the
// commands' .idl files.
var newFields = []newField{
	{"bypassEmptyTsReplacement", V80, writes},
	{"includeQueryStatsMetrics", V80, "find aggregate getmore"},
	{"querySettings", V80, "find aggregate"},
	{"rawData", later, writes + " find aggregate"},
	{"updates.sort", V80, "update"},
}

// idlName is how a command is called in the errors of its parser.
func idlName(r *Request) string {
	switch {
	case r.Is("find"):
		return "FindCommandRequest"
	case r.Is("findandmodify"):
		return "findAndModify"
	case r.Is("getmore"):
		return "getMore"
	}
	return strings.ToLower(r.Name)
}

func (s *State) unknownField(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	for _, f := range newFields {
		if s.settings.Version >= f.since || !hasWord(f.commands, r.Name) || !hasField(r, f.field) {
			continue
		}
		reply := refuse(unknownFieldCode, "BSON field '%s.%s' is an unknown field.", idlName(r), f.field)
		if s.settings.Version >= V80 {
			reply = with(reply, bson.E{Key: "codeName", Value: "IDLUnknownField"})
		}
		return reply, nil
	}
	return nil, nil
}

func hasWord(words, word string) bool {
	for _, w := range strings.Fields(words) {
		if strings.EqualFold(w, word) {
			return true
		}
	}
	return false
}

func hasField(r *Request, field string) bool {
	array, inner, nested := strings.Cut(field, ".")
	if !nested {
		return !r.Lookup(field).IsZero()
	}
	for _, doc := range r.Docs(array) {
		if _, err := doc.LookupErr(inner); err == nil {
			return true
		}
	}
	return false
}

// unnamed takes the name away that the code got later.
func (s *State) unnamed(*Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != unknownFieldCode {
			return reply
		}
		return with(reply, bson.E{Key: "codeName", Value: unknownFieldCode.Name()})
	}
}

func (s *State) noSuchCommand(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	return refuse(wire.CommandNotFound, "no such command: '%s'", r.Name), nil
}

func (s *State) standalone(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.Lookup("txnNumber").IsZero() || r.Is("hello", "ismaster") {
		return nil, nil
	}
	return refuse(wire.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos"), nil
}

// readConcern is the level and the afterClusterTime of a request.
func readConcern(r *Request) (level string, after bson.Timestamp) {
	d, ok := r.Lookup("readConcern").DocumentOK()
	if !ok {
		return "", bson.Timestamp{}
	}
	level, _ = d.Lookup("level").StringValueOK()
	return level, timeOf(d.Lookup("afterClusterTime"))
}

func (s *State) levels(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	level, after := readConcern(r)
	if !after.IsZero() && (level == "linearizable" || level == "available") {
		return refuse(wire.InvalidOptions, "afterClusterTime field can be set only if level is equal to majority, local, or snapshot"), nil
	}
	return nil, nil
}

func (s *State) transactionsConcern(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if r.DB != "config" || r.Target() != "transactions" || !r.Lookup("autocommit").IsZero() {
		return nil, nil
	}
	if level, after := readConcern(r); level == "snapshot" || level == "majority" && !after.IsZero() {
		return refuse(snapshotTransactions, "Snapshot reads and causal consistent majority reads on config.transactions are not supported"), nil
	}
	return nil, nil
}

// listed asks the server for the entry of a collection in listCollections; nil when there is none or
// the server does not say.
func listed(r *Request, name string) bson.Raw {
	if name == "" {
		return nil
	}
	reply, err := r.Ask(marshal(bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: name}}},
		{Key: "nameOnly", Value: true}, {Key: "$db", Value: r.DB}}))
	if err != nil {
		r.Cut()
		return nil
	}
	first, _ := reply.Lookup("cursor", "firstBatch", "0").DocumentOK()
	return first
}

func (s *State) noCursorTimeout(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if on, _ := r.Lookup("noCursorTimeout").BooleanOK(); !on {
		return nil, nil
	}
	switch kind, _ := listed(r, r.Target()).Lookup("type").StringValueOK(); kind {
	case "view", "timeseries":
		return refuse(wire.InvalidPipelineOperator, "Option noCursorTimeout not supported in aggregation."), nil
	}
	return nil, nil
}

func (s *State) createAgain(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	if listed(r, r.Target()) == nil {
		return nil, nil
	}
	return refuse(wire.NamespaceExists, "Collection %s.%s already exists.", r.DB, r.Target()), nil
}

// dropNothing knows by the reply, which names what was dropped, that there was something.
func (s *State) dropNothing(*Request) (bson.Raw, func(bson.Raw) bson.Raw) {
	return nil, func(reply bson.Raw) bson.Raw {
		if codeOf(reply) != 0 || !reply.Lookup("ns").IsZero() {
			return reply
		}
		return timed(refuse(wire.NamespaceNotFound, "ns not found"), reply)
	}
}
