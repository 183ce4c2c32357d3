package merge

import (
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// A $group over several partitions is done in two steps by public operators only: each partition groups what it has
// (partial), and the partial groups are grouped again by their _id (combine) and brought to their final form (finish).
// That the second step runs on a server too makes its arithmetic, its types and its notion of equal ids the server's own.

// accumulator is one field of a $group in its three parts; each is a list of elements for a document.
type accumulator struct {
	partial, combine, finish []byte
}

// partialName is the name under which a partition returns a part of accumulator i; clients' names do not matter then.
func partialName(i int, part string) string { return "a" + strconv.Itoa(i) + part }

// grouped plans a $group and what follows it.
func (p Plan) grouped(arg bsoncore.Value, rest []bson.Raw) (Plan, error) {
	spec, ok := arg.DocumentOK()
	if !ok {
		return p, wire.Errorf(15947, "a group's fields must be specified in an object")
	}
	elems, err := spec.Elements()
	if err != nil {
		return p, wire.Errorf(wire.InvalidBSON, "the $group stage is not a valid document")
	}
	var partial, combine, finish []byte
	hasID := false
	for i, e := range elems {
		if e.Key() == "_id" {
			hasID = true
			partial = append(partial, e...)
			combine = bsoncore.AppendStringElement(combine, "_id", "$_id")
			continue
		}
		a, err := planAccumulator(i, e)
		if err != nil {
			return p, err
		}
		partial = append(partial, a.partial...)
		combine = append(combine, a.combine...)
		finish = append(finish, a.finish...)
	}
	if !hasID {
		return p, wire.Errorf(15955, "a group specification must include an _id")
	}
	p.Shard = append(p.Shard, stage1("$group", build(partial)))
	merged := []bson.Raw{stage1("$group", build(combine))}
	if len(finish) > 0 {
		// The names of the parts could be a client's: the final fields are made in a document of their own.
		final := build(bsoncore.AppendStringElement(nil, "_id", "$_id"), finish)
		merged = append(merged, stage1("$replaceWith", final))
	}
	if p.collation {
		return p.then(append(merged, rest...))
	}
	// Sorted by their _id the partial groups of one group come together, so that they need not all be looked at at once.
	p.sortStage = stage1("$sort", build(bsoncore.AppendInt32Element(nil, "_id", 1)))
	if p.Sort, err = order.ParseSort(byID); err != nil {
		return p, err
	}
	p.Shard = append(p.Shard, p.sortStage)
	p.Combine = merged
	return p.then(rest)
}

var byID = bson.Raw(build(bsoncore.AppendInt32Element(nil, "_id", 1)))

// planAccumulator splits {field: {$acc: expr}}.
func planAccumulator(i int, e bsoncore.Element) (accumulator, error) {
	field := e.Key()
	if strings.ContainsRune(field, '.') {
		return accumulator{}, wire.Errorf(40235, "The field name '%s' cannot contain '.'", field)
	}
	doc, ok := e.Value().DocumentOK()
	if !ok {
		return accumulator{}, wire.Errorf(40234, "The field '%s' must be an accumulator object", field)
	}
	ops, err := doc.Elements()
	if err != nil || len(ops) != 1 {
		return accumulator{}, wire.Errorf(40238, "The field '%s' must specify one accumulator", field)
	}
	op, expr := ops[0].Key(), ops[0].Value()
	name := partialName(i, "")
	switch op {
	case "$sum":
		if !expr.IsNumber() {
			return sum(field, i, expr), nil
		}
		return plain(field, name, op, expr), nil
	case "$min", "$max", "$mergeObjects", "$first", "$last":
		return plain(field, name, op, expr), nil
	case "$count":
		if d, ok := expr.DocumentOK(); !ok || len(d) > 5 {
			return accumulator{}, wire.Errorf(wire.TypeMismatch, "$count takes no arguments, i.e. $count:{}")
		}
		return plain(field, name, "$sum", bsoncore.Value{Type: bsoncore.TypeInt32, Data: []byte{1, 0, 0, 0}}), nil
	case "$avg":
		return average(field, i, expr), nil
	case "$push":
		return arrays(field, name, op, expr, "$concatArrays"), nil
	case "$addToSet":
		return arrays(field, name, op, expr, "$setUnion"), nil
	}
	if !strings.HasPrefix(op, "$") {
		return accumulator{}, wire.Errorf(40234, "The field '%s' must be an accumulator object", field)
	}
	return accumulator{}, wire.Errorf(wire.CommandNotSupported,
		"the accumulator %s is not supported over several partitions; put a $match on the shard key first", op)
}

// plain is an accumulator that combines its own results.
func plain(field, name, op string, expr bsoncore.Value) accumulator {
	return accumulator{
		partial: bsoncore.AppendDocumentElement(nil, name, build(bsoncore.AppendValueElement(nil, op, expr))),
		combine: bsoncore.AppendDocumentElement(nil, name, build(bsoncore.AppendStringElement(nil, op, "$"+name))),
		finish:  bsoncore.AppendStringElement(nil, field, "$"+name),
	}
}

// sum adds the partitions' sums. The sum of int32 values alone is an int32 where it fits, though a partition's may not have done: so the widest
// type that was added is fetched too, as its place among the number types.
func sum(field string, i int, expr bsoncore.Value) accumulator {
	total, widest := partialName(i, "s"), partialName(i, "w")
	types := array(stringValue("int"), stringValue("long"), stringValue("double"), stringValue("decimal"))
	place := build(bsoncore.AppendArrayElement(nil, "$indexOfArray", array(arrayValue(types),
		docValue(build(bsoncore.AppendValueElement(nil, "$type", expr))))))
	is := func(op string, a, b bsoncore.Value) bsoncore.Value {
		return docValue(build(bsoncore.AppendArrayElement(nil, op, array(a, b))))
	}
	ref := stringValue("$" + total)
	narrow := build(bsoncore.AppendArrayElement(nil, "$and", array(
		is("$lte", stringValue("$"+widest), int32Value(0)),
		is("$eq", docValue(build(bsoncore.AppendStringElement(nil, "$type", "$"+total))), stringValue("long")),
		is("$gte", ref, int32Value(math.MinInt32)), is("$lte", ref, int32Value(math.MaxInt32)))))
	final := build(bsoncore.AppendArrayElement(nil, "$cond", array(docValue(narrow),
		docValue(build(bsoncore.AppendStringElement(nil, "$toInt", "$"+total))), ref)))
	return accumulator{
		partial: append(
			bsoncore.AppendDocumentElement(nil, total, build(bsoncore.AppendValueElement(nil, "$sum", expr))),
			bsoncore.AppendDocumentElement(nil, widest, build(bsoncore.AppendDocumentElement(nil, "$max", place)))...),
		combine: append(
			bsoncore.AppendDocumentElement(nil, total, build(bsoncore.AppendStringElement(nil, "$sum", "$"+total))),
			bsoncore.AppendDocumentElement(nil, widest, build(bsoncore.AppendStringElement(nil, "$max", "$"+widest)))...),
		finish: bsoncore.AppendDocumentElement(nil, field, final),
	}
}

// average sums and counts the numbers; a group without numbers averages to null.
func average(field string, i int, expr bsoncore.Value) accumulator {
	sum, count := partialName(i, "s"), partialName(i, "c")
	isNumber := build(bsoncore.AppendValueElement(nil, "$isNumber", expr))
	one := array(docValue(isNumber), int32Value(1), int32Value(0))
	cond := build(bsoncore.AppendArrayElement(nil, "$cond", one))
	none := build(bsoncore.AppendArrayElement(nil, "$eq", array(stringValue("$"+count), int32Value(0))))
	div := build(bsoncore.AppendArrayElement(nil, "$divide", array(stringValue("$"+sum), stringValue("$"+count))))
	final := build(bsoncore.AppendArrayElement(nil, "$cond", array(
		docValue(none), bsoncore.Value{Type: bsoncore.TypeNull}, docValue(div))))
	return accumulator{
		partial: append(
			bsoncore.AppendDocumentElement(nil, sum, build(bsoncore.AppendValueElement(nil, "$sum", expr))),
			bsoncore.AppendDocumentElement(nil, count, build(bsoncore.AppendDocumentElement(nil, "$sum", cond)))...),
		combine: append(
			bsoncore.AppendDocumentElement(nil, sum, build(bsoncore.AppendStringElement(nil, "$sum", "$"+sum))),
			bsoncore.AppendDocumentElement(nil, count, build(bsoncore.AppendStringElement(nil, "$sum", "$"+count)))...),
		finish: bsoncore.AppendDocumentElement(nil, field, final),
	}
}

// arrays collects the partitions' arrays and joins them.
func arrays(field, name, op string, expr bsoncore.Value, join string) accumulator {
	in := build(bsoncore.AppendArrayElement(nil, join, array(stringValue("$$value"), stringValue("$$this"))))
	empty := bsoncore.NewArrayBuilder().Build()
	reduce := build(bsoncore.AppendDocumentElement(nil, "$reduce", build(
		bsoncore.AppendStringElement(nil, "input", "$"+name),
		bsoncore.AppendArrayElement(nil, "initialValue", empty),
		bsoncore.AppendDocumentElement(nil, "in", in))))
	return accumulator{
		partial: bsoncore.AppendDocumentElement(nil, name, build(bsoncore.AppendValueElement(nil, op, expr))),
		combine: bsoncore.AppendDocumentElement(nil, name, build(bsoncore.AppendStringElement(nil, "$push", "$"+name))),
		finish:  bsoncore.AppendDocumentElement(nil, field, reduce),
	}
}

func array(values ...bsoncore.Value) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, v := range values {
		b.AppendValue(v)
	}
	return b.Build()
}

func docValue(d bsoncore.Document) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: d}
}

func arrayValue(a bsoncore.Array) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeArray, Data: a}
}

func stringValue(s string) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, s)}
}

func int32Value(i int32) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, i)}
}
