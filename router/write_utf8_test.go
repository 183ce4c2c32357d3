package router

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestBytesThatAreNotUTF8 is case 36: a server may refuse them, but the proxy passes them on byte for byte, and finds by them.
func TestBytesThatAreNotUTF8(t *testing.T) {
	const bad = "f\xff\xfe"
	e, servers := scriptEnv(t)
	e.shard("c", "k", 5)
	text := func(name, value string) []byte {
		b := append(append([]byte{2}, name...), 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(value)+1))
		return append(append(b, value...), 0)
	}
	doc := func(elements ...[]byte) bson.Raw {
		b := bytes.Join(elements, nil)
		return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b)+5)), b...), 0)
	}
	regex := append(append([]byte{0x0b}, "r\x00"...), bad+"\x00\x00"...)
	sent := doc(text("_id", bad), text("k", bad), text(bad, "v"), regex)
	if r, err := e.raw(d("insert", "c", "documents", bson.A{sent})); err != nil || r["n"] != int32(1) {
		t.Fatal(r, err)
	}
	var home string
	for i, s := range servers {
		for _, c := range writesOf(s) {
			if got := c.Docs("documents")[0]; !bytes.Equal(got, sent) {
				t.Errorf("sent %q, arrived %q", []byte(sent), []byte(got))
			}
			home += itoa(i)
		}
	}
	if len(home) != 1 {
		t.Fatalf("the document went to %q", home)
	}
	for _, s := range servers {
		s.Forget()
	}
	filter := doc(text("k", bad))
	if r, err := e.raw(d("update", "c", "updates", bson.A{d("q", filter, "u", d("$set", d("v", 1)))})); err != nil {
		t.Fatal(r, err)
	}
	for i, s := range servers {
		for _, c := range writesOf(s) {
			if got := c.Docs("updates")[0].Lookup("q").Value; itoa(i) != home || !bytes.Equal(got, filter) {
				t.Errorf("backend %d (the document is on %s) got the filter %q", i, home, got)
			}
		}
	}
}
