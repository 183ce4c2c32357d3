package router

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// findOf is a find by key as drivers send it, with more fields behind.
func findOf(db, coll string, key any, more ...bson.E) bson.D {
	cmd := bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "k", Value: key}, {Key: "_id", Value: 1}}},
		{Key: "limit", Value: int64(1)}, {Key: "singleBatch", Value: true}, {Key: "lsid", Value: testSession}, {Key: "$db", Value: db}}
	return append(cmd, more...)
}

func wireMessage(t testing.TB, cmd bson.D) wire.Message {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	raw := wire.AppendMsg(nil, 7, 0, 0, body)
	h, err := wire.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Message{Header: h, Buf: &wire.Buffer{B: raw}}
}

// reads reports whether the hot path takes cmd.
func reads(t testing.TB, r *Router, cmd bson.D) bool {
	t.Helper()
	return takes(r, wireMessage(t, cmd))
}

// takes reports whether the hot path takes m.
func takes(r *Router, m wire.Message) bool {
	p := points.Get().(*point)
	defer p.release()
	kind := r.pointKind(m.Buf.B)
	return kind != nil && p.take(r, m, kind)
}

// The hot path answers plain finds of one document, and leaves the rest alone.
func TestHotPathTakesPlainFindsOnly(t *testing.T) {
	e, _ := scriptEnv(t)
	e.shard("c", "k", 5)
	more := func(k string, v any) bson.D { return findOf(e.db, "c", 5, bson.E{Key: k, Value: v}) }
	for name, c := range map[string]struct {
		cmd  bson.D
		want bool
	}{
		"a plain one":           {findOf(e.db, "c", 5), true},
		"with a projection":     {more("projection", d("a", 1)), true},
		"a cluster time":        {more("$clusterTime", d("clusterTime", bson.Timestamp{T: 1})), true},
		"of the primary":        {more("$readPreference", d("mode", "primary")), true},
		"of a secondary":        {more("$readPreference", d("mode", "secondary")), false},
		"an unsharded one":      {findOf(e.db, "other", 5), false},
		"an unknown database":   {findOf("nowhere", "c", 5), false},
		"several keys":          {findOf(e.db, "c", d("$in", bson.A{1, 2, 3, 4, 5})), false},
		"an operator of one":    {findOf(e.db, "c", d("$eq", 1)), true},
		"a range":               {findOf(e.db, "c", d("$gt", 1)), false},
		"without a limit":       {d("find", "c", "filter", d("k", 1), "$db", e.db), false},
		"a large limit":         {d("find", "c", "filter", d("k", 1), "limit", 1000, "$db", e.db), false},
		"a limit that is a sum": {d("find", "c", "filter", d("k", 1), "limit", 1.0, "$db", e.db), false},
		"a field twice":         {more("limit", int64(1)), false},
		"an unknown field":      {more("whatever", 1), false},
		"a transaction":         {more("autocommit", false), false},
		"a bad session":         {d("find", "c", "filter", d("k", 1), "limit", 1, "lsid", d("id", 1), "$db", e.db), false},
		"without a database":    {d("find", "c", "filter", d("k", 1), "limit", 1), false},
		"another command":       {d("count", "c", "filter", d("k", 1), "limit", 1, "$db", e.db), false},
	} {
		if got := reads(t, e.router, c.cmd); got != c.want {
			t.Errorf("%s: taken %v, want %v", name, got, c.want)
		}
	}
}

// What the hot path sends and answers is what find would: a comment, which it does not know, keeps a request off it.
func TestHotPathIsFind(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 5)
	big := strings.Repeat("x", 100_000)
	script := func(id int64, extra ...bson.E) backendtest.Script {
		return func(c backendtest.Command) backendtest.Answer {
			if c.Name != "find" {
				return backendtest.OK()
			}
			return backendtest.OK(append([]bson.E{{Key: "cursor", Value: d("firstBatch", bson.A{d("_id", 1, "pad", big)}, "id", id, "ns", c.DB+"."+c.Body.Lookup("find").StringValue())},
				{Key: "operationTime", Value: bson.Timestamp{T: 5}}}, extra...)...)
		}
	}
	for name, s := range map[string]backendtest.Script{
		"a document":  script(0),
		"more fields": script(0, bson.E{Key: "warning", Value: "w"}, bson.E{Key: "electionId", Value: bson.NewObjectID()}),
		"an error": func(backendtest.Command) backendtest.Answer {
			return backendtest.Err(2, "BadValue", "no "+e.db+".c@1.0.1 here")
		},
		"not primary":   func(backendtest.Command) backendtest.Answer { return backendtest.Err(211, "KeyNotFound", "x", "Label") },
		"no cursor":     func(backendtest.Command) backendtest.Answer { return backendtest.OK(bson.E{Key: "odd", Value: 1}) },
		"a cursor open": script(99),
	} {
		for _, key := range []any{1, "two", bson.NewObjectID(), 4.5, nil} {
			var replies [2]bson.Raw
			var sent [2]bson.Raw
			for i, more := range [][]bson.E{nil, {{Key: "comment", Value: "slow"}}} {
				for _, srv := range servers {
					srv.SetScript(s)
					srv.Forget()
				}
				cmd := findOf(e.db, "c", key, more...)
				if took := reads(t, e.router, cmd); took != (i == 0) {
					t.Fatalf("taken %v", took)
				}
				replies[i] = roundTrip(t, e.addr, cmd)
				for _, srv := range servers {
					for _, c := range srv.Received() {
						if c.Name == "find" {
							sent[i] = without(c.Body, "comment")
						}
					}
				}
			}
			if a, b := without(replies[0], "cursor"), without(replies[1], "cursor"); !bytes.Equal(a, b) {
				t.Errorf("%s: answered %v, find answers %v", name, a, b)
			}
			if a, b := batchOf(replies[0]), batchOf(replies[1]); a != b {
				t.Errorf("%s: answered %.200s, find answers %.200s", name, a, b)
			}
			if !bytes.Equal(sent[0], sent[1]) {
				t.Errorf("%s: sends %v, find sends %v", name, sent[0], sent[1])
			}
			if len(sent[0]) == 0 {
				t.Errorf("%s: nothing was sent", name)
			}
		}
	}
}

func without(doc bson.Raw, field string) bson.Raw {
	var out bson.D
	elems, _ := doc.Elements()
	for _, e := range elems {
		if e.Key() != field {
			out = append(out, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	raw, _ := bson.Marshal(out)
	return raw
}

// batchOf is what a cursor in a reply has, its id aside but for whether there is one.
func batchOf(reply bson.Raw) string {
	cur, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return ""
	}
	id, _ := cur.Lookup("id").AsInt64OK()
	return fmt.Sprint(without(cur, "id"), id != 0)
}

func roundTrip(t *testing.T, addr string, cmd bson.D) bson.Raw {
	t.Helper()
	return (&writeEnv{t: t, addr: addr}).exchange(wireMessage(t, cmd))
}

// exchange sends m on a connection of its own and returns the reply's body.
func (e *writeEnv) exchange(m wire.Message) bson.Raw {
	e.t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(m.Buf.B); err != nil {
		e.t.Fatal(err)
	}
	reply, err := wire.NewReader(c).ReadMessage()
	if err != nil {
		e.t.Fatal(err)
	}
	var msg wire.Msg
	if err := wire.ParseMsg(reply, &msg); err != nil || reply.Header.ResponseTo != 7 {
		e.t.Fatal(reply.Header, err)
	}
	return msg.Body
}

// frugal answers every message on l from bytes made beforehand: a hello to hellos, a document to finds.
func frugal(t *testing.T, l net.Listener) {
	addr := l.Addr().String()
	hello, _ := bson.Marshal(backendHello(addr))
	written, _ := bson.Marshal(d("n", 1, "nModified", 1, "ok", 1.0))
	found, _ := bson.Marshal(d("cursor", d("firstBatch", bson.A{d("_id", 1)}, "id", int64(0), "ns", "x.y"), "ok", 1.0))
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			in, out := make([]byte, 64<<10), make([]byte, 0, 4096)
			for {
				if _, err := io.ReadFull(c, in[:16]); err != nil {
					return
				}
				n := int(binary.LittleEndian.Uint32(in))
				if _, err := io.ReadFull(c, in[16:n]); err != nil {
					return
				}
				id := int32(binary.LittleEndian.Uint32(in[4:]))
				switch {
				case wire.OpCode(binary.LittleEndian.Uint32(in[12:])) == wire.OpQuery:
					out = wire.AppendReply(out[:0], 1, id, false, hello)
				case bytes.HasPrefix(in[26:], []byte("find\x00")):
					out = wire.AppendMsg(out[:0], 1, id, 0, found)
				case bytes.HasPrefix(in[26:], []byte("insert\x00")), bytes.HasPrefix(in[26:], []byte("update\x00")), bytes.HasPrefix(in[26:], []byte("delete\x00")):
					out = wire.AppendMsg(out[:0], 1, id, 0, written)
				default:
					out = wire.AppendMsg(out[:0], 1, id, 0, hello)
				}
				if _, err := c.Write(out); err != nil {
					return
				}
			}
		}()
	}
}

func backendHello(addr string) bson.D {
	return d("ismaster", true, "isWritablePrimary", true, "setName", "rs", "hosts", bson.A{addr}, "me", addr, "primary", addr,
		"maxWireVersion", 21, "maxBsonObjectSize", 16<<20, "maxMessageSizeBytes", 48000000, "maxWriteBatchSize", 100000, "logicalSessionTimeoutMinutes", 30, "ok", 1.0)
}

// maxHotAllocs is what a targeted find or write may allocate in the whole process, from the client's request to its reply.
const maxHotAllocs = 2

var rewriteAllocations = flag.Bool("rewrite-allocations", false, "write testdata/allocations.txt anew; read the diff")

// What requests allocate, in the whole process and from the client's socket to the reply on it, is compared with what they allocated when
// testdata/allocations.txt was written: unlike seconds it says the same on every machine. More fails; less may be written down.
func TestHotPathAllocates(t *testing.T) {
	if raceDetector {
		t.Skip("allocations cannot be counted under the race detector")
	}
	uris := map[string]string{}
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go frugal(t, l)
		uris["b"+itoa(i)] = "mongodb://" + l.Addr().String() + "/"
	}
	e := newWriteEnv(t, uris)
	e.shard("c", "k", 5)
	insert := bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{d("_id", 1, "k", 5)}}, {Key: "lsid", Value: testSession}}
	requests := []struct {
		name string
		cmd  bson.D
	}{
		{"find", findOf(e.db, "c", 5)},
		{"insert", append(slices.Clone(insert), bson.E{Key: "$db", Value: e.db})},
		{"retryable-insert", append(slices.Clone(insert), bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "$db", Value: e.db})},
		{"update", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{d("q", d("k", 5, "_id", 1), "u", d("$set", d("a", 1)))}},
			{Key: "lsid", Value: testSession}, {Key: "$db", Value: e.db}}},
		{"delete", hotWrite(e.db, "delete")},
		{"insert-without-id", with(hotWrite(e.db, "insert"), "documents", bson.A{d("k", 5)})},
		{"insert-of-two", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{d("_id", 1, "k", 5), d("_id", 2, "k", 5)}}, {Key: "lsid", Value: testSession}, {Key: "$db", Value: e.db}}},
	}
	const file = "testdata/allocations.txt"
	before, after := readAllocations(t, file), ""
	for _, r := range requests {
		allocs := e.allocations(wireMessage(t, r.cmd).Buf.B)
		t.Logf("%s: %v allocations", r.name, allocs)
		after += fmt.Sprintf("%s %v\n", r.name, allocs)
		if was, known := before[r.name]; !*rewriteAllocations && (!known || allocs > was) {
			t.Errorf("a %s costs %v allocations, it was %v: see %s", r.name, allocs, was, file)
		}
		if r.name != "insert-of-two" && allocs > maxHotAllocs {
			t.Errorf("a targeted %s costs %v allocations, want at most %v", r.name, allocs, maxHotAllocs)
		}
	}
	if *rewriteAllocations {
		if err := os.WriteFile(file, []byte(after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readAllocations(t *testing.T, file string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	text, err := os.ReadFile(file)
	if err != nil {
		return all
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		name, n, _ := strings.Cut(line, " ")
		if all[name], err = strconv.ParseFloat(n, 64); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return all
}

// allocations is what the process allocates for one request, the least of three tries: heartbeats allocate too.
func (e *writeEnv) allocations(msg []byte) float64 {
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	in := make([]byte, 4096)
	least := math.Inf(1)
	for range 3 {
		least = min(least, testing.AllocsPerRun(1000, func() {
			if _, err := c.Write(msg); err != nil {
				e.t.Fatal(err)
			}
			if n, err := c.Read(in); err != nil || !bytes.Contains(in[:n], []byte("\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f")) {
				e.t.Fatalf("%q %v", in[:n], err)
			}
		}))
	}
	return least
}

// decisionRouter is a router whose table has so many collections of so many partitions.
func decisionRouter(collections, partitions int) *Router {
	raw, _ := bson.Marshal(d("k", "hashed"))
	key, err := shardkey.ParsePattern(raw)
	if err != nil {
		panic(err)
	}
	snap := &catalog.Snapshot{Maps: map[string]*catalog.Map{}, Databases: map[string]*catalog.Database{"db": {Name: "db", Primary: "b0"}}}
	for i := range collections {
		ns := "db.c" + itoa(i)
		m := &catalog.Map{NS: ns, V: 1, Key: &key, Hash: shardkey.HashName, UUID: catalog.NewUUID()}
		for j, r := range shardkey.Even(partitions) {
			m.Partitions = append(m.Partitions, catalog.Partition{Range: r, Backend: "b0", Physical: catalog.PhysicalName("db", "c"+itoa(i), 1, 0, j)})
		}
		snap.Maps[ns] = m
	}
	table := partition.NewTable()
	table.Apply(snap)
	return New(Config{Table: table, Log: zerolog.Nop()})
}

// BenchmarkDecision is what the proxy does of its own for a targeted find of 1 KB: parsing it and finding its partition.
func BenchmarkDecision(b *testing.B) {
	for _, size := range [][2]int{{1, 1}, {1, 1000}, {1, 100_000}, {10_000, 1}} {
		b.Run(fmt.Sprintf("collections=%d/partitions=%d", size[0], size[1]), func(b *testing.B) {
			r := decisionRouter(size[0], size[1])
			defer r.Shutdown(b.Context())
			cmd := findOf("db", "c0", "tenant", bson.E{Key: "projection", Value: d("pad", strings.Repeat("x", 850))})
			m := wireMessage(b, cmd)
			p := points.Get().(*point)
			b.ReportAllocs()
			for b.Loop() {
				if !p.take(r, m, r.pointKind(m.Buf.B)) {
					b.Fatal("not taken")
				}
				p.forget()
			}
		})
	}
}
