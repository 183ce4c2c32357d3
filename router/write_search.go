package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/shardkey/order"
	"github.com/shardway/shardway/wire"
)

// maxSearches bounds how often a single write looks for another document when the one it found was gone, or was another's upsert, when it came to it.
const maxSearches = 100

// candidate is the document that a single write is to be applied to.
type candidate struct {
	part *partition.Part
	doc  bson.Raw
	id   bsoncore.Value
	key  bsoncore.Value
	// distance is what a search for the nearest document computed.
	distance bsoncore.Value
}

// searchAndWrite runs a statement whose document must be found first, inside the gates of all parts where it may be (mongos-behaviour §3.9).
func (b *writeBatch) searchAndWrite(ctx context.Context, c *partition.Collection, s *statement, sr *search) error {
	if sr.op.multi {
		return b.multiSearch(ctx, c, s, sr)
	}
	send := func(part *partition.Part, as changed) (applied, error) {
		one := &writeResult{}
		other := *s
		other.raw = rewriteStatement(s.raw, as)
		err := b.exchange(ctx, c, []chunk{{group: group{part, []*statement{&other}}}}, one)
		if err != nil {
			return applied{}, err
		}
		a := applied{hit: one.n > 0 || one.failed() || len(one.retried) > 0}
		if len(one.errs) == 1 {
			guard := guardRefused(one.errs[0].code, one.errs[0].errmsg)
			a.met = one.errs[0].code == int32(wire.DuplicateKey) || guard
			if guard {
				one.errs = nil
				one.fail(s.index, sr.op.guardError(c.Key, as.upsert))
			}
		}
		a.accept = func() { b.result.add(one) }
		return a, nil
	}
	w := singleWrite{r: b.r, q: b.q, c: c, search: sr, stmt: s.id, send: send}
	refused, err := w.run(ctx)
	if refused != nil {
		b.result.fail(s.index, refused)
		return nil
	}
	if err == nil && !w.done {
		b.result.succeeded++ // nothing matched
	}
	return err
}

// multiSearch runs an update of many that must look before it writes: an upsert whose partitions do not follow from the filter is an update everywhere, and
// where nothing matched one upsert; an update that sets the key is refused if it would change a document's, and goes to where the value is that already.
func (b *writeBatch) multiSearch(ctx context.Context, c *partition.Collection, s *statement, sr *search) error {
	filter, among := sr.op.filter, sr.among
	if sr.narrows {
		if sr.place == nil {
			b.result.fail(s.index, sr.placeErr)
			return nil
		}
		same, other, ok := narrow(filter, c.Key.Path(), sr.placed)
		if !ok {
			b.result.fail(s.index, immutable(c.Key, "this multi-update may change it"))
			return nil
		}
		would := *sr.op
		would.filter = other
		cand, err := b.r.pick(ctx, b.q, c, &search{op: &would, among: among})
		if err != nil {
			return searchError{err}
		}
		if cand != nil {
			b.result.fail(s.index, immutable(c.Key, "this multi-update would change it, so nothing was updated"))
			return nil
		}
		filter, among = same, []*partition.Part{sr.place}
	}
	update := *s
	update.raw = rewriteStatement(s.raw, changed{filter: filter})
	var groups []group
	for _, p := range among {
		groups = append(groups, group{p, []*statement{&update}})
	}
	one := &writeResult{}
	if err := b.exchange(ctx, c, b.chunks(groups), one); err != nil {
		return err
	}
	if !sr.op.upsert || one.n > 0 || one.failed() {
		b.result.add(one)
		return nil
	}
	if sr.place == nil {
		b.result.fail(s.index, sr.placeErr)
		return nil
	}
	as := changed{filter: sr.upsertFilter(c.Key), upsert: true}
	if sr.op.effect.Kind == shardkey.Computed {
		as.update = guarded(sr.op.update, c.Key, rawValue(sr.placed))
	}
	update.raw = rewriteStatement(s.raw, as)
	made := &writeResult{}
	if err := b.exchange(ctx, c, b.chunks([]group{{sr.place, []*statement{&update}}}), made); err != nil {
		return err
	}
	if len(made.errs) == 1 && guardRefused(made.errs[0].code, made.errs[0].errmsg) {
		made.errs = nil
		made.fail(s.index, sr.op.guardError(c.Key, true))
	}
	b.result.add(made)
	return nil
}

// changed is what a single write is sent with instead of what the client said: filter and upsert always, the update if it has a type.
type changed struct {
	filter bson.Raw
	upsert bool
	update bsoncore.Value
}

// applied is what came of sending a single write to one part.
type applied struct {
	// hit says that it was applied, or failed there: there is nothing more to look for.
	hit bool
	// met says that an upsert met a document that was not there, or not matched, when it was looked for.
	met bool
	// accept takes the result.
	accept func()
}

// singleWrite finds a document and applies a write to it.
type singleWrite struct {
	r      *Router
	q      *Request
	c      *partition.Collection
	search *search
	stmt   int32
	send   func(part *partition.Part, as changed) (applied, error)

	done bool // something was sent and its result accepted
}

// run searches and writes until the document found was still there. It returns why the write is refused, or the command's error.
func (w *singleWrite) run(ctx context.Context) (*wire.Error, error) {
	var rec *retryRecord
	if w.q.retryable() {
		var err error
		if rec, err = w.r.retries.record(w.q.clientSession(), w.q.TxnNumber); err != nil {
			return nil, err
		}
		done, err := rec.search(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	repeated, err := w.recall(ctx, rec)
	if err != nil || repeated {
		return nil, err
	}
	var last applied
	for range maxSearches {
		cand, err := w.r.pick(ctx, w.q, w.c, w.search)
		if err != nil {
			return nil, searchError{err}
		}
		// Now and not before the search: a first try at another proxy that the search could already see is on record by now, and one that it could not has found the same
		// document, in whose home the session decides.
		if repeated, err := w.recorded(ctx, rec); err != nil || repeated {
			return nil, err
		}
		if cand != nil {
			if refused := w.search.op.check(w.c.Key, cand.key); refused != nil {
				return refused, nil
			}
			a, err := w.apply(rec, choice{home: cand.part.Home, id: rawValue(cand.id), key: rawValue(cand.key)}, cand.part)
			if err != nil || a.hit {
				return nil, err
			}
			continue
		}
		if !w.search.op.upsert {
			return nil, w.validate()
		}
		if w.search.place == nil {
			return w.search.placeErr, nil
		}
		if last, err = w.apply(rec, choice{home: w.search.place.Home, upsert: true, key: rawValue(w.search.placed)}, w.search.place); err != nil || !last.met {
			return nil, err
		}
		if w.q.InTxn { // aborted by that
			last.accept()
			w.done = true
			return nil, nil
		}
		// Somebody's document with this _id may have come meanwhile, or be another one's that the filter does not match: look once more.
		if cand, err = w.r.pick(ctx, w.q, w.c, w.search); err != nil || cand == nil {
			last.accept()
			w.done = true
			return nil, err
		}
	}
	return nil, wire.Errorf(wire.NoProgressMade, "the document to write was gone each of the %d times it had been found", maxSearches)
}

// matchesNothing is a filter that a backend answers without a scan.
var matchesNothing = bson.Raw(bsoncore.NewDocumentBuilder().
	AppendDocument("_id", bsoncore.NewDocumentBuilder().AppendArray("$in", bsoncore.NewArrayBuilder().Build()).Build()).Build())

// validate has a backend judge a write that no document is there for: one that cannot be parsed fails whether or not anything matches.
func (w *singleWrite) validate() error {
	if len(w.search.among) == 0 {
		return nil
	}
	a, err := w.send(w.search.among[0], changed{filter: matchesNothing})
	if err == nil && a.hit {
		a.accept()
		w.done = true
	}
	return err
}

// rawValue is v as a value that owns its bytes.
func rawValue(v bsoncore.Value) bson.RawValue {
	return bson.RawValue{Type: bson.Type(v.Type), Value: append([]byte(nil), v.Data...)}
}

// apply sends the write to the chosen document or place.
func (w *singleWrite) apply(rec *retryRecord, ch choice, part *partition.Part) (applied, error) {
	op := w.search.op
	as := changed{filter: w.search.upsertFilter(w.c.Key), upsert: ch.upsert}
	if !ch.upsert {
		as.filter = withIDFilter(op.filter, bsoncore.Value{Type: bsoncore.Type(ch.id.Type), Data: ch.id.Value})
	}
	if op.timed {
		as.update = op.update
	}
	if op.effect.Kind == shardkey.Computed && (ch.upsert || !inID(w.c.Key)) {
		as.update = guarded(op.update, w.c.Key, ch.key)
	}
	if rec != nil {
		w.r.retries.setChoice(rec, w.q.TxnNumber, w.stmt, ch)
	}
	a, err := w.send(part, as)
	if err != nil {
		return a, err
	}
	if a.hit && !(ch.upsert && a.met) {
		a.accept()
		w.done = true
	}
	return a, nil
}

// recall repeats a retryable write at the document that this process chose for it before, if it did; the home's record, or the ledger, then answers.
func (w *singleWrite) recall(ctx context.Context, rec *retryRecord) (repeated bool, err error) {
	if rec == nil {
		return false, nil
	}
	ch, ok := w.r.retries.choice(rec, w.q.TxnNumber, w.stmt)
	for _, p := range w.c.Parts {
		if ok && p.Home == ch.home && (containsPart(w.search.among, p) || p == w.search.place) {
			a, err := w.apply(rec, ch, p)
			return a.hit && w.done, err
		}
	}
	return false, nil
}

// recorded repeats a retryable write at the home that has it on record, if one has.
func (w *singleWrite) recorded(ctx context.Context, rec *retryRecord) (repeated bool, err error) {
	if rec == nil {
		return false, nil
	}
	home, err := w.r.anyHome(ctx, w.q, w.c, w.stmt)
	if err != nil || home == nil {
		return false, err
	}
	a, err := w.send(home, changed{filter: w.search.op.filter, upsert: w.search.op.upsert})
	if err != nil || !a.hit {
		return false, err
	}
	a.accept()
	w.done = true
	return true, nil
}

// upsertFilter is the filter of an upsert at its place. A key value that the update sets is added, so that no document with another value, which may be in the
// same partition, can be matched; so is an _id of our making.
func (sr *search) upsertFilter(key *shardkey.Pattern) bson.Raw {
	op := sr.op
	if sr.inserts {
		return neverFilter(op.filter)
	}
	sets := op.effect.Kind == shardkey.SetsTo || op.effect.Kind == shardkey.Replaces
	if !sr.makesID && (!sets || !plainEquality(sr.placed)) {
		return op.filter
	}
	path := "_id"
	if !sr.makesID {
		path = key.Path()
	}
	return andFilter(op.filter, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, path, sr.placed))))
}

// plainEquality reports whether a value stands for equality with itself in a filter and leaves no trace where a field is missing.
func plainEquality(v bsoncore.Value) bool {
	switch v.Type {
	case bsoncore.TypeNull, bsoncore.TypeUndefined, bsoncore.TypeRegex, bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
		return false
	}
	return true
}

// andFilter is the conjunction of two filters.
func andFilter(a, b bson.Raw) bson.Raw {
	at, dst := bsoncore.AppendDocumentStart(nil)
	in, dst := bsoncore.AppendArrayElementStart(dst, "$and")
	dst = bsoncore.AppendDocumentElement(dst, "0", bsoncore.Document(a))
	dst = bsoncore.AppendDocumentElement(dst, "1", bsoncore.Document(b))
	dst, _ = bsoncore.AppendArrayEnd(dst, in)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// withIDFilter adds to a filter that the document is the one with that _id. The filter stays: the document may have changed, and positional operators
// refer to it.
func withIDFilter(filter bson.Raw, id bsoncore.Value) bson.Raw {
	eq := bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "$eq", id))
	if _, err := bsoncore.Document(filter).LookupErr("_id"); err == nil {
		return andFilter(filter, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "_id", eq))))
	}
	dst := bsoncore.AppendDocumentElement(make([]byte, 4, len(filter)+len(eq)+8), "_id", eq)
	return bson.Raw(closeDocument(append(dst, filter[4:len(filter)-1]...), 0))
}

// rewriteStatement gives a statement what is changed; a sort, which the search has done, is left out.
func rewriteStatement(raw bson.Raw, as changed) bson.Raw {
	dst := make([]byte, 4, len(raw)+len(as.filter)+len(as.update.Data)+16)
	for rem := []byte(raw[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		switch key := string(e.KeyBytes()); {
		case key == "q":
			dst = bsoncore.AppendDocumentElement(dst, "q", bsoncore.Document(as.filter))
		case key == "u" && as.update.Type != 0:
			dst = bsoncore.AppendValueElement(dst, "u", as.update)
		case key == "sort", key == "upsert":
		default:
			dst = append(dst, e...)
		}
	}
	if as.upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	return bson.Raw(closeDocument(dst, 0))
}

// pick asks every part where it may be for the document and takes the first in the order of the sort; nil when there is none. Without a sort a document
// that the update leaves where it is comes before one it would have to be refused for.
func (r *Router) pick(ctx context.Context, q *Request, c *partition.Collection, s *search) (*candidate, error) {
	var by order.Sort
	if doc, ok := s.op.sort.DocumentOK(); ok && len(doc) > 5 {
		var err error
		if by, err = order.ParseSort(bson.Raw(doc)); err != nil {
			return nil, err
		}
		if len(s.among) > 1 && (by.Special() != order.ByFields || !s.op.simple) {
			return nil, wire.Errorf(wire.NotImplemented, "a single write sorted by $natural, by $meta or under a collation cannot be merged from several partitions; give a filter on the shard key")
		}
	}
	for n := 1; ; n++ {
		best, err := r.pickOnce(ctx, q, c, s, by)
		// Nothing has been written yet, so the search may begin again. A transaction is aborted by an error.
		if n == attempts || q.InTxn || !mayRepeat(ctx, err) {
			return best, err
		}
	}
}

func (r *Router) pickOnce(ctx context.Context, q *Request, c *partition.Collection, s *search, by order.Sort) (*candidate, error) {
	var near *merge.Near
	if by.Empty() && len(s.among) > 1 {
		var err error
		if near, err = merge.FindNear(s.op.filter); err != nil {
			return nil, err
		}
	}
	targets := make([]target, len(s.among))
	msgs := make([][]byte, len(s.among))
	for i, p := range s.among {
		targets[i], msgs[i] = target{Backend: p.Backend, Part: p, Wait: true}, wire.AppendMsg(nil, 0, 0, 0, q.searchCommand(p, s.op, c.Key, near))
	}
	replies, errs := r.scatter(ctx, targets, msgs)
	var best *candidate
	var first error
	for i := range replies {
		if errs[i] != nil {
			first = firstError(first, errs[i])
			continue
		}
		cand, err := readCandidate(c.Key, replies[i].Body, s.among[i])
		replies[i].Release()
		if err != nil {
			first = firstError(first, err)
			continue
		}
		if cand != nil && near != nil {
			cand.distance, _ = merge.Distance(cand.doc)
		}
		if cand != nil && (best == nil || better(by, s.op, c.Key, cand, best)) {
			best = cand
		}
	}
	return best, first
}

func firstError(first, err error) error {
	if first != nil {
		return first
	}
	return err
}

// better reports whether a comes before b.
func better(by order.Sort, op *operation, key *shardkey.Pattern, a, b *candidate) bool {
	if !by.Empty() && by.Special() == order.ByFields {
		return by.CompareKeys(by.AppendKey(nil, a.doc), by.AppendKey(nil, b.doc)) < 0
	}
	if d := order.Compare(a.distance, b.distance); d != 0 {
		return d < 0
	}
	return op.check(key, b.key) != nil && op.check(key, a.key) == nil
}

// searchCommand looks for a single write's document in one part: a find, or for the nearest document, if near is not nil, an aggregate.
func (q *Request) searchCommand(p *partition.Part, op *operation, key *shardkey.Pattern, near *merge.Near) []byte {
	at, dst := bsoncore.AppendDocumentStart(nil)
	if near != nil {
		dst = bsoncore.AppendStringElement(dst, "aggregate", p.Physical)
		dst = appendCursorArg(appendPipeline(dst, near.NearestStages(keyProjection(key))), 0)
	} else {
		dst = bsoncore.AppendStringElement(dst, "find", p.Physical)
		dst = bsoncore.AppendDocumentElement(dst, "filter", bsoncore.Document(op.filter))
		if op.sort.Type != 0 {
			dst = bsoncore.AppendValueElement(dst, "sort", op.sort)
		} else {
			dst = bsoncore.AppendDocumentElement(dst, "projection", keyProjection(key))
		}
		dst = bsoncore.AppendInt32Element(dst, "limit", 1)
		dst = bsoncore.AppendBooleanElement(dst, "singleBatch", true)
	}
	for _, f := range []struct {
		name string
		v    bsoncore.Value
	}{{"collation", op.collation}, {"hint", op.hint}, {"let", op.let}} {
		if f.v.Type != 0 {
			dst = bsoncore.AppendValueElement(dst, f.name, f.v)
		}
	}
	if q.Comment.Type != 0 {
		dst = bsoncore.AppendValueElement(dst, "comment", q.Comment)
	}
	if q.Session != nil {
		dst = q.appendSession(dst, q.Session)
	}
	if left := q.remaining(); left > 0 {
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", left.Milliseconds())
	}
	dst = bsoncore.AppendStringElement(dst, "$db", p.DB)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// keyProjection asks for the _id and the shard key only.
func keyProjection(key *shardkey.Pattern) []byte {
	dst := bsoncore.AppendInt32Element(make([]byte, 4, 64), "_id", 1)
	if path := key.Path(); path != "_id" && (len(path) < 4 || path[:4] != "_id.") {
		dst = bsoncore.AppendInt32Element(dst, path, 1)
	}
	return closeDocument(dst, 0)
}

// readCandidate takes the document out of a find's reply.
func readCandidate(key *shardkey.Pattern, body bson.Raw, p *partition.Part) (*candidate, error) {
	if err := commandError(body); err != nil {
		return nil, err
	}
	first, err := bsoncore.Document(body).LookupErr("cursor", "firstBatch", "0")
	if err != nil {
		return nil, nil
	}
	d, ok := first.DocumentOK()
	if !ok {
		return nil, wire.Errorf(wire.InternalError, "a backend's reply to find holds what is no document")
	}
	doc := append(bson.Raw(nil), d...)
	k, err := key.Value(doc)
	if err != nil {
		return nil, err
	}
	return &candidate{part: p, doc: doc, id: bsoncore.Document(doc).Lookup("_id"), key: k}, nil
}
