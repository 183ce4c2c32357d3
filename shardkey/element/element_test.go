package element

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func TestNameLen(t *testing.T) {
	for n := range 40 {
		b := append(bytes.Repeat([]byte{1}, n), 0, 0x80, 0xff, 0)
		if got := nameLen(b); got != n {
			t.Errorf("a name of %d bytes has %d", n, got)
		}
		if got := nameLen(bytes.Repeat([]byte{0xff}, n)); got != -1 {
			t.Errorf("%d bytes without an end have %d", n, got)
		}
		high := append(bytes.Repeat([]byte{0x81}, n), 0)
		if got := nameLen(high); got != n {
			t.Errorf("a name of %d bytes from 0x81 has %d", n, got)
		}
	}
}

// FuzzIter: what the iterator reads is what the library reads, and together it is the document.
func FuzzIter(f *testing.F) {
	for _, d := range []bson.D{
		{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "a.b", Value: int64(1)}}}, {Key: "", Value: nil}},
		{{Key: "re", Value: bson.Regex{Pattern: "a", Options: "i"}}, {Key: "code", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{}}}},
		{{Key: "b", Value: bson.Binary{Subtype: 2, Data: []byte{1}}}, {Key: "d", Value: bson.NewDecimal128(1, 2)}, {Key: "p", Value: bson.DBPointer{DB: "d"}}},
	} {
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var raws []byte
		it := In(doc)
		var e Element
		for it.Next(&e) {
			raws = append(raws, e.Raw...)
			lib, rest, ok := bsoncore.ReadElement(e.Raw)
			if !ok || len(rest) != 0 || !bytes.Equal(lib.KeyBytes(), e.Key) {
				t.Fatalf("% x: the library reads %v with %d left", e.Raw, ok, len(rest))
			}
			if v := lib.Value(); v.Type != e.Type || !bytes.Equal(v.Data, e.Data) {
				t.Fatalf("% x: the library reads %v", e.Raw, v)
			}
		}
		if !it.Malformed() && !bytes.Equal(raws, doc[4:len(doc)-1]) {
			t.Fatalf("% x is not what was read of it", doc)
		}
	})
}
