package router

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/internal/instructions"
	"github.com/shardway/shardway/wire"
)

var rewriteInstructions = flag.Bool("rewrite-instructions", false, "write testdata/instructions.txt anew")

// instructionSlack is how many more instructions than recorded, of a hundred, are taken for the same: processors differ in how memory is copied and hashed.
const instructionSlack = 10

// counted is what the proxy does of its own for requests, without sockets.
var counted = map[string]func() func(){
	"find-decision": func() func() {
		return taking(findOf("db", "c7", "tenant", bson.E{Key: "projection", Value: d("pad", strings.Repeat("x", 850))}))
	},
	"insert-decision": func() func() {
		return taking(bson.D{{Key: "insert", Value: "c7"}, {Key: "documents", Value: bson.A{d("_id", 1, "k", "tenant", "pad", strings.Repeat("x", 850))}},
			{Key: "lsid", Value: testSession}, {Key: "$db", Value: "db"}})
	},
	"update-decision": func() func() {
		return taking(bson.D{{Key: "update", Value: "c7"}, {Key: "updates", Value: bson.A{d("q", d("k", "tenant", "_id", 1), "u", d("$set", d("pad", strings.Repeat("x", 850))))}},
			{Key: "lsid", Value: testSession}, {Key: "$db", Value: "db"}})
	},
}

var countedOrder = []string{"find-decision", "insert-decision", "update-decision"}

// taking is parsing a command and finding its partition, among a hundred collections of a hundred partitions.
func taking(cmd bson.D) func() {
	r, m := decisionRouter(100, 100), plainMessage(cmd)
	kind := r.pointKind(m.Buf.B)
	p := points.Get().(*point)
	return func() {
		if !p.take(r, m, kind) {
			panic("not taken")
		}
		p.forget()
	}
}

// plainMessage is wireMessage without a test.
func plainMessage(cmd bson.D) wire.Message {
	body, err := bson.Marshal(cmd)
	if err != nil {
		panic(err)
	}
	raw := wire.AppendMsg(nil, 7, 0, 0, body)
	h, err := wire.ParseHeader(raw)
	if err != nil {
		panic(err)
	}
	return wire.Message{Header: h, Buf: &wire.Buffer{B: raw}}
}

// TestHotPathInstructions compares what the hot path costs with what it cost: instructions, not seconds, which are the machine's business.
func TestHotPathInstructions(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's own instructions would be counted")
	}
	const file = "testdata/instructions.txt"
	before, after := readAllocations(t, file), ""
	for _, name := range countedOrder {
		n, err := instructions.Count(name)
		if errors.Is(err, instructions.ErrUnavailable) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %d instructions", name, n)
		after += fmt.Sprintf("%s %d\n", name, n)
		if was, known := before[name]; !*rewriteInstructions && (!known || float64(n) > was*(1+instructionSlack/100.0)) {
			t.Errorf("%s takes %d instructions, it was %v: see %s", name, n, was, file)
		}
	}
	if *rewriteInstructions {
		if err := os.WriteFile(file, []byte(after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
