package shardkey

import (
	"cmp"
	"slices"
	"strings"

	"github.com/shardway/shardway/shardkey/element"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Target says which documents of a collection a filter can match, as far as the shard key tells.
type Target struct {
	// Bound says that only documents with one of a finite set of shard key values can match. When false, the other fields are empty
	// and any partition may hold a match.
	Bound bool
	// Positions are those of the values, sorted, each once. Bound without positions is a filter that nothing matches.
	Positions []Position
	// Values are the distinct values, in no order; two values may share a position. They are parts of the filter's bytes.
	Values []bsoncore.Value
}

// Single reports whether the filter allows exactly one shard key value, and returns it.
func (t *Target) Single() (bsoncore.Value, bool) {
	if !t.Bound || len(t.Values) != 1 {
		return bsoncore.Value{}, false
	}
	return t.Values[0], true
}

// Target collects the shard key values that filter allows: equality, $eq and $in on the key's path, equality with a whole parent object, conjunctions,
// $or whose every branch is bound, and $expr with $eq between the path and a constant. Everything else ($ne, ranges, regular expressions, arrays,
// $exists, deeper paths …) binds nothing but does no harm beside what binds. simpleCollation is false when the operation's or the collection's collation is
// another than the simple one: then strings bind nothing, since other strings may equal them.
//
// A filter that MongoDB refuses is not bound; the backend says why.
func (p Pattern) Target(filter bson.Raw, simpleCollation bool) Target {
	var t Target
	p.TargetInto(&t, filter, simpleCollation)
	return t
}

// TargetInto is Target with the slices of t used again, so that a filter with one plain equality allocates nothing.
func (p *Pattern) TargetInto(t *Target, filter bson.Raw, simpleCollation bool) {
	t.Bound, t.Positions, t.Values = false, t.Positions[:0], t.Values[:0]
	s := scanner{p: p, simple: simpleCollation}
	if v, plain := s.plain(filter); plain {
		if pos, ok := s.position(v); ok {
			t.Bound, t.Positions, t.Values = true, append(t.Positions, pos), append(t.Values, v)
		}
		return
	}
	set := s.filter(filter, 0)
	if !set.bound {
		return
	}
	t.Bound = true
	for _, a := range set.allowed {
		if n := len(t.Positions); n == 0 || t.Positions[n-1] != a.pos {
			t.Positions = append(t.Positions, a.pos)
		}
		t.Values = append(t.Values, a.value)
	}
}

// scanner reads one filter.
type scanner struct {
	p      *Pattern
	simple bool
}

// plain returns the value of a filter whose only part that can bind is one {path: value} without operators.
func (s *scanner) plain(filter []byte) (v bsoncore.Value, ok bool) {
	it := element.In(filter)
	var e element.Element
	for it.Next(&e) {
		switch {
		case string(e.Key) == s.p.path:
			if ok || e.Type == bsoncore.TypeEmbeddedDocument {
				return v, false
			}
			v, ok = e.Value(), true
		case len(e.Key) > 0 && e.Key[0] == '$', s.isParent(e.Key):
			return v, false
		}
	}
	return v, ok && !it.Malformed()
}

// isParent reports whether path is a proper prefix of the key's path.
func (s *scanner) isParent(path []byte) bool {
	n := len(path)
	return n < len(s.p.path) && s.p.path[n] == '.' && s.p.path[:n] == string(path)
}

// allowed is one shard key value that a filter allows.
type allowed struct {
	pos   Position
	value bsoncore.Value
}

// set is the values that a filter allows: all there are where it is not bound. allowed is sorted by position and has each value once.
type set struct {
	bound   bool
	allowed []allowed
}

// maxFilterDepth is how deep $and and $or are followed; what lies deeper binds nothing.
const maxFilterDepth = 100

// filter returns what the conjunction of a filter's elements allows.
func (s *scanner) filter(filter []byte, depth int) set {
	var all set
	if depth > maxFilterDepth {
		return all
	}
	it := element.In(filter)
	var e element.Element
	for it.Next(&e) {
		all = s.and(all, s.element(&e, depth))
	}
	if it.Malformed() {
		return set{}
	}
	return all
}

func (s *scanner) element(e *element.Element, depth int) set {
	if len(e.Key) > 0 && e.Key[0] == '$' {
		switch string(e.Key) {
		case "$and":
			return s.branches(e, depth, true)
		case "$or":
			return s.branches(e, depth, false)
		case "$expr":
			return s.expr(e.Value(), depth)
		}
		return set{}
	}
	if string(e.Key) == s.p.path {
		return s.predicate(e.Value(), nil)
	}
	if s.isParent(e.Key) {
		return s.predicate(e.Value(), s.p.parts[strings.Count(string(e.Key), ".")+1:])
	}
	return set{}
}

// branches reads the array of an $and or $or.
func (s *scanner) branches(e *element.Element, depth int, and bool) set {
	if e.Type != bsoncore.TypeArray {
		return set{}
	}
	it := element.In(e.Data)
	var branch element.Element
	var all set
	var union []allowed
	n := 0
	for it.Next(&branch) {
		if branch.Type != bsoncore.TypeEmbeddedDocument {
			return set{}
		}
		n++
		b := s.filter(branch.Data, depth+1)
		switch {
		case and:
			all = s.and(all, b)
		case !b.bound:
			return set{}
		default:
			union = append(union, b.allowed...)
		}
	}
	if n == 0 || it.Malformed() {
		return set{}
	}
	if and {
		return all
	}
	return s.setOf(union)
}

// predicate reads what stands beside a path: a value or operators. inside is empty for the key's own path; for a parent's it is the rest of the
// key's path, followed into the object that the parent must equal.
func (s *scanner) predicate(v bsoncore.Value, inside []string) set {
	if v.Type != bsoncore.TypeEmbeddedDocument || !isOperators(v.Data) {
		return s.equal(v, inside)
	}
	var all set
	it := element.In(v.Data)
	var e element.Element
	for it.Next(&e) {
		switch string(e.Key) {
		case "$eq":
			all = s.and(all, s.equal(e.Value(), inside))
		case "$in":
			all = s.and(all, s.in(e.Value(), inside))
		}
	}
	if it.Malformed() {
		return set{}
	}
	return all
}

// isOperators reports whether MongoDB reads doc, standing beside a path, as operators and not as a value: its first name begins with '$'. A DBRef is a value.
func isOperators(doc []byte) bool {
	it := element.In(doc)
	var e element.Element
	if !it.Next(&e) || len(e.Key) == 0 || e.Key[0] != '$' {
		return false
	}
	_, ref := element.Lookup(doc, "$ref")
	_, id := element.Lookup(doc, "$id")
	return !ref || !id
}

func (s *scanner) equal(v bsoncore.Value, inside []string) set {
	v, ok := s.keyValue(v, inside)
	if !ok {
		return set{}
	}
	pos, ok := s.position(v)
	if !ok {
		return set{}
	}
	return set{bound: true, allowed: []allowed{{pos, v}}}
}

func (s *scanner) in(list bsoncore.Value, inside []string) set {
	if list.Type != bsoncore.TypeArray {
		return set{}
	}
	var values []allowed
	it := element.In(list.Data)
	var e element.Element
	for it.Next(&e) {
		one := s.equal(e.Value(), inside)
		if !one.bound {
			return set{}
		}
		values = append(values, one.allowed...)
	}
	if it.Malformed() {
		return set{}
	}
	return s.setOf(values)
}

// keyValue returns the key's value in a document whose path, or whose parent of the path, equals v.
func (s *scanner) keyValue(v bsoncore.Value, inside []string) (bsoncore.Value, bool) {
	if len(inside) == 0 {
		return v, true
	}
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return v, false
	}
	v, err := valueAt(v.Data, inside)
	return v, err == nil
}

// position returns where documents are whose key equals v; false where equality with v does not bind.
func (s *scanner) position(v bsoncore.Value) (Position, bool) {
	switch v.Type {
	case bsoncore.TypeRegex, bsoncore.TypeArray, bsoncore.TypeUndefined:
		return 0, false
	}
	if !s.simple && collatable(v, 0) {
		return 0, false
	}
	pos, err := HashValue(v)
	return pos, err == nil
}

// collatable reports whether v is a string or holds one.
func collatable(v bsoncore.Value, depth int) bool {
	switch v.Type {
	case bsoncore.TypeString, bsoncore.TypeSymbol:
		return true
	case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
		if depth >= maxDepth {
			return true
		}
		it := element.In(v.Data)
		var e element.Element
		for it.Next(&e) {
			if collatable(e.Value(), depth+1) {
				return true
			}
		}
		return it.Malformed()
	}
	return false
}

// expr reads an aggregation expression that must be true.
func (s *scanner) expr(v bsoncore.Value, depth int) set {
	if v.Type != bsoncore.TypeEmbeddedDocument || depth > maxFilterDepth {
		return set{}
	}
	it := element.In(v.Data)
	var e element.Element
	if !it.Next(&e) || it.More() {
		return set{}
	}
	switch string(e.Key) {
	case "$eq":
		return s.exprEqual(e.Value())
	case "$and":
		return s.exprAnd(e.Value(), depth)
	}
	return set{}
}

func (s *scanner) exprAnd(v bsoncore.Value, depth int) set {
	if v.Type != bsoncore.TypeArray {
		return s.expr(v, depth+1)
	}
	var all set
	it := element.In(v.Data)
	var e element.Element
	for it.Next(&e) {
		all = s.and(all, s.expr(e.Value(), depth+1))
	}
	if it.Malformed() {
		return set{}
	}
	return all
}

// exprEqual reads the two operands of $eq: the key's path and a constant, in any order.
func (s *scanner) exprEqual(operands bsoncore.Value) set {
	if operands.Type != bsoncore.TypeArray {
		return set{}
	}
	it := element.In(operands.Data)
	var a, b, none element.Element
	if !it.Next(&a) || !it.Next(&b) || it.Next(&none) || it.Malformed() {
		return set{}
	}
	if s.isKeyPath(b.Value()) {
		a, b = b, a
	}
	if !s.isKeyPath(a.Value()) {
		return set{}
	}
	v, ok := constant(b.Value())
	if !ok {
		return set{}
	}
	return s.equal(v, nil)
}

func (s *scanner) isKeyPath(v bsoncore.Value) bool {
	if v.Type != bsoncore.TypeString {
		return false
	}
	t, ok := element.Text(v.Data)
	return ok && len(t) > 1 && t[0] == '$' && string(t[1:]) == s.p.path
}

// constant returns the value of an expression that is one. Null is left out: in an expression a missing field does not equal it, and what it equals
// differs between versions.
func constant(v bsoncore.Value) (bsoncore.Value, bool) {
	switch v.Type {
	case bsoncore.TypeEmbeddedDocument:
		it := element.In(v.Data)
		var e element.Element
		if !it.Next(&e) || string(e.Key) != "$literal" || it.More() {
			return v, false
		}
		v = e.Value()
	case bsoncore.TypeString:
		if t, ok := element.Text(v.Data); !ok || (len(t) > 0 && t[0] == '$') {
			return v, false
		}
	}
	switch v.Type {
	case bsoncore.TypeNull, bsoncore.TypeUndefined, bsoncore.TypeArray:
		return v, false
	}
	return v, true
}

// and intersects two sets.
func (s *scanner) and(a, b set) set {
	switch {
	case !a.bound:
		return b
	case !b.bound:
		return a
	}
	both := set{bound: true}
	i, j := 0, 0
	for i < len(a.allowed) && j < len(b.allowed) {
		switch pos := a.allowed[i].pos; {
		case pos < b.allowed[j].pos:
			i++
		case pos > b.allowed[j].pos:
			j++
		default:
			for ; i < len(a.allowed) && a.allowed[i].pos == pos; i++ {
				if s.has(b.allowed[j:], a.allowed[i]) {
					both.allowed = append(both.allowed, a.allowed[i])
				}
			}
		}
	}
	return both
}

// has reports whether v's value is among those at the beginning of list that share its position.
func (s *scanner) has(list []allowed, v allowed) bool {
	for _, a := range list {
		if a.pos != v.pos {
			return false
		}
		if s.p.EqualValues(a.value, v.value) {
			return true
		}
	}
	return false
}

// setOf sorts values and takes out repetitions. It uses the slice.
func (s *scanner) setOf(values []allowed) set {
	slices.SortStableFunc(values, func(a, b allowed) int { return cmp.Compare(a.pos, b.pos) })
	kept := values[:0]
	run := 0 // where the values at the last position begin in kept
	for _, v := range values {
		if len(kept) == 0 || kept[len(kept)-1].pos != v.pos {
			run = len(kept)
		} else if s.has(kept[run:], v) {
			continue
		}
		kept = append(kept, v)
	}
	return set{bound: true, allowed: kept}
}
