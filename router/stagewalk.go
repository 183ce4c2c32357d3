package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// maxSubPipelines is how deep pipelines may lie within one another (mongod's limit).
const maxSubPipelines = 20

// stageWalk goes through the collections that a pipeline's stages name and puts other names in their places.
type stageWalk struct {
	db string
	// resolve gives the collection's name to use for a namespace that a stage names.
	resolve func(stage, ns string) (coll string, err error)
	// changed says that a name was replaced.
	changed bool
}

// stages returns the pipeline with the names replaced. Stages in which nothing is named are passed on as they are.
func (w *stageWalk) stages(pipeline []bson.Raw, depth int) ([]bson.Raw, error) {
	if depth > maxSubPipelines {
		return nil, wire.Errorf(wire.MaxSubPipelineDepthExceeded, "Maximum number of nested sub-pipelines exceeded. Limit is %d", maxSubPipelines)
	}
	out := make([]bson.Raw, len(pipeline))
	for i, stage := range pipeline {
		var err error
		if out[i], err = w.stage(stage, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (w *stageWalk) stage(stage bson.Raw, depth int) (bson.Raw, error) {
	elems, err := bsoncore.Document(stage).Elements()
	if err != nil || len(elems) != 1 {
		return stage, nil // the backend says what is wrong with it
	}
	name, arg := elems[0].Key(), elems[0].Value()
	switch name {
	case "$lookup", "$graphLookup":
		arg, err = w.fields(name, arg, "from", depth)
	case "$unionWith":
		arg, err = w.nameOr(name, arg, "coll", depth)
	case "$merge":
		arg, err = w.nameOr(name, arg, "into", depth)
	case "$out":
		arg, err = w.name(name, arg)
	case "$facet":
		arg, err = w.facet(arg, depth)
	default:
		return stage, nil
	}
	if err != nil {
		return nil, err
	}
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, name, arg))), nil
}

// nameOr handles an argument that is a name or a document with one in field.
func (w *stageWalk) nameOr(stage string, arg bsoncore.Value, field string, depth int) (bsoncore.Value, error) {
	if arg.Type == bsoncore.TypeString {
		return w.name(stage, arg)
	}
	return w.fields(stage, arg, field, depth)
}

// fields replaces the name in one field of a document, and what the pipeline in its field of that name names. A $lookup without
// "from" runs its pipeline's own documents.
func (w *stageWalk) fields(stage string, arg bsoncore.Value, field string, depth int) (bsoncore.Value, error) {
	return eachField(arg, func(key string, v bsoncore.Value) (bsoncore.Value, error) {
		switch key {
		case field:
			return w.name(stage, v)
		case "pipeline":
			return w.pipeline(v, depth+1)
		}
		return v, nil
	})
}

func (w *stageWalk) facet(arg bsoncore.Value, depth int) (bsoncore.Value, error) {
	return eachField(arg, func(_ string, v bsoncore.Value) (bsoncore.Value, error) { return w.pipeline(v, depth+1) })
}

// eachField returns a document with the values that replace gives; what is no document is passed on as it is.
func eachField(arg bsoncore.Value, replace func(key string, v bsoncore.Value) (bsoncore.Value, error)) (bsoncore.Value, error) {
	doc, ok := arg.DocumentOK()
	if !ok {
		return arg, nil
	}
	elems, _ := doc.Elements()
	start, d := bsoncore.AppendDocumentStart(nil)
	for _, e := range elems {
		v, err := replace(e.Key(), e.Value())
		if err != nil {
			return arg, err
		}
		d = bsoncore.AppendValueElement(d, e.Key(), v)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}, nil
}

func (w *stageWalk) pipeline(v bsoncore.Value, depth int) (bsoncore.Value, error) {
	arr, ok := v.ArrayOK()
	if !ok {
		return v, nil
	}
	values, err := arr.Values()
	if err != nil {
		return v, wire.Errorf(wire.InvalidBSON, "a pipeline is not a valid array")
	}
	stages := make([]bson.Raw, len(values))
	for i, s := range values {
		d, ok := s.DocumentOK()
		if !ok {
			return v, wire.Errorf(wire.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		stages[i] = bson.Raw(d)
	}
	if stages, err = w.stages(stages, depth); err != nil {
		return v, err
	}
	start, d := bsoncore.AppendArrayStart(nil)
	for i, s := range stages {
		d = bsoncore.AppendDocumentElement(d, arrayIndex(i), bsoncore.Document(s))
	}
	d, _ = bsoncore.AppendArrayEnd(d, start)
	return bsoncore.Value{Type: bsoncore.TypeArray, Data: d}, nil
}

// name replaces "coll", or coll in {db, coll}.
func (w *stageWalk) name(stage string, v bsoncore.Value) (bsoncore.Value, error) {
	if coll, ok := v.StringValueOK(); ok {
		to, err := w.to(stage, w.db, coll)
		return bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, to)}, err
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return v, nil
	}
	coll, ok := doc.Lookup("coll").StringValueOK()
	if !ok {
		return v, nil
	}
	db := w.db
	if other, ok := doc.Lookup("db").StringValueOK(); ok {
		db = other
	}
	to, err := w.to(stage, db, coll)
	if err != nil {
		return v, err
	}
	return eachField(v, func(key string, v bsoncore.Value) (bsoncore.Value, error) {
		if key == "coll" {
			return bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, to)}, nil
		}
		return v, nil
	})
}

func (w *stageWalk) to(stage, db, coll string) (string, error) {
	to, err := w.resolve(stage, db+"."+coll)
	w.changed = w.changed || to != coll
	return to, err
}
