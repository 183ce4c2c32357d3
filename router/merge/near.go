package merge

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// A server returns what $near and $nearSphere find nearest first, and does not say how far each document is. So each partition is asked for the same by $geoNear, which
// a server runs as that same query and which computes the distance. The merge is by it.

// distanceHelper is the field that has the computed distance; Finish takes it out again.
const distanceHelper = helperPrefix + "0"

// byDistance is the sort by the helper's value, as Projection restores it.
var byDistance = bson.Raw(build(bsoncore.AppendInt32Element(nil, "distance", 1)))

// Near is the condition of a filter that finds the nearest documents, as the elements of a $geoNear.
type Near struct {
	geoNear []byte
	query   []byte // what else the filter says
	n       int    // conditions found
	odd     bool   // one is not understood
	invalid string // an operator that may not stand beside one
}

// FindNear takes the $near, $nearSphere or $geoNear condition out of a filter, where a server lets it stand: at the top and in $and. It returns nil if there is none.
func FindNear(filter bson.Raw) (*Near, error) {
	if !mentionsNear(filter, 0) {
		return nil, nil
	}
	var n Near
	n.query = n.without(filter)
	switch {
	case n.n == 0:
		return nil, nil // it stands where no server takes it, and the backends say so
	case n.n > 1:
		return nil, wire.Errorf(wire.BadValue, "Too many geoNear expressions")
	case n.invalid != "":
		return nil, wire.Errorf(34413, "invalid argument in geo near query: %s", n.invalid)
	case n.odd:
		return nil, wire.Errorf(wire.CommandNotSupported,
			"this form of $near is not supported across partitions; supported are [x, y] and { $geometry : GeoJSON point } with $minDistance and $maxDistance")
	}
	return &n, nil
}

// mentionsNear reports whether a filter may have such a condition.
func mentionsNear(filter []byte, depth int) bool {
	it := element.In(filter)
	var e element.Element
	for it.Next(&e) {
		switch {
		case isNear(e.Key):
			return true
		case depth > 10:
			return true
		case e.Type == bsoncore.TypeEmbeddedDocument && (depth == 0 || len(e.Key) > 0 && e.Key[0] != '$'), e.Type == bsoncore.TypeArray && string(e.Key) == "$and":
			if mentionsNear(e.Data, depth+1) {
				return true
			}
		}
	}
	return false
}

func isNear(key []byte) bool {
	return string(key) == "$near" || string(key) == "$nearSphere" || string(key) == "$geoNear"
}

// without returns a filter without its near conditions, which n takes.
func (n *Near) without(filter []byte) bsoncore.Document {
	var out []byte
	it := element.In(filter)
	var e element.Element
	for it.Next(&e) {
		switch {
		case string(e.Key) == "$and" && e.Type == bsoncore.TypeArray:
			var branches []bsoncore.Value
			in := element.In(e.Data)
			var b element.Element
			for in.Next(&b) {
				if d := n.without(b.Data); b.Type == bsoncore.TypeEmbeddedDocument && (len(d) > 5 || len(b.Data) <= 5) {
					branches = append(branches, docValue(d))
				} else if b.Type != bsoncore.TypeEmbeddedDocument {
					branches = append(branches, b.Value())
				}
			}
			if len(branches) > 0 {
				out = bsoncore.AppendArrayElement(out, "$and", array(branches...))
			}
		case e.Type == bsoncore.TypeEmbeddedDocument && len(e.Key) > 0 && e.Key[0] != '$' && hasNear(e.Data):
			n.condition(string(e.Key), e.Data)
		default:
			out = append(out, e.Raw...)
		}
	}
	return build(out)
}

func hasNear(operators []byte) bool {
	it := element.In(operators)
	var e element.Element
	for it.Next(&e) {
		if isNear(e.Key) {
			return true
		}
	}
	return false
}

// condition takes the near condition on a path. A server lets no other condition stand beside it.
func (n *Near) condition(path string, operators []byte) {
	n.n++
	spherical := false
	var args []byte
	it := element.In(operators)
	var e element.Element
	for it.Next(&e) {
		switch v := e.Value(); {
		case isNear(e.Key):
			if len(n.geoNear) > 0 {
				n.n++
				continue
			}
			near, distances, sphere := n.point(v)
			spherical = sphere || string(e.Key) == "$nearSphere"
			n.geoNear = append(append(n.geoNear, near...), distances...)
		case string(e.Key) == "$maxDistance", string(e.Key) == "$minDistance":
			args = bsoncore.AppendValueElement(args, string(e.Key[1:]), v)
		case string(e.Key) == "$uniqueDocs": // which means nothing any more
		default:
			n.invalid = string(e.Key)
		}
	}
	n.geoNear = append(n.geoNear, args...)
	n.geoNear = bsoncore.AppendBooleanElement(n.geoNear, "spherical", spherical)
	n.geoNear = bsoncore.AppendStringElement(n.geoNear, "key", path)
}

// point reads the argument of a near operator: near is the element of that name, distances are minDistance and maxDistance where they stand beside the point, and sphere
// says that it is a point of GeoJSON.
func (n *Near) point(v bsoncore.Value) (near, distances []byte, sphere bool) {
	switch v.Type {
	case bsoncore.TypeArray:
		return n.pair(v.Data)
	case bsoncore.TypeEmbeddedDocument:
		geometry, nested := element.Lookup(v.Data, "$geometry")
		if !nested {
			if _, geoJSON := element.Lookup(v.Data, "coordinates"); geoJSON {
				return bsoncore.AppendValueElement(nil, "near", v), nil, true
			}
			return n.pair(v.Data)
		}
		for _, name := range []string{"minDistance", "maxDistance"} {
			if d, has := element.Lookup(v.Data, "$"+name); has {
				distances = bsoncore.AppendValueElement(distances, name, d)
			}
		}
		n.odd = n.odd || geometry.Type != bsoncore.TypeEmbeddedDocument
		return bsoncore.AppendValueElement(nil, "near", geometry), distances, true
	}
	n.odd = true
	return nil, nil, false
}

// pair reads a legacy point, [x, y] or {lng: x, lat: y}; a third number is the greatest distance.
func (n *Near) pair(data []byte) (near, distances []byte, sphere bool) {
	var numbers []bsoncore.Value
	it := element.In(data)
	var e element.Element
	for it.Next(&e) {
		if v := e.Value(); v.IsNumber() {
			numbers = append(numbers, v)
		} else {
			n.odd = true
		}
	}
	if len(numbers) < 2 || len(numbers) > 3 {
		n.odd = true
		return nil, nil, false
	}
	if len(numbers) == 3 {
		distances = bsoncore.AppendValueElement(nil, "maxDistance", numbers[2])
	}
	return bsoncore.AppendArrayElement(nil, "near", array(numbers[:2]...)), distances, false
}

// Stage is the $geoNear that finds the same documents, in the same order, with their distance in the helper field.
func (n *Near) Stage() bson.Raw {
	fields := append([]byte(nil), n.geoNear...)
	fields = bsoncore.AppendStringElement(fields, "distanceField", distanceHelper)
	if len(n.query) > 5 {
		fields = bsoncore.AppendDocumentElement(fields, "query", n.query)
	}
	return stage1("$geoNear", build(fields))
}

// PlanNear plans a find of the nearest documents over several partitions. The plan's pipeline goes to each; what it merges is the find's result.
func PlanNear(n *Near, projection bson.Raw, skip, limit int64) (Plan, error) {
	p := Plan{Shard: []bson.Raw{n.Stage()}, Skip: skip, Limit: -1, Projection: Projection{helpers: []string{"distance"}}}
	var err error
	if p.Sort, err = order.ParseSort(byDistance); err != nil {
		return p, err
	}
	if limit > 0 {
		p.Limit = limit
		p.Shard = append(p.Shard, bson.Raw(build(bsoncore.AppendInt64Element(nil, "$limit", limit+skip))))
	}
	stages, err := projectNear(projection)
	p.Shard = append(p.Shard, stages...)
	return p, err
}

// projectNear makes stages of a find's projection that keep the helper field.
func projectNear(projection bson.Raw) ([]bson.Raw, error) {
	if len(projection) <= 5 {
		return nil, nil
	}
	p, err := classify(projection)
	if err != nil {
		return nil, err
	}
	var project, computed []byte
	for _, e := range p.fields {
		operator := ""
		if d, ok := e.Value().DocumentOK(); ok {
			if first, err := d.IndexErr(0); err == nil {
				operator = first.Key()
			}
		}
		switch {
		case operator == "$slice" || operator == "$elemMatch" || strings.HasSuffix(e.Key(), ".$"):
			return nil, wire.Errorf(wire.CommandNotSupported,
				"$slice, $elemMatch and positional projections are not supported with $near across partitions; give a filter on the shard key")
		case operator == "$meta" && !p.inclusive:
			computed = append(computed, e...)
		default:
			project = append(project, e...)
		}
	}
	var stages []bson.Raw
	if len(computed) > 0 {
		stages = append(stages, stage1("$addFields", build(computed)))
	}
	if len(project) > 0 {
		if p.inclusive {
			project = bsoncore.AppendInt32Element(project, distanceHelper, 1)
		}
		stages = append(stages, stage1("$project", build(project)))
	}
	return stages, nil
}

// NearestStages are the stages that find the one document nearest of all in a partition and return the fields of an inclusion and the distance.
func (n *Near) NearestStages(inclusion bsoncore.Document) []bson.Raw {
	fields := bsoncore.AppendInt32Element(append([]byte(nil), inclusion[4:len(inclusion)-1]...), distanceHelper, 1)
	return []bson.Raw{n.Stage(), bson.Raw(build(bsoncore.AppendInt64Element(nil, "$limit", 1))), stage1("$project", build(fields))}
}

// Distance returns what NearestStages computed.
func Distance(doc bson.Raw) (bsoncore.Value, bool) { return element.Lookup(doc, distanceHelper) }

// near plans a $geoNear, the first stage, and what follows it.
func (p Plan) near(arg bsoncore.Value, rest []bson.Raw) (Plan, error) {
	spec, ok := arg.DocumentOK()
	if !ok {
		return p, wire.Errorf(10065, "invalid parameter: expected an object ($geoNear)")
	}
	by := byDistance
	stage := spec
	switch field, has := element.Lookup(spec, "distanceField"); {
	case !has:
		stage = build(spec[4:len(spec)-1], bsoncore.AppendStringElement(nil, "distanceField", distanceHelper))
		p.Projection = Projection{helpers: []string{"distance"}}
	default:
		name, isString := field.StringValueOK()
		if !isString || name == "" {
			return p, wire.Errorf(16606, "$geoNear requires that the 'distanceField' option is a String")
		}
		by = bson.Raw(build(bsoncore.AppendInt32Element(nil, name, 1)))
	}
	var err error
	if p.Sort, err = order.ParseSort(by); err != nil {
		return p, err
	}
	p.sortStage = stage1("$sort", bsoncore.Document(by))
	p.Shard = append(p.Shard, stage1("$geoNear", stage))
	return p.limited(rest)
}
