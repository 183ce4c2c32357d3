package wire

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// nested is a document of so many levels, documents and arrays in turns.
func nested(levels int) []byte {
	doc := bsoncore.BuildDocument(nil)
	for i := range levels - 1 {
		if i%2 == 0 {
			doc = bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "x", 3), bsoncore.AppendArrayElement(nil, "0", bsoncore.Array(doc)), bsoncore.AppendInt32Element(nil, "y", 4))
		} else {
			doc = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "0", doc))
		}
	}
	return doc
}

func TestCheckDepth(t *testing.T) {
	wide := bsoncore.AppendInt32Element(nil, "ping", 1)
	for range 1000 {
		wide = bsoncore.AppendDocumentElement(wide, "d", nested(3))
	}
	for name, test := range map[string]struct {
		msg  Msg
		code Code
	}{
		"the deepest body":      {Msg{Body: nested(MaxDepth)}, 0},
		"a deeper body":         {Msg{Body: nested(MaxDepth + 1)}, Overflow},
		"far deeper":            {Msg{Body: nested(5000)}, Overflow},
		"wide":                  {Msg{Body: bsoncore.BuildDocument(nil, wide)}, 0},
		"the deepest documents": {Msg{Body: nested(1), Sequences: []Sequence{{Docs: append(nested(MaxDepth), nested(MaxDepth)...)}}}, 0},
		"a deeper document":     {Msg{Body: nested(1), Sequences: []Sequence{{Docs: append(nested(3), nested(MaxDepth+1)...)}}}, Overflow},
		"malformed":             {Msg{Body: nested(MaxDepth + 1)[:1500]}, 0},
	} {
		if err := test.msg.CheckDepth(); test.code == 0 && err != nil || test.code != 0 && (err == nil || AsError(err).Code != test.code) {
			t.Errorf("%s: %v, want code %d", name, err, test.code)
		}
	}
}

func TestCheckDepthAllocatesNothing(t *testing.T) {
	msg := Msg{Body: nested(MaxDepth)}
	if n := testing.AllocsPerRun(100, func() { _ = msg.CheckDepth() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
