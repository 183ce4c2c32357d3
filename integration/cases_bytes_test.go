package integration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/integration/rawconn"
)

const maxDocument = 16 << 20

// documentOf is a document of exactly size bytes.
func documentOf(t *testing.T, id int32, size int) bson.Raw {
	t.Helper()
	head := bson.D{{Key: "_id", Value: id}, {Key: "tenant", Value: id}, {Key: "f", Value: ""}}
	bare, err := bson.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	head[2].Value = strings.Repeat("x", size-len(bare))
	doc, err := bson.Marshal(head)
	if err != nil || len(doc) != size {
		t.Fatalf("%d bytes, %v", len(doc), err)
	}
	return doc
}

// Case 32: a document of exactly 16 MB fits everywhere, also through a move; a larger one is an error, not the end of the connection.
func TestCase32LargestDocuments(t *testing.T) {
	c, db := caseColl(t, "tenant")
	for id := range int32(3) {
		must(t, c, db, insertCmd(documentOf(t, id, maxDocument)))
	}
	for _, test := range []struct {
		size  int
		codes []int64
	}{{maxDocument + 1, []int64{2, 10334}}, {18 << 20, []int64{2, 10334}}} {
		reply := ask(t, c, db, insertCmd(documentOf(t, 9, test.size)))
		if code := anyCode(reply); code != test.codes[0] && code != test.codes[1] {
			t.Errorf("insert of %d bytes: %v", test.size, reply)
		}
	}
	grow := ask(t, c, db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "tenant", Value: int32(1)}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "more", Value: strings.Repeat("y", 1000)}}}}}}}}})
	if anyCode(grow) == 0 {
		t.Errorf("a document was made larger than 16 MB: %v", grow)
	}
	whole := func(when string) {
		t.Helper()
		got := drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
		if len(got) != 3 {
			t.Fatalf("%s: %d documents", when, len(got))
		}
		for i, d := range got {
			if !bytes.Equal(d, documentOf(t, int32(i), maxDocument)) {
				t.Errorf("%s: document %d has changed, %d bytes", when, i, len(d))
			}
		}
	}
	whole("as inserted")
	c.SetTimeout(3 * time.Minute) // a move of 16 MB documents, verified byte for byte, on a busy machine
	to := "b1"
	where := must(t, c, "config", bson.D{{Key: "find", Value: "chunks"}, {Key: "limit", Value: int32(1)}, {Key: "filter", Value: bson.D{{Key: "shard", Value: bson.D{{Key: "$ne", Value: "b1"}}}, {Key: "ns", Value: db + ".c"}}}})
	chunks, _ := batchOf(t, where)
	if len(chunks) == 0 { // config.chunks names collections by uuid, as mongos' does
		coll, _ := batchOf(t, must(t, c, "config", bson.D{{Key: "find", Value: "collections"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: db + ".c"}}}}))
		chunks, _ = batchOf(t, must(t, c, "config", bson.D{{Key: "find", Value: "chunks"}, {Key: "filter", Value: bson.D{{Key: "uuid", Value: coll[0].Lookup("uuid")}, {Key: "shard", Value: bson.D{{Key: "$ne", Value: to}}}}}}))
	}
	for _, chunk := range chunks {
		must(t, c, "admin", bson.D{{Key: "moveChunk", Value: db + ".c"}, {Key: "bounds", Value: bson.A{chunk.Lookup("min"), chunk.Lookup("max")}}, {Key: "to", Value: to}})
	}
	if len(chunks) == 0 {
		t.Fatal("no partition to move")
	}
	whole("after the moves")
}

// anyCode is a reply's code, or that of its first write error.
func anyCode(reply bson.Raw) int64 {
	if code := rawconn.Code(reply); code != 0 {
		return int64(code)
	}
	code, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK()
	return code
}

// element is a BSON element of a string-like type, of any bytes.
func element(kind byte, name, value string) []byte {
	b := append(append([]byte{kind}, name...), 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(value)+1))
	return append(append(b, value...), 0)
}

func document(elements ...[]byte) bson.Raw {
	b := bytes.Join(elements, nil)
	return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b)+5)), b...), 0)
}

// Case 36: bytes that are not UTF-8 pass through as they are, place a document like any others, and hurt nobody.
// A server may refuse them; then the refusal passes through, and the connection stays.
func TestCase36InvalidUTF8(t *testing.T) {
	const bad = "f\xff\xfe"
	c, db := caseColl(t, "tenant")
	straight := dial(t, direct(t).Addr())
	regex := append(append([]byte{0x0b}, "r\x00"...), bad+"\x00\x00"...)
	for i, test := range []struct {
		name string
		doc  bson.Raw
	}{
		{"value", document(element(2, "_id", "1"), element(2, "tenant", "a"), element(2, "v", bad))},
		{"key", document(element(2, "_id", "2"), element(2, "tenant", bad))},
		{"field name", document(element(2, "_id", "3"), element(2, "tenant", "a"), element(2, bad, "v"))},
		{"regex", document(element(2, "_id", "4"), element(2, "tenant", "a"), regex)},
	} {
		cmd := insertCmd(test.doc)
		want := ask(t, straight, fmt.Sprintf("%s_%d", db, i), cmd)
		got := ask(t, c, db, cmd)
		if (anyCode(got) == 0) != (anyCode(want) == 0) {
			t.Errorf("%s: the proxy says %v, a server %v", test.name, got, want)
		}
		if anyCode(want) != 0 {
			continue
		}
		for _, filter := range []bson.Raw{document(), document(element(2, "tenant", string(test.doc.Lookup("tenant").Value[4:len(test.doc.Lookup("tenant").Value)-1])))} {
			found := false
			for _, d := range drain(t, c, db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: filter}}) {
				found = found || bytes.Equal(d, test.doc)
			}
			if !found {
				t.Errorf("%s: not found by %q", test.name, []byte(filter))
			}
		}
	}
	// As part of a filter and of names, with whatever answer.
	for _, cmd := range []bson.D{
		{{Key: "find", Value: "c"}, {Key: "filter", Value: document(element(2, "tenant", bad))}},
		{{Key: "find", Value: bad}},
		{{Key: "count", Value: "c"}, {Key: "query", Value: document(element(2, bad, bad))}},
		{{Key: bad, Value: 1}},
		{{Key: "ping", Value: 1}, {Key: "comment", Value: bad}},
	} {
		ask(t, c, db, cmd)
	}
	must(t, c, "admin", bson.D{{Key: "ping", Value: 1}})
	if got := ask(t, c, "admin", bson.D{{Key: "getLog", Value: "global"}}); !rawconn.OK(got) {
		t.Errorf("getLog: %v", got)
	}
}
