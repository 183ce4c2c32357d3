package splitter

import (
	"bytes"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend/backendtest"
)

// oldServer stores documents as servers do that know no bypassEmptyTsReplacement: an insert has its
// zero timestamps at the top replaced and its _id put first, an update by $set or $setField keeps
// zeros and the places of fields.
type oldServer struct {
	t       *testing.T
	mu      sync.Mutex
	docs    []bson.Raw
	updates []bson.Raw
}

func (o *oldServer) answer(cmd backendtest.Command) backendtest.Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch cmd.Name {
	case "insert":
		if _, err := cmd.Body.LookupErr("bypassEmptyTsReplacement"); err == nil {
			return backendtest.Err(40415, "Location40415", "BSON field 'insert.bypassEmptyTsReplacement' is an unknown field.")
		}
		for _, d := range cmd.Docs("documents") {
			o.docs = append(o.docs, o.inserted(d))
		}
	case "update":
		for _, u := range cmd.Docs("updates") {
			o.updates = append(o.updates, bytes.Clone(u))
			i := slices.IndexFunc(o.docs, func(d bson.Raw) bool { return d.Lookup("_id").Equal(u.Lookup("q", "_id")) })
			if i < 0 {
				o.t.Errorf("an update of what is not there: %v", u)
				continue
			}
			for _, name := range o.fieldsOf(u) {
				o.docs[i] = withValues(o.docs[i], func(e bsoncore.Element) bool { return e.Key() == name }, bson.Timestamp{})
			}
		}
	}
	return backendtest.OK(bson.E{Key: "n", Value: int32(1)})
}

func (o *oldServer) inserted(doc bson.Raw) bson.Raw {
	return withValues(idFirst(doc), func(e bsoncore.Element) bool {
		t, i, ok := e.Value().TimestampOK()
		return ok && t == 0 && i == 0 && e.Key() != "_id"
	}, bson.Timestamp{T: 1796098382, I: 7})
}

// fieldsOf are the fields that an update sets to the zero timestamp.
func (o *oldServer) fieldsOf(u bson.Raw) (names []string) {
	if set, ok := u.Lookup("u", "$set").DocumentOK(); ok {
		elems, _ := set.Elements()
		for _, e := range elems {
			if t, i, ok := e.Value().TimestampOK(); !ok || t != 0 || i != 0 {
				o.t.Errorf("$set of %v", e)
			}
			names = append(names, e.Key())
		}
		return names
	}
	for v := u.Lookup("u", "0", "$replaceWith"); ; {
		set, ok := v.DocumentOK()
		if !ok {
			if v.StringValue() != "$$ROOT" {
				o.t.Errorf("the input is %v", v)
			}
			return names
		}
		names = append(names, set.Lookup("$setField", "field", "$literal").StringValue())
		v = set.Lookup("$setField", "input")
	}
}

// withValues is a document with the values of some elements replaced in their places.
func withValues(doc bson.Raw, which func(bsoncore.Element) bool, by bson.Timestamp) bson.Raw {
	var elems [][]byte
	all, _ := bsoncore.Document(doc).Elements()
	for _, e := range all {
		if which(e) {
			elems = append(elems, bsoncore.AppendTimestampElement(nil, e.Key(), by.T, by.I))
		} else {
			elems = append(elems, e)
		}
	}
	return bsoncore.BuildDocument(nil, elems...)
}

// TestZeroTimestampsAreCopied: an insert has a server put its time where a document has
// Timestamp(0, 0) at its top. The copy is byte for byte the same all the same, whatever the fields
// are called.
func TestZeroTimestampsAreCopied(t *testing.T) {
	zero := bson.Timestamp{}
	old := &oldServer{t: t}
	r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), old.answer)
	var docs []bson.Raw
	for _, d := range []bson.D{
		{{Key: "_id", Value: 1}, {Key: "a", Value: 1}},
		{{Key: "_id", Value: 2}, {Key: "ts", Value: zero}, {Key: "a", Value: 1}, {Key: "more", Value: zero}},
		{{Key: "_id", Value: 3}, {Key: "a.b", Value: zero}, {Key: "$c", Value: zero}, {Key: "", Value: zero}, {Key: "plain", Value: zero}, {Key: "z", Value: 9}},
		{{Key: "_id", Value: zero}, {Key: "nested", Value: bson.D{{Key: "ts", Value: zero}}}},
		{{Key: "_id", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "ts", Value: bson.Timestamp{I: 1}}, {Key: "at", Value: zero}},
	} {
		docs = append(docs, raw(t, d))
	}
	if err := r.insert(t.Context(), 0, docs); err != nil {
		t.Fatal(err)
	}
	for i, d := range docs {
		if !bytes.Equal(old.docs[i], d) {
			t.Errorf("copied as %v, want %v", old.docs[i], d)
		}
	}
	if len(old.updates) != 3 {
		t.Errorf("%d documents are updated, want 3: %v", len(old.updates), old.updates)
	}
	insert, update := named(server, "insert")[0].Body, named(server, "update")[0].Body
	if !insert.Lookup("lsid").Equal(update.Lookup("lsid")) || update.Lookup("txnNumber").Int64() != insert.Lookup("txnNumber").Int64()+1 {
		t.Errorf("the update is not the next write of the insert's session: %v, %v", insert, update)
	}
	if update.Lookup("writeConcern", "w").StringValue() != "majority" || !update.Lookup("bypassDocumentValidation").Boolean() {
		t.Errorf("the update is %v", update)
	}
}

// TestZerosOfRefusedDocuments: a document that an insert has refused, since it met an equal entry,
// is not updated: what has its _id is another one. What an update meets is a duplicate like what an
// insert meets.
func TestZerosOfRefusedDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		inserts, updates backendtest.Answer
		updated          []int32
		dup, again       bool
	}{
		"one is refused":        {writeErrors(writeError(0, 11000, "_id")), backendtest.OK(), []int32{1}, true, false},
		"all are refused":       {writeErrors(writeError(0, 11000, "_id"), writeError(1, 11000, "x")), backendtest.OK(), nil, true, false},
		"an update is":          {backendtest.OK(), writeErrors(writeError(1, 11000, "ts")), []int32{0, 1}, true, false},
		"an update fails":       {backendtest.OK(), backendtest.Err(13, "Unauthorized", "x"), []int32{0, 1}, false, true},
		"no majority for it":    {backendtest.OK(), unconfirmed(64, "WriteConcernFailed", "waiting for replication timed out"), []int32{0, 1}, false, true},
		"its reply is lost":     {backendtest.OK(), backendtest.Cut(), []int32{0, 1}, false, true},
		"the inserts are wrong": {backendtest.Err(361, "CollectionUUIDMismatch", "Collection UUID does not match that specified"), backendtest.OK(), nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, server := scripted(t, 1, backendtest.ReplicaSet("rs"), func(cmd backendtest.Command) backendtest.Answer {
				switch cmd.Name {
				case "insert":
					return c.inserts
				case "update":
					return c.updates
				}
				return backendtest.OK()
			})
			var docs []bson.Raw
			for i := range int32(2) {
				docs = append(docs, raw(t, bson.D{{Key: "_id", Value: i}, {Key: "ts", Value: bson.Timestamp{}}}))
			}
			err := r.insert(t.Context(), 0, docs)
			if isDuplicate(err) != c.dup || passingAgain(err) != c.again {
				t.Errorf("%v", err)
			}
			var got []int32
			if sent := named(server, "update"); len(sent) > 0 {
				for _, u := range sent[0].Docs("updates") {
					got = append(got, u.Lookup("q", "_id").Int32())
				}
			}
			if !slices.Equal(got, c.updated) {
				t.Errorf("updated %v, want %v", got, c.updated)
			}
		})
	}
}

// TestPlaceOfID: a server puts _id first whenever it stores a document, so a copy with it there is
// the same.
func TestPlaceOfID(t *testing.T) {
	first := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 2}, {Key: "b", Value: 3}})
	for name, c := range map[string]struct {
		doc  bson.D
		same bool
	}{
		"first":       {bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 2}, {Key: "b", Value: 3}}, true},
		"last":        {bson.D{{Key: "a", Value: 2}, {Key: "b", Value: 3}, {Key: "_id", Value: 1}}, true},
		"between":     {bson.D{{Key: "a", Value: 2}, {Key: "_id", Value: 1}, {Key: "b", Value: 3}}, true},
		"others swap": {bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: 3}, {Key: "a", Value: 2}}, false},
		"another":     {bson.D{{Key: "a", Value: 2}, {Key: "b", Value: 3}, {Key: "_id", Value: 2}}, false},
		"none":        {bson.D{{Key: "a", Value: 2}, {Key: "b", Value: 3}}, false},
	} {
		if got := sameDocument(raw(t, c.doc), first); got != c.same {
			t.Errorf("%s: the same: %v, want %v", name, got, c.same)
		}
	}
}

// unconfirmed answers that a command was executed and its write concern was not met, as a mongod
// does.
func unconfirmed(code int32, name, text string) backendtest.Answer {
	return backendtest.OK(bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: code}, {Key: "codeName", Value: name}, {Key: "errmsg", Value: text},
		{Key: "errInfo", Value: bson.D{{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(0)}, {Key: "provenance", Value: "clientSupplied"}}}}}}})
}
