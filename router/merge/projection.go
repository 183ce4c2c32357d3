package merge

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// helperPrefix begins the names of fields that are fetched only to sort by.
const helperPrefix = "__shardway_sort_"

// Projection is how a sorted read over several partitions fetches what it needs to sort and still returns what the client
// asked for. Its zero value changes nothing.
type Projection struct {
	// Sent is the projection for the partitions; nil when the client's own will do (or there is none).
	Sent bson.Raw
	// helpers are top-level fields to sort by, under helperPrefix + index in the fetched documents.
	helpers []string
	// exclude are paths that the client excluded and that had to be fetched.
	exclude [][]string
	// slices are $slice projections of sort fields, done here after sorting for the same reason.
	slices []sliced
}

// sliced is {path: {$slice: …}}.
type sliced struct {
	path        []string
	skip, limit int64
	tail        bool // count from the end: skip is not used
}

// PlanProjection decides how to sort by s what projection (nil for none) would hide. The sort fields' whole top-level fields are
// fetched, since only they give the key exactly when arrays lie on the path. A projection with which that cannot be done is 115 CommandNotSupported.
func PlanProjection(projection bson.Raw, s order.Sort) (Projection, error) {
	if len(projection) <= 5 || s.Empty() {
		return Projection{}, nil
	}
	p, err := classify(projection)
	if err != nil {
		return Projection{}, err
	}
	tops := topFields(s)
	if p.inclusive {
		return p.addHelpers(projection, tops), nil
	}
	return p.withoutExclusions(projection, tops)
}

type projected struct {
	inclusive bool
	fields    []bsoncore.Element
}

// classify tells an inclusion from an exclusion, as MongoDB does: the first field other than _id that says 0 or 1 decides; computed
// fields and $elemMatch include; only _id: 0 excludes.
func classify(projection bson.Raw) (projected, error) {
	elems, err := bsoncore.Document(projection).Elements()
	if err != nil {
		return projected{}, wire.Errorf(wire.FailedToParse, "projection is not a valid document")
	}
	p := projected{fields: elems}
	decided := false
	for _, e := range elems {
		if e.Key() == "_id" && len(elems) > 1 {
			continue
		}
		switch include, exclude := truth(e.Value()); {
		case include:
			p.inclusive, decided = true, true
		case exclude && !decided:
			decided = true
		}
	}
	if !decided {
		for _, e := range elems {
			if include, _ := truth(e.Value()); e.Key() == "_id" && include {
				p.inclusive = true
			}
		}
	}
	return p, nil
}

// truth tells whether a projection's value includes (true values, expressions, $elemMatch) or excludes; $slice and $meta do neither.
// A document of fields, {a: {b: 0}}, does what its fields do.
func truth(v bsoncore.Value) (include, exclude bool) {
	switch v.Type {
	case bsoncore.TypeBoolean:
		return v.Boolean(), !v.Boolean()
	case bsoncore.TypeInt32, bsoncore.TypeInt64, bsoncore.TypeDouble:
		f, _ := v.AsFloat64OK()
		return f != 0, f == 0
	case bsoncore.TypeDecimal128:
		zero := order.Compare(v, bsoncore.Value{Type: bsoncore.TypeInt32, Data: make([]byte, 4)}) == 0
		return !zero, zero
	}
	d, ok := v.DocumentOK()
	if !ok {
		return true, false
	}
	elems, _ := d.Elements()
	for _, e := range elems {
		switch key := e.Key(); {
		case key == "$slice" || key == "$meta":
			return false, false
		case strings.HasPrefix(key, "$"):
			return true, false
		}
		in, out := truth(e.Value())
		include, exclude = include || in, exclude || out
	}
	return include, exclude && !include
}

// excluded returns the paths that an element of an exclusion takes away; ok is false when it does something else.
func excluded(dst [][]string, path []string, v bsoncore.Value) (paths [][]string, ok bool) {
	if d, isDoc := v.DocumentOK(); isDoc {
		elems, _ := d.Elements()
		for _, e := range elems {
			if strings.HasPrefix(e.Key(), "$") {
				return nil, false
			}
			deeper := append(path[:len(path):len(path)], strings.Split(e.Key(), ".")...)
			if dst, ok = excluded(dst, deeper, e.Value()); !ok {
				return nil, false
			}
		}
		return dst, len(elems) > 0
	}
	if _, exclude := truth(v); !exclude {
		return nil, false
	}
	return append(dst, path), true
}

func topFields(s order.Sort) []string {
	var tops []string
	seen := map[string]bool{}
	for _, f := range s.Fields() {
		top, _, _ := strings.Cut(f, ".")
		if !seen[top] {
			seen[top] = true
			tops = append(tops, top)
		}
	}
	return tops
}

// addHelpers extends an inclusion by a computed copy of each top-level field that does not survive whole.
func (p projected) addHelpers(projection bson.Raw, tops []string) Projection {
	out := Projection{}
	sent := append([]byte(nil), projection[:len(projection)-1]...)
	for _, top := range tops {
		if p.keepsWhole(top) {
			continue
		}
		name := helperPrefix + strconv.Itoa(len(out.helpers))
		out.helpers = append(out.helpers, top)
		sent = bsoncore.AppendStringElement(sent, name, "$"+top)
	}
	if len(out.helpers) == 0 {
		return out
	}
	out.Sent, _ = bsoncore.AppendDocumentEnd(sent, 0)
	return out
}

// keepsWhole reports whether an inclusion returns a top-level field unchanged.
func (p projected) keepsWhole(top string) bool {
	for _, e := range p.fields {
		if e.Key() != top {
			continue
		}
		if v := e.Value(); v.Type == bsoncore.TypeBoolean || v.IsNumber() {
			include, _ := truth(v)
			return include
		}
		return false
	}
	return top == "_id"
}

// withoutExclusions takes out of an exclusion what touches the sort fields, to be excluded here after sorting.
func (p projected) withoutExclusions(projection bson.Raw, tops []string) (Projection, error) {
	out := Projection{}
	start, sent := bsoncore.AppendDocumentStart(nil)
	for _, e := range p.fields {
		top, _, _ := strings.Cut(e.Key(), ".")
		touches := false
		for _, t := range tops {
			touches = touches || t == top
		}
		if !touches {
			sent = append(sent, e...)
			continue
		}
		if sl, ok := parseSlice(e); ok {
			out.slices = append(out.slices, sl)
			continue
		}
		paths, ok := excluded(nil, strings.Split(e.Key(), "."), e.Value())
		if !ok {
			return Projection{}, wire.Errorf(wire.CommandNotSupported,
				"sorting by '%s' under the projection of '%s' is not supported across partitions; leave the field out of the projection, or give a filter on the shard key", top, e.Key())
		}
		out.exclude = append(out.exclude, paths...)
	}
	if len(out.exclude)+len(out.slices) == 0 {
		return out, nil
	}
	out.Sent, _ = bsoncore.AppendDocumentEnd(sent, start)
	return out, nil
}

// SortKey appends the document's sort key to dst. The values are parts of doc.
func (p *Projection) SortKey(dst []bsoncore.Value, doc bson.Raw, s order.Sort) []bsoncore.Value {
	if len(p.helpers) == 0 {
		return s.AppendKey(dst, doc)
	}
	return s.AppendKey(dst, p.restore(doc))
}

// restore rebuilds a document that has the helpers' fields under their own names.
func (p *Projection) restore(doc bson.Raw) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		if i, ok := helperIndex(e.Key()); ok && i < len(p.helpers) {
			out = bsoncore.AppendValueElement(out, p.helpers[i], e.Value())
			continue
		}
		if !p.helped(e.Key()) {
			out = append(out, e...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

func (p *Projection) helped(name string) bool {
	for _, h := range p.helpers {
		if h == name {
			return true
		}
	}
	return false
}

func helperIndex(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, helperPrefix)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(rest)
	return i, err == nil
}

// Nothing reports whether Finish changes nothing.
func (p *Projection) Nothing() bool { return len(p.helpers)+len(p.exclude)+len(p.slices) == 0 }

// Finish returns the document as the client asked for it; doc itself when nothing is to be done.
func (p *Projection) Finish(doc bson.Raw) bson.Raw {
	switch {
	case len(p.helpers) > 0:
		return p.dropHelpers(doc)
	case len(p.exclude) > 0:
		doc = excludePaths(doc, p.exclude)
	}
	for _, sl := range p.slices {
		doc = sl.apply(doc, sl.path)
	}
	return doc
}

func (p *Projection) dropHelpers(doc bson.Raw) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		if i, ok := helperIndex(e.Key()); !ok || i >= len(p.helpers) {
			out = append(out, e...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

// excludePaths removes paths from a document as an exclusion does: arrays on the way are gone through, at any depth.
func excludePaths(doc bson.Raw, paths [][]string) bson.Raw {
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	elems, _ := bsoncore.Document(doc).Elements()
	for _, e := range elems {
		var deeper [][]string
		gone := false
		for _, p := range paths {
			if p[0] == e.Key() {
				gone = gone || len(p) == 1
				deeper = append(deeper, p[1:])
			}
		}
		switch {
		case gone:
		case deeper == nil:
			out = append(out, e...)
		default:
			out = bsoncore.AppendValueElement(out, e.Key(), excludeIn(e.Value(), deeper))
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

func excludeIn(v bsoncore.Value, paths [][]string) bsoncore.Value {
	if d, ok := v.DocumentOK(); ok {
		return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: excludePaths(bson.Raw(d), paths)}
	}
	arr, ok := v.ArrayOK()
	if !ok {
		return v
	}
	values, _ := arr.Values()
	b := bsoncore.NewArrayBuilder()
	for _, el := range values {
		b.AppendValue(excludeIn(el, paths))
	}
	return bsoncore.Value{Type: bsoncore.TypeArray, Data: b.Build()}
}
