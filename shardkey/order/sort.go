package order

import (
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/shardkey/internal/number"
	"github.com/shardway/shardway/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Special says that a sort is not by fields of the documents, or not only.
type Special byte

// The special sorts.
const (
	// ByFields is no special sort: keys can be computed from the documents.
	ByFields Special = iota
	// ByNatural is {$natural: ±1}: the order in which a backend finds the documents.
	ByNatural
	// ByMeta has a {$meta: …}: its key is known to the backend only.
	ByMeta
)

// maxFields is how many fields MongoDB lets a sort have.
const maxFields = 32

// Sort is a sort specification. The zero Sort, like an empty specification, orders nothing. A Sort is immutable and may be copied.
type Sort struct {
	fields  []field
	special Special
}

type field struct {
	path       string
	parts      []string
	descending bool
}

// ParseSort reads the sort of a find, or the argument of a $sort stage. Errors are MongoDB's: 2 BadValue for a direction that is not 1 or −1, a malformed or
// repeated path, or too many fields. The Sort does not keep raw.
func ParseSort(raw bson.Raw) (Sort, error) {
	var s Sort
	it := element.In(raw)
	var e element.Element
	for it.Next(&e) {
		if err := s.add(&e); err != nil {
			return Sort{}, err
		}
	}
	if it.Malformed() {
		return Sort{}, wire.Errorf(wire.InvalidBSON, "invalid BSON in a sort specification")
	}
	if s.special == ByNatural && len(s.fields) > 0 {
		return Sort{}, wire.Errorf(wire.BadValue, "Cannot include '$natural' in compound sort")
	}
	if len(s.fields) > maxFields {
		return Sort{}, wire.Errorf(wire.BadValue, "too many fields in a sort specification: at most %d", maxFields)
	}
	return s, nil
}

func (s *Sort) add(e *element.Element) error {
	path := string(e.Key)
	if e.Type == bsoncore.TypeEmbeddedDocument {
		if _, meta := element.Lookup(e.Data, "$meta"); !meta {
			return wire.Errorf(wire.BadValue, "Illegal key in $sort specification: %s: the direction must be 1 or -1 or {$meta: …}", path)
		}
		s.special = ByMeta
		return nil
	}
	n, ok := number.Of(e.Value())
	if !ok || n.Form != number.Integer || (n.Int != 1 && n.Int != -1) {
		return wire.Errorf(wire.BadValue, "$sort key ordering must be 1 (for ascending) or -1 (for descending): %s", path)
	}
	if path == "$natural" {
		if s.special == ByFields {
			s.special = ByNatural
		}
		return nil
	}
	parts := strings.Split(path, ".")
	for _, part := range parts {
		if part == "" {
			return wire.Errorf(wire.BadValue, "FieldPath '%s' in a sort specification has an empty component", path)
		}
		if part[0] == '$' && part != "$id" && part != "$ref" && part != "$db" {
			return wire.Errorf(wire.BadValue, "FieldPath field names may not start with '$': %s", path)
		}
	}
	for _, f := range s.fields {
		if f.path == path {
			return wire.Errorf(wire.BadValue, "duplicate sort key: %s", path)
		}
	}
	s.fields = append(s.fields, field{path: path, parts: parts, descending: n.Int < 0})
	return nil
}

// Special tells whether keys can be computed: only for ByFields.
func (s Sort) Special() Special { return s.special }

// Empty reports whether s orders nothing.
func (s Sort) Empty() bool { return len(s.fields) == 0 && s.special == ByFields }

// Len is how many values a key has.
func (s Sort) Len() int { return len(s.fields) }

// Fields returns the dotted paths that a key is made from, in order.
func (s Sort) Fields() []string {
	paths := make([]string, len(s.fields))
	for i, f := range s.fields {
		paths[i] = f.path
	}
	return paths
}

// CompareKeys compares two keys made by AppendKey of this sort.
func (s Sort) CompareKeys(a, b []bsoncore.Value) int {
	for i := range s.fields {
		r := Compare(a[i], b[i])
		if r == 0 {
			continue
		}
		if s.fields[i].descending {
			return -r
		}
		return r
	}
	return 0
}
