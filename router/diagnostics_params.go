package router

import (
	"context"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "getParameter", Admin: true, Help: "tells a server parameter", Run: r.getParameter},
		{Name: "setParameter", Admin: true, Help: "changes a server parameter", Run: r.setParameter},
	}
})

// params are the parameters that can be changed while the proxy runs. The zero value is every parameter's default.
type params struct {
	requireAPIVersion atomic.Bool
}

// parameter is one server parameter; set is nil when it cannot be changed at runtime.
type parameter struct {
	get func() any
	set func(v bsoncore.Value) error
}

// parameters are those of mongos' parameters that mean something here.
func (r *Router) parameters() map[string]parameter {
	fixed := func(v any) parameter { return parameter{get: func() any { return v }} }
	return map[string]parameter{
		"authenticationMechanisms":          fixed(bson.A{}),
		"cursorTimeoutMillis":               fixed(cursorTimeout.Milliseconds()),
		"clientCursorMonitorFrequencySecs":  fixed(int32(cursorSweep.Seconds())),
		"enableTestCommands":                fixed(false),
		"localLogicalSessionTimeoutMinutes": fixed(int32(sessionTimeoutMinutes)),
		"internalQueryFindCommandBatchSize": fixed(int32(firstBatch)),
		"maxBSONDepth":                      fixed(int32(wire.MaxDepth)),
		"requireApiVersion": {
			get: func() any { return r.params.requireAPIVersion.Load() },
			set: func(v bsoncore.Value) error {
				on, ok := v.BooleanOK()
				if !ok {
					return wire.Errorf(wire.BadValue, "requireApiVersion must be true or false")
				}
				r.params.requireAPIVersion.Store(on)
				return nil
			},
		},
	}
}

func (r *Router) getParameter(_ context.Context, q *Request) (Reply, error) {
	all := r.parameters()
	if s, ok := q.First.StringValueOK(); ok && s == "*" {
		var out bson.D
		for _, name := range sortedKeys(all) {
			out = append(out, bson.E{Key: name, Value: all[name].get()})
		}
		return docReply(out)
	}
	details, everything := false, false
	if d, ok := q.First.DocumentOK(); ok {
		details = isTrue(d.Lookup("showDetails"))
		everything = isTrue(d.Lookup("allParameters"))
	}
	var names []string
	if everything {
		names = sortedKeys(all)
	} else {
		elems, err := bsoncore.Document(q.Msg.Body).Elements()
		if err != nil {
			return Reply{}, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
		}
		for _, e := range elems[1:] {
			if _, ok := all[e.Key()]; ok {
				names = append(names, e.Key())
			}
		}
	}
	if len(names) == 0 {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "no option found to get")
	}
	var out bson.D
	for _, name := range names {
		p := all[name]
		value := p.get()
		if details {
			value = bson.D{{Key: "value", Value: value}, {Key: "settableAtRuntime", Value: p.set != nil}, {Key: "settableAtStartup", Value: false}}
		}
		out = append(out, bson.E{Key: name, Value: value})
	}
	return docReply(out)
}

func (r *Router) setParameter(_ context.Context, q *Request) (Reply, error) {
	elems, err := bsoncore.Document(q.Msg.Body).Elements()
	if err != nil {
		return Reply{}, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	all := r.parameters()
	var was bson.D
	for _, e := range elems[1:] {
		name := e.Key()
		if genericField(name) || name == "writeConcern" {
			continue
		}
		p, known := all[name]
		switch {
		case !known:
			return Reply{}, wire.Errorf(wire.InvalidOptions, "attempted to set unrecognized parameter [%s], use help:true to see options", name)
		case p.set == nil:
			return Reply{}, wire.Errorf(wire.IllegalOperation, "not allowed to change [%s] at runtime", name)
		case was != nil:
			return Reply{}, wire.Errorf(wire.InvalidOptions, "set one parameter at a time")
		}
		was = bson.D{{Key: "was", Value: p.get()}}
		if err := p.set(e.Value()); err != nil {
			return Reply{}, err
		}
	}
	if was == nil {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "no option found to set, use help:true to see options")
	}
	return docReply(was)
}
