package merge

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// Plan is how an aggregation over several partitions runs: Shard on each, then a merge of what they return (sorted by Sort, skip
// and limit applied once), then Combine and Rest over the merged documents, which one backend runs on them.
type Plan struct {
	// Shard is the pipeline for each partition.
	Shard []bson.Raw
	// Sort is the order in which partitions return and in which they are merged; empty for none.
	Sort order.Sort
	// Projection tells where the sort fields of the merged documents are, and which of them the client is not to see.
	Projection Projection
	// sortStage is the stage that Sort was read from.
	sortStage bson.Raw
	// collation says that the proxy cannot compare strings.
	collation bool
	// Skip and Limit apply to the merged documents; Limit is negative for none.
	Skip, Limit int64
	// Combine are stages for all documents that are equal by Sort together: they may be run over the merged documents in parts
	// that do not divide such documents.
	Combine []bson.Raw
	// Rest are the stages after the merge; empty when there are none.
	Rest []bson.Raw
	// Streams says that Rest looks at one document at a time, so that it can run over the merged documents in parts.
	Streams bool
}

// perDocument are the stages that look at one document at a time.
var perDocument = map[string]bool{
	"$match": true, "$project": true, "$addFields": true, "$set": true, "$unset": true, "$replaceRoot": true,
	"$replaceWith": true, "$redact": true, "$unwind": true,
}

// afterMerge are the further stages that may follow a merge.
var afterMerge = map[string]bool{
	"$group": true, "$sort": true, "$limit": true, "$skip": true, "$count": true, "$sortByCount": true,
	"$sample": true, "$bucket": true, "$bucketAuto": true, "$setWindowFields": true, "$fill": true, "$densify": true,
}

// stageOf returns a stage's name and argument: 40323 for what is not a document with one field.
func stageOf(stage bson.Raw) (string, bsoncore.Value, error) {
	elems, err := bsoncore.Document(stage).Elements()
	if err != nil || len(elems) != 1 {
		return "", bsoncore.Value{}, wire.Errorf(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	return elems[0].Key(), elems[0].Value(), nil
}

// PlanPipeline plans a pipeline over several partitions; collation says that strings are compared by another collation than the simple
// one, by which the proxy cannot sort: that is 238 NotImplemented where it must. A stage that cannot be done exactly is 115 CommandNotSupported and named.
func PlanPipeline(pipeline []bson.Raw, collation bool) (Plan, error) {
	p := Plan{Limit: -1, collation: collation}
	for i, stage := range pipeline {
		name, arg, err := stageOf(stage)
		if err != nil {
			return p, err
		}
		if perDocument[name] {
			p.Shard = append(p.Shard, stage)
			continue
		}
		rest := pipeline[i+1:]
		switch name {
		case "$sort":
			return p.sorted(stage, arg, rest)
		case "$geoNear":
			if i > 0 {
				return p, wire.Errorf(40602, "$geoNear is only valid as the first stage in a pipeline.")
			}
			return p.near(arg, rest)
		case "$limit", "$skip":
			return p.limited(pipeline[i:])
		case "$group":
			return p.grouped(arg, rest)
		case "$count":
			return p.counted(stage, arg, rest)
		case "$sample":
			return p.sampled(arg, rest)
		case "$sortByCount":
			if err := checkSortByCount(arg); err != nil {
				return p, err
			}
			group, sort := sortByCount(arg)
			_, arg, _ := stageOf(group)
			return p.grouped(arg, append([]bson.Raw{sort}, rest...))
		}
		return p, unsupported(name)
	}
	return p, nil
}

// Merger returns the stages that describe what happens to the partitions' documents together, for explain.
func (p Plan) Merger() []bson.Raw {
	var stages []bson.Raw
	number := func(name string, n int64) {
		stages = append(stages, bson.Raw(build(bsoncore.AppendInt64Element(nil, name, n))))
	}
	if !p.Sort.Empty() {
		stages = append(stages, p.sortStage)
	}
	if p.Skip > 0 {
		number("$skip", p.Skip)
	}
	if p.Limit >= 0 {
		number("$limit", p.Limit)
	}
	return append(append(stages, p.Combine...), p.Rest...)
}

// then sets what follows the merge, refusing what cannot follow it.
func (p Plan) then(rest []bson.Raw) (Plan, error) {
	p.Streams = true
	for _, stage := range rest {
		name, _, err := stageOf(stage)
		if err != nil {
			return p, err
		}
		if !perDocument[name] {
			if !afterMerge[name] {
				return p, unsupported(name)
			}
			p.Streams = false
		}
	}
	p.Rest = append(p.Rest, rest...)
	return p, nil
}

func (p Plan) sorted(stage bson.Raw, arg bsoncore.Value, rest []bson.Raw) (Plan, error) {
	doc, ok := arg.DocumentOK()
	if !ok {
		return p, wire.Errorf(15973, "the $sort key specification must be an object")
	}
	s, err := order.ParseSort(bson.Raw(doc))
	if err != nil {
		return p, err
	}
	if s.Special() != order.ByFields {
		return p, wire.Errorf(wire.CommandNotSupported, "a $sort by $meta is not supported over several partitions")
	}
	if p.collation {
		return p, wire.Errorf(wire.NotImplemented, "a $sort under a collation is not supported over several partitions; put a $match on the shard key first")
	}
	p.Sort, p.sortStage = s, stage
	p.Shard = append(p.Shard, stage)
	return p.limited(rest)
}

// limited takes the $skip and $limit stages at the head of rest into the merge, and pushes what they allow to the partitions.
func (p Plan) limited(rest []bson.Raw) (Plan, error) {
	i := 0
	for ; i < len(rest); i++ {
		name, arg, err := stageOf(rest[i])
		if err != nil {
			return p, err
		}
		if name != "$limit" && name != "$skip" {
			break
		}
		n, err := stageNumber(name, arg)
		if err != nil {
			return p, err
		}
		if name == "$skip" {
			p = p.addSkip(n)
		} else if p.Limit < 0 || n < p.Limit {
			p.Limit = n
		}
	}
	if p.Limit >= 0 && p.Limit <= math.MaxInt64-p.Skip {
		p.Shard = append(p.Shard, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, "$limit", max(1, p.Limit+p.Skip)))))
	}
	return p.then(rest[i:])
}

// addSkip skips n more of what Skip and Limit let through.
func (p Plan) addSkip(n int64) Plan {
	if p.Limit >= 0 {
		n = min(n, p.Limit)
		p.Limit -= n
	}
	if p.Skip > math.MaxInt64-n {
		p.Skip = math.MaxInt64
	} else {
		p.Skip += n
	}
	return p
}

func stageNumber(name string, v bsoncore.Value) (int64, error) {
	code, least := wire.Code(5107200), int64(0)
	if name == "$limit" {
		code, least = 15958, 1
	}
	f, ok := v.AsFloat64OK()
	n, isInt := v.AsInt64OK()
	if !ok || !isInt && f != math.Trunc(f) {
		return 0, wire.Errorf(code, "invalid argument to %s stage: Expected an integer", name)
	}
	if v.Type == bsoncore.TypeDouble {
		if f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
			return 0, wire.Errorf(code, "invalid argument to %s stage: Expected an integer", name)
		}
		n = int64(f)
	}
	if n < least {
		return 0, wire.Errorf(code, "invalid argument to %s stage: must be at least %d, got %d", name, least, n)
	}
	return n, nil
}

// counted pushes $count down and adds the partitions' counts.
func (p Plan) counted(stage bson.Raw, arg bsoncore.Value, rest []bson.Raw) (Plan, error) {
	field, ok := arg.StringValueOK()
	if !ok || field == "" {
		return p, wire.Errorf(40156, "the count field must be a non-empty string")
	}
	p.Shard = append(p.Shard, stage)
	group := stage1("$group", build(
		bsoncore.AppendNullElement(nil, "_id"),
		bsoncore.AppendDocumentElement(nil, field, build(bsoncore.AppendStringElement(nil, "$sum", "$"+field)))))
	project := stage1("$project", build(bsoncore.AppendInt32Element(nil, "_id", 0)))
	return p.then(append([]bson.Raw{group, project}, rest...))
}

// sampled gives every document a random number and takes those with the least, over all partitions: each document is as likely as any other,
// however uneven the partitions are.
func (p Plan) sampled(arg bsoncore.Value, rest []bson.Raw) (Plan, error) {
	spec, ok := arg.DocumentOK()
	if !ok {
		return p, wire.Errorf(28745, "the $sample stage specification must be an object")
	}
	elems, err := spec.Elements()
	if err != nil || len(elems) != 1 || elems[0].Key() != "size" {
		return p, wire.Errorf(28749, "the $sample stage takes exactly one option, 'size'")
	}
	size, ok := elems[0].Value().AsInt64OK()
	if !ok || size < 1 {
		return p, wire.Errorf(28747, "the size argument to $sample must be a positive integer")
	}
	if p.Sort, err = order.ParseSort(byRandom); err != nil {
		return p, err
	}
	p.sortStage = stage1("$sort", bsoncore.Document(byRandom))
	p.Limit = size
	p.Shard = append(p.Shard, stage1("$replaceWith", build(bsoncore.AppendStringElement(nil, "d", "$$ROOT"),
		bsoncore.AppendDocumentElement(nil, "r", build(bsoncore.AppendDocumentElement(nil, "$rand", build()))))),
		p.sortStage, bson.Raw(build(bsoncore.AppendInt64Element(nil, "$limit", size))))
	return p.then(append([]bson.Raw{bson.Raw(build(bsoncore.AppendStringElement(nil, "$replaceWith", "$d")))}, rest...))
}

var byRandom = bson.Raw(build(bsoncore.AppendInt32Element(nil, "r", 1)))

// checkSortByCount refuses an argument that is neither a path nor an expression, as a server does.
func checkSortByCount(arg bsoncore.Value) error {
	const must = "the sortByCount field must be defined as a $-prefixed path or an expression inside an object"
	switch arg.Type {
	case bsoncore.TypeEmbeddedDocument:
		if e, err := bsoncore.Document(arg.Data).IndexErr(0); err != nil || len(e.Key()) == 0 || e.Key()[0] != '$' {
			return wire.Errorf(40147, must)
		}
	case bsoncore.TypeString:
		if s := arg.StringValue(); len(s) == 0 || s[0] != '$' {
			return wire.Errorf(40148, must)
		}
	default:
		return wire.Errorf(40149, "the sortByCount field must be specified as a string or as an object")
	}
	return nil
}

func sortByCount(arg bsoncore.Value) (group, sort bson.Raw) {
	group = stage1("$group", build(
		bsoncore.AppendValueElement(nil, "_id", arg),
		bsoncore.AppendDocumentElement(nil, "count", build(bsoncore.AppendInt32Element(nil, "$sum", 1)))))
	sort = stage1("$sort", build(bsoncore.AppendInt32Element(nil, "count", -1)))
	return group, sort
}

// build makes a document of elements.
func build(elems ...[]byte) bsoncore.Document { return bsoncore.BuildDocument(nil, elems...) }

// stage1 makes a stage whose argument is a document.
func stage1(name string, arg bsoncore.Document) bson.Raw {
	return bson.Raw(build(bsoncore.AppendDocumentElement(nil, name, arg)))
}
