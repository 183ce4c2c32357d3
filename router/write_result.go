package router

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// maxErrorText is how much text of errors a reply carries; after it errmsg is empty, index and code stay (mongos-behaviour §3.11).
const maxErrorText = 1 << 20

// writeResult is the merged result of a batch, by the client's indexes.
type writeResult struct {
	n, modified int64
	upserted    []upserted
	errs        []writeError
	concerns    []concernError
	retried     []int32
	succeeded   int // statements, or parts of them, that were run
	// helps says that another attempt may succeed with what has failed, or get confirmed what has not been.
	helps bool
	// unremembered says that a repetition might execute again what was executed (see the error of that name).
	unremembered bool
}

type upserted struct {
	index int
	id    bson.RawValue
}

// writeError is one statement's error at one backend.
type writeError struct {
	index  int
	code   int32
	errmsg string
	rest   []byte // further elements, code included
}

// concernError is a writeConcernError of one backend.
type concernError struct {
	backend string
	doc     bson.Raw
}

// maxConcerns bounds the write concern errors of one reply. An ordered batch goes in as many messages as it changes between partitions.
const maxConcerns = 64

// addConcern keeps a backend's write concern error unless it has said the same before.
func (w *writeResult) addConcern(c concernError) {
	same := func(o concernError) bool { return o.backend == c.backend && bytes.Equal(o.doc, c.doc) }
	if len(w.concerns) < maxConcerns && !slices.ContainsFunc(w.concerns, same) {
		w.concerns = append(w.concerns, c)
	}
}

// nothing reports whether nothing has been run or refused.
func (w *writeResult) nothing() bool { return w.succeeded == 0 && len(w.errs) == 0 }

func (w *writeResult) failed() bool { return len(w.errs) > 0 }

// fail records a statement's error.
func (w *writeResult) fail(index int, err error) {
	w.note(err)
	e := wire.AsError(err)
	rest := bsoncore.AppendInt32Element(nil, "code", int32(e.Code))
	if len(e.Extra) > 5 {
		rest = append(rest, e.Extra[4:len(e.Extra)-1]...)
	}
	w.errs = append(w.errs, writeError{index: index, code: int32(e.Code), errmsg: cleanNames(e.Message), rest: rest})
}

// note keeps what an error says of a repetition of the command.
func (w *writeResult) note(err error) {
	var lost unremembered
	w.helps = w.helps || helpsToRetry(err)
	w.unremembered = w.unremembered || errors.As(err, &lost)
}

// failChunk records that a message failed as a whole: for the first statement of an ordered batch, else for each.
func (w *writeResult) failChunk(k *chunk, err error, ordered bool) {
	w.note(err)
	e := wire.AsError(err)
	told := *e
	told.Message = "write results unavailable from " + k.part.Backend + " :: caused by :: " + e.Message
	for _, s := range k.stmts {
		w.fail(s.index, &told)
		if ordered {
			return
		}
	}
}

// add merges another result into w.
func (w *writeResult) add(o *writeResult) {
	w.n += o.n
	w.modified += o.modified
	w.upserted = append(w.upserted, o.upserted...)
	w.errs = append(w.errs, o.errs...)
	for _, c := range o.concerns {
		w.addConcern(c)
	}
	w.retried = append(w.retried, o.retried...)
	w.succeeded += o.succeeded
	w.helps = w.helps || o.helps
	w.unremembered = w.unremembered || o.unremembered
}

// take merges a backend's ok reply to the statements of k.
func (w *writeResult) take(body bson.Raw, k *chunk, ordered bool) {
	failures := 0
	for rem := []byte(body[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		v := e.Value()
		switch string(e.KeyBytes()) {
		case "n":
			n, _ := v.AsInt64OK()
			w.n += n
		case "nModified":
			n, _ := v.AsInt64OK()
			w.modified += n
		case "upserted":
			eachDocument(v, func(d bsoncore.Document) { w.takeUpserted(d, k) })
		case "writeErrors":
			eachDocument(v, func(d bsoncore.Document) { failures++; w.takeError(d, k) })
		case "writeConcernError":
			if d, ok := v.DocumentOK(); ok {
				w.addConcern(concernError{k.part.Backend, bson.Raw(d)})
				code, _ := d.Lookup("code").AsInt64OK()
				w.helps = w.helps || wire.Code(code).Retriable()
			}
		case "errorLabels":
			w.helps = w.helps || slices.Contains(wire.Labels(v), retryableWrite)
		case "retriedStmtIds":
			w.takeRetried(v)
		}
	}
	if ordered && failures > 0 {
		// What came before the error was run.
		w.succeeded += k.before(w.errs[len(w.errs)-1].index)
		return
	}
	w.succeeded += len(k.stmts) - failures
}

// before counts the statements before the one with that index in the client's batch.
func (k *chunk) before(index int) int {
	for i, s := range k.stmts {
		if s.index == index {
			return i
		}
	}
	return 0
}

func (w *writeResult) takeUpserted(d bsoncore.Document, k *chunk) {
	i, _ := d.Lookup("index").AsInt64OK()
	id, err := d.LookupErr("_id")
	if err != nil || i < 0 || int(i) >= len(k.stmts) {
		return
	}
	w.upserted = append(w.upserted, upserted{k.stmts[i].index, bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}})
}

func (w *writeResult) takeError(d bsoncore.Document, k *chunk) {
	var e writeError
	for rem := []byte(d[4:]); len(rem) > 1; {
		el, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		switch string(el.KeyBytes()) {
		case "index":
			i, _ := el.Value().AsInt64OK()
			e.index = k.stmts[max(0, min(int(i), len(k.stmts)-1))].index
		case "errmsg":
			s, _ := el.Value().StringValueOK()
			e.errmsg = cleanNames(s)
		case "code":
			n, _ := el.Value().AsInt64OK()
			e.code = int32(n)
			e.rest = append(e.rest, el...)
		default:
			e.rest = append(e.rest, el...)
		}
	}
	w.errs = append(w.errs, e)
}

func (w *writeResult) takeRetried(v bsoncore.Value) {
	arr, ok := v.ArrayOK()
	if !ok {
		return
	}
	values, _ := arr.Values()
	for _, id := range values {
		if n, ok := id.AsInt64OK(); ok {
			w.retried = append(w.retried, int32(n))
		}
	}
}

// eachDocument calls f for the documents of an array.
func eachDocument(v bsoncore.Value, f func(bsoncore.Document)) {
	arr, ok := v.ArrayOK()
	if !ok {
		return
	}
	values, _ := arr.Values()
	for _, x := range values {
		if d, ok := x.DocumentOK(); ok {
			f(d)
		}
	}
}

// reply makes the reply to q.
func (w *writeResult) reply(q *Request, update bool) bson.Raw {
	dst := make([]byte, 4, 128)
	dst = appendCount(dst, "n", w.n)
	if update {
		dst = appendCount(dst, "nModified", w.modified)
	}
	dst = w.appendUpserted(dst)
	errs := w.joined()
	dst = appendWriteErrors(dst, errs)
	if len(w.concerns) > 0 {
		dst = bsoncore.AppendDocumentElement(dst, "writeConcernError", w.concern())
	}
	if len(w.retried) > 0 {
		slices.Sort(w.retried)
		at, d := bsoncore.AppendArrayElementStart(dst, "retriedStmtIds")
		for i, id := range slices.Compact(w.retried) {
			d = bsoncore.AppendInt32Element(d, itoa(i), id)
		}
		dst, _ = bsoncore.AppendArrayEnd(d, at)
	}
	if q.retryLabel(w.helps && !w.unremembered) {
		at, d := bsoncore.AppendArrayElementStart(dst, "errorLabels")
		d = bsoncore.AppendStringElement(d, "0", retryableWrite)
		dst, _ = bsoncore.AppendArrayEnd(d, at)
	}
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	return bson.Raw(closeDocument(dst, 0))
}

// appendCount appends a count as mongod does: an int32 while it is one.
func appendCount(dst []byte, key string, n int64) []byte {
	if int64(int32(n)) == n {
		return bsoncore.AppendInt32Element(dst, key, int32(n))
	}
	return bsoncore.AppendInt64Element(dst, key, n)
}

func (w *writeResult) appendUpserted(dst []byte) []byte {
	if len(w.upserted) == 0 {
		return dst
	}
	slices.SortFunc(w.upserted, func(a, b upserted) int { return cmp.Compare(a.index, b.index) })
	at, dst := bsoncore.AppendArrayElementStart(dst, "upserted")
	for i, u := range w.upserted {
		in, d := bsoncore.AppendDocumentElementStart(dst, itoa(i))
		d = bsoncore.AppendInt32Element(d, "index", int32(u.index))
		d = bsoncore.AppendValueElement(d, "_id", bsoncore.Value{Type: bsoncore.Type(u.id.Type), Data: u.id.Value})
		dst, _ = bsoncore.AppendDocumentEnd(d, in)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// joined sorts the errors by index and makes one of those that one statement met at several backends: with their code if it is the same, else 65 with
// all of them as its causes (mongos-behaviour §3.11).
func (w *writeResult) joined() []writeError {
	slices.SortStableFunc(w.errs, func(a, b writeError) int { return cmp.Compare(a.index, b.index) })
	var out []writeError
	for rest := w.errs; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].index == rest[0].index {
			n++
		}
		out = append(out, joinErrors(rest[:n]))
		rest = rest[n:]
	}
	return out
}

// joinErrors makes one error of those of one statement.
func joinErrors(errs []writeError) writeError {
	one := errs[0]
	var different []writeError
	for _, e := range errs {
		if !slices.ContainsFunc(different, func(d writeError) bool { return d.code == e.code && d.errmsg == e.errmsg }) {
			different = append(different, e)
		}
	}
	alike := true
	for _, e := range different[1:] {
		one.errmsg += " :: and :: " + e.errmsg
		alike = alike && e.code == one.code
	}
	if alike {
		return one
	}
	causes := bsoncore.NewArrayBuilder()
	for _, e := range different {
		causes.AppendDocument(bsoncore.BuildDocument(nil, e.rest, bsoncore.AppendStringElement(nil, "errmsg", e.errmsg)))
	}
	one.code = int32(wire.MultipleErrorsOccurred)
	one.rest = bsoncore.AppendInt32Element(nil, "code", one.code)
	one.rest = bsoncore.AppendDocumentElement(one.rest, "errInfo", bsoncore.NewDocumentBuilder().AppendArray("causedBy", causes.Build()).Build())
	return one
}

func appendWriteErrors(dst []byte, errs []writeError) []byte {
	if len(errs) == 0 {
		return dst
	}
	text := 0
	at, dst := bsoncore.AppendArrayElementStart(dst, "writeErrors")
	for i, e := range errs {
		if text += len(e.errmsg); text > maxErrorText {
			e.errmsg = ""
		}
		in, d := bsoncore.AppendDocumentElementStart(dst, itoa(i))
		d = bsoncore.AppendInt32Element(d, "index", int32(e.index))
		d = append(d, e.rest...)
		d = bsoncore.AppendStringElement(d, "errmsg", e.errmsg)
		dst, _ = bsoncore.AppendDocumentEnd(d, in)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// concern merges the backends' write concern errors: one keeps its code and says where, several are 64 (mongos-behaviour §3.11).
func (w *writeResult) concern() []byte {
	text := func(c concernError) string {
		s, _ := bsoncore.Document(c.doc).Lookup("errmsg").StringValueOK()
		return cleanNames(s) + " at " + c.backend
	}
	if len(w.concerns) > 1 {
		all := ""
		for i, c := range w.concerns {
			if i > 0 {
				all += " :: and :: "
			}
			all += text(c)
		}
		return bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "code", int32(wire.WriteConcernFailed)),
			bsoncore.AppendStringElement(nil, "codeName", wire.WriteConcernFailed.Name()), bsoncore.AppendStringElement(nil, "errmsg", all))
	}
	c := w.concerns[0]
	dst := make([]byte, 4, len(c.doc)+32)
	for rem := []byte(c.doc[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			break
		}
		rem = rest
		if string(e.KeyBytes()) == "errmsg" {
			dst = bsoncore.AppendStringElement(dst, "errmsg", text(c))
		} else {
			dst = append(dst, e...)
		}
	}
	return closeDocument(dst, 0)
}

func itoa(i int) string { return strconv.Itoa(i) }
