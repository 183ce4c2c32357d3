package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

// operation is what an update, a delete or a findAndModify wants done, as far as its placing needs it.
type operation struct {
	filter bson.Raw
	// update is operators, a replacement or a pipeline; its zero value for a delete.
	update bsoncore.Value
	multi  bool
	upsert bool
	// simple says that the collation compares binary.
	simple bool
	// timed says that update has a time of our making as its shard key (write_emptyts.go).
	timed bool
	// mixed says that the update has both operators and fields.
	mixed bool

	sort, collation, hint, let bsoncore.Value

	// effect is what update does to the shard key.
	effect shardkey.Effect
}

func (op *operation) deletes() bool { return op.update.Type == 0 }

var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

// parse reads a statement of an update or delete for a sharded collection.
func (s *statement) parse(kind *writeKind, key *shardkey.Pattern, let bsoncore.Value) error {
	op := &operation{simple: true, let: let}
	limit, hasLimit := bsoncore.Value{}, false
	for rem := []byte(s.raw[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return wire.Errorf(wire.InvalidBSON, "a statement is not a valid BSON document")
		}
		rem = rest
		v := e.Value()
		var err error
		switch string(e.KeyBytes()) {
		case "q":
			op.filter, err = documentField(kind.list+".q", v)
		case "u":
			op.update, op.mixed = v, mixesOperators(v)
		case "multi":
			op.multi = isTrue(v)
		case "upsert":
			op.upsert = isTrue(v)
		case "limit":
			limit, hasLimit = v, true
		case "collation":
			op.collation = v
			op.simple, err = simpleCollation(v)
		case "hint":
			op.hint = v
		case "sort":
			op.sort = v
		}
		if err != nil {
			return err
		}
	}
	switch {
	case op.filter == nil:
		return wire.Errorf(40414, "BSON field '%s.q' is missing but a required field", kind.list)
	case kind == &updates && op.update.Type == 0:
		return wire.Errorf(40414, "BSON field 'updates.u' is missing but a required field")
	case kind == &deletes && !hasLimit:
		return wire.Errorf(40414, "BSON field 'deletes.limit' is missing but a required field")
	}
	if kind == &deletes {
		n, ok := limit.AsInt64OK()
		if !ok {
			return typeMismatch("deletes.limit", limit, "number")
		}
		if n != 0 && n != 1 {
			return wire.Errorf(wire.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %d", n)
		}
		op.multi, op.update = n == 0, bsoncore.Value{}
	}
	op.examine(key)
	s.op = op
	return nil
}

// mixesOperators reports whether an update document has both operators and fields, which a router refuses with a code of its own (mongos-behaviour §3.6).
func mixesOperators(u bsoncore.Value) bool {
	if u.Type != bsoncore.TypeEmbeddedDocument {
		return false
	}
	var operators, fields bool
	it := element.In(u.Data)
	var e element.Element
	for it.Next(&e) {
		if len(e.Key) > 0 && e.Key[0] == '$' {
			operators = true
		} else {
			fields = true
		}
	}
	if it.Malformed() {
		return false
	}
	return operators && fields
}

// examine finds out what the update does to the key.
func (op *operation) examine(key *shardkey.Pattern) {
	if !op.deletes() {
		op.effect = key.UpdateEffect(bson.RawValue{Type: bson.Type(op.update.Type), Value: op.update.Data})
	}
}

// simpleCollation reports whether a collation document asks for binary comparison.
func simpleCollation(v bsoncore.Value) (bool, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return false, typeMismatch("collation", v, "object")
	}
	if len(doc) == 5 {
		return true, nil
	}
	locale, _ := doc.Lookup("locale").StringValueOK()
	return locale == "simple", nil
}

// Codes that only servers give otherwise.
const (
	dollarPrefixedFieldName wire.Code = 52
	queryFeatureNotAllowed  wire.Code = 224
)

// decision is where an operation goes.
type decision struct {
	// err, if not nil, is why it cannot go anywhere.
	err *wire.Error
	// parts get the statement as it is: one, or for a multi-document write several.
	parts []*partition.Part
	// search, if not nil, says that the document must be found first; parts are then where it may be and where an upsert would go.
	search *search
}

// search is what is known before the document of a single write, or whether there is any of a multi-document upsert, is.
type search struct {
	op *operation
	// among are the parts that may hold it.
	among []*partition.Part
	// place is where an upsert goes when there is none; nil with placeErr when it cannot be placed.
	place    *partition.Part
	placeErr *wire.Error
	// placed is the shard key value of the document that an upsert makes.
	placed bsoncore.Value
	// makesID says that placed is an _id of our making, which the backend must be told.
	makesID bool
	// inserts says that the filter wants another shard key value than the update sets, so that an upsert can only insert.
	inserts bool
	// narrows says that the update, of many, sets the key: it may be applied where the value is that already, and to nothing else.
	narrows bool
}

// decide finds out where an operation on a sharded collection goes.
func (op *operation) decide(c *partition.Collection) decision {
	var target shardkey.Target
	c.Key.TargetInto(&target, op.filter, op.simple)
	parts := c.Targets(nil, &target)
	bound, single := target.Single()
	keeps := op.keeps(c.Key, bound, single)
	switch {
	case op.mixed && shardkey.IsReplacement(bson.RawValue{Type: bson.Type(op.update.Type), Value: op.update.Data}):
		return decision{err: wire.Errorf(dollarPrefixedFieldName,
			"a field of a replacement document must not begin with '$'; use a pipeline with $replaceWith and $literal, or operators only")}
	case op.upsert && shardkey.HasExpr(op.filter):
		return decision{err: wire.Errorf(queryFeatureNotAllowed, "$expr is not allowed in the query predicate for an upsert")}
	case op.mixed:
		return decision{err: wire.Errorf(wire.UnsupportedFormat, "update document has mixed $operator and non-$operator style fields")}
	case op.multi && op.effect.Kind == shardkey.Replaces:
		return decision{err: wire.Errorf(wire.InvalidOptions, "replacement-style updates cannot be {multi: true}")}
	case op.multi && !keeps && (len(target.Values) > 0 || !target.Bound):
		if !op.simple || op.effect.Kind != shardkey.SetsTo {
			return decision{err: immutable(c.Key, "this multi-update may change it")}
		}
		d := op.decidePlaced(c, parts, bound, single, false)
		d.search.narrows = true
		return d
	case op.upsert:
		return op.decidePlaced(c, parts, bound, single, keeps)
	case op.multi || keeps && len(parts) == 1:
		return decision{parts: parts}
	}
	return decision{parts: parts, search: &search{op: op, among: parts}}
}

// keeps reports whether no document that op is applied to can get another shard key value: the update leaves it alone, or sets what the filter binds it to,
// or the backend does not let it.
func (op *operation) keeps(key *shardkey.Pattern, bound bsoncore.Value, single bool) bool {
	if inID(key) {
		return true
	}
	switch op.effect.Kind {
	case shardkey.Untouched, shardkey.OnlyOnInsert:
		return true
	case shardkey.SetsTo, shardkey.Replaces:
		return op.effect.Err == nil && single && key.EqualValues(op.effect.Value, bound)
	}
	return false
}

// decidePlaced decides for what must know, beside the documents that are there, where those with the value that the update sets are: an upsert, and an
// update of many that sets the key.
func (op *operation) decidePlaced(c *partition.Collection, parts []*partition.Part, bound bsoncore.Value, single, keeps bool) decision {
	s := &search{op: op, among: parts}
	placed, err := op.placedAt(c.Key)
	if err != nil && c.Key.Path() == "_id" && op.effect.Kind == shardkey.Untouched && c.Key.UpsertMakesID(op.filter) {
		placed, err, s.makesID = newID(), nil, true
	}
	if err == nil {
		var pos shardkey.Position
		if pos, err = shardkey.HashValue(placed); err == nil {
			s.place, s.placed = c.At(pos), placed
		}
	}
	if err != nil {
		s.placeErr = wire.AsError(err)
		return decision{parts: parts, search: s}
	}
	if single && keeps && op.effect.Kind != shardkey.Computed && c.Key.EqualValues(placed, bound) {
		return decision{parts: parts} // the one partition matches and upserts by itself
	}
	s.inserts = single && op.effect.Kind != shardkey.OnlyOnInsert && !c.Key.EqualValues(placed, bound)
	all := parts
	if !containsPart(parts, s.place) {
		all = append(append([]*partition.Part(nil), parts...), s.place)
	}
	return decision{parts: all, search: s}
}

func containsPart(parts []*partition.Part, p *partition.Part) bool {
	for _, x := range parts {
		if x == p {
			return true
		}
	}
	return false
}

func newID() bsoncore.Value {
	id := bson.NewObjectID()
	return bsoncore.Value{Type: bsoncore.TypeObjectID, Data: id[:]}
}

// placedAt returns the shard key value of the document that the upsert makes when nothing matches: what the update sets, else what the filter's
// equalities give the new document, else null.
func (op *operation) placedAt(key *shardkey.Pattern) (bsoncore.Value, error) {
	switch op.effect.Kind {
	case shardkey.SetsTo, shardkey.OnlyOnInsert, shardkey.Replaces:
		return op.effect.Value, op.effect.Err
	case shardkey.MayChange:
		return bsoncore.Value{}, unplaced(key)
	}
	v, known := key.UpsertValue(op.filter)
	if !known {
		return v, wire.Errorf(wire.ShardKeyNotFound,
			"failed to target upsert by query: could not extract exact shard key %v; give it as an equality in the filter or set it in the update", key)
	}
	return v, nil
}

// immutable is the refusal of a change of the shard key value.
func immutable(key *shardkey.Pattern, why string) *wire.Error {
	return wire.Errorf(wire.ImmutableField, "the shard key of a document cannot be changed: '%s' is immutable; %s", key.Path(), why)
}

// check refuses to apply op to the document found, whose shard key value is have, if that would change the value. What a pipeline computes is judged by the
// backend (guarded), unless a collation would have it take two strings for one.
func (op *operation) check(key *shardkey.Pattern, have bsoncore.Value) *wire.Error {
	if inID(key) {
		return nil
	}
	switch op.effect.Kind {
	case shardkey.Computed:
		if !op.simple {
			return immutable(key, "under a collation nobody can tell whether the update changes it")
		}
	case shardkey.SetsTo, shardkey.Replaces:
		if op.effect.Err != nil || !key.EqualValues(have, op.effect.Value) {
			return immutable(key, "delete the document and insert it anew under its other key")
		}
	case shardkey.MayChange:
		return immutable(key, "the update may change it")
	}
	return nil
}
