package rules_test

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/rules"
	"github.com/shardway/shardway/wire"
)

func TestMain(m *testing.M) { os.Exit(fleettest.Main(m)) }

// recording is a conversation with a mongod 6.3: what it was sent, documents beside the command as
// name=document, and what it answered, with the times and ids of that machine.
type recording struct {
	About     string          `json:"about"`
	Command   json.RawMessage `json:"command"`
	Sequences []string        `json:"sequences"`
	Reply     json.RawMessage `json:"reply"`
}

func recordings(t *testing.T) []recording {
	t.Helper()
	file, err := os.Open("testdata/replies.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []recording
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r recording
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func fromJSON(t *testing.T, text []byte) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON(text, false, &d); err != nil {
		t.Fatal(err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// withNumbers makes the transaction number a long, as drivers send it: the recording's JSON does not
// tell the types of numbers.
func withNumbers(t *testing.T, body bson.Raw) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.Unmarshal(body, &d); err != nil {
		t.Fatal(err)
	}
	for i, e := range d {
		if n, ok := e.Value.(int32); ok && e.Key == "txnNumber" {
			d[i].Value = int64(n)
		}
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// before are the commands that make a server such as the mongod was when the conversation took place.
var before = map[string]func(t *testing.T, c *client, command bson.Raw){
	"a retryable upsert": func(t *testing.T, c *client, _ bson.Raw) { c.must("create", "a@b.0.1", "$db", "r1") },
	"a retryable delete": func(t *testing.T, c *client, _ bson.Raw) {
		c.must("insert", "a@b.0.4", "documents", bson.A{bson.D{{Key: "_id", Value: "b1"}, {Key: "k", Value: 1}}}, "$db", "r1")
	},
	"a retryable findAndModify": func(t *testing.T, c *client, _ bson.Raw) {
		c.must("insert", "a@b.0.1", "documents", bson.A{bson.D{{Key: "_id", Value: 7}, {Key: "k", Value: 7}, {Key: "g", Value: 0},
			{Key: "s", Value: "w7"}, {Key: "p", Value: "x"}}}, "$db", "r1")
	},
	"config.transactions, level local":             writeUnderSessions,
	"config.transactions, level local with a time": writeUnderSessions,
	"abort of an aborted transaction": func(t *testing.T, c *client, command bson.Raw) {
		lsid, txn := command.Lookup("lsid"), command.Lookup("txnNumber")
		c.must("create", "failing", "validator", bson.D{{Key: "g", Value: bson.D{{Key: "$gte", Value: 0}}}}, "$db", "r1")
		c.run("insert", "failing", "documents", bson.A{bson.D{{Key: "_id", Value: "t1"}}}, "lsid", lsid, "txnNumber", txn,
			"autocommit", false, "startTransaction", true, "$db", "r1")
	},
	"commit": func(t *testing.T, c *client, command bson.Raw) {
		c.must("create", "maps", "$db", "shardway")
		c.must("insert", "maps", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}}, "lsid", command.Lookup("lsid"), "txnNumber", command.Lookup("txnNumber"),
			"autocommit", false, "startTransaction", true, "$db", "shardway")
	},
	"noCursorTimeout on a time-series collection": func(t *testing.T, c *client, _ bson.Raw) {
		c.must("create", "ts", "timeseries", bson.D{{Key: "timeField", Value: "t"}}, "$db", "r1")
	},
}

// writeUnderSessions writes once under each session that the command asks for, with the number that
// the recording tells.
func writeUnderSessions(t *testing.T, c *client, command bson.Raw) {
	ids, _ := command.Lookup("filter", "_id", "$in").Array().Values()
	for i, id := range ids {
		number := int64(1)
		if len(ids) == 1 {
			number = 3
		}
		c.must("insert", "written", "documents", bson.A{bson.D{{Key: "_id", Value: i + int(number)*100}}},
			"lsid", bson.D{{Key: "id", Value: id.Document().Lookup("id")}}, "txnNumber", number, "$db", "r1")
	}
}

func TestRecordedReplies(t *testing.T) {
	s := fleettest.Start(t, 1, fleettest.Version(rules.V60)).Servers[0]
	if fleettest.FrontOf(s) == nil {
		t.Skip("the server is a mongod; what it answers is measured elsewhere")
	}
	for _, r := range recordings(t) {
		t.Run(r.About, func(t *testing.T) {
			c := dialServer(t, s.Addr())
			command, want := withNumbers(t, fromJSON(t, r.Command)), fromJSON(t, r.Reply)
			if f := before[r.About]; f != nil {
				f(t, c, command)
			}
			command = present(t, c, command)
			var sequences []wire.Sequence
			for _, text := range r.Sequences {
				name, document, _ := strings.Cut(text, "=")
				sequences = append(sequences, wire.Sequence{Identifier: name, Docs: fromJSON(t, []byte(document))})
			}
			compare(t, c.send(command, sequences...), want)
		})
	}
}

// present takes the times of another machine out of a command.
func present(t *testing.T, c *client, command bson.Raw) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.Unmarshal(command, &d); err != nil {
		t.Fatal(err)
	}
	var out bson.D
	for _, e := range d {
		concern, ok := e.Value.(bson.D)
		switch {
		case e.Key == "$clusterTime":
			continue
		case e.Key == "readConcern" && ok && len(concern) == 2:
			concern[1].Value = c.time()
		}
		out = append(out, e)
	}
	raw, err := bson.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// compare compares errors to the letter, and the shape of what is no error: names of fields, and of
// those in the first batch.
func compare(t *testing.T, got, want bson.Raw) {
	t.Helper()
	for _, key := range []string{"code", "codeName", "errmsg", "errorLabels"} {
		g, _ := got.LookupErr(key)
		w, _ := want.LookupErr(key)
		if g.String() != w.String() {
			t.Errorf("%s is %s, a mongod's %s", key, g, w)
		}
	}
	if g, w := names(got), names(want); !slices.Equal(g, w) {
		t.Errorf("the reply has %v, a mongod's %v", g, w)
	}
	if _, err := want.LookupErr("n"); err == nil && got.Lookup("n").AsInt64() != want.Lookup("n").AsInt64() {
		t.Errorf("n is %v, a mongod's %v", got.Lookup("n"), want.Lookup("n"))
	}
	wantBatch, _ := want.Lookup("cursor", "firstBatch").ArrayOK()
	gotBatch, _ := got.Lookup("cursor", "firstBatch").ArrayOK()
	wantDocs, _ := wantBatch.Values()
	gotDocs, _ := gotBatch.Values()
	if len(gotDocs) != len(wantDocs) {
		t.Fatalf("%d documents, a mongod answered %d", len(gotDocs), len(wantDocs))
	}
	for _, w := range wantDocs {
		i := slices.IndexFunc(gotDocs, func(g bson.RawValue) bool { return g.Document().Lookup("_id").Equal(w.Document().Lookup("_id")) })
		if i < 0 {
			t.Errorf("nothing has the _id %v", w.Document().Lookup("_id"))
			continue
		}
		if g, w := names(gotDocs[i].Document()), names(w.Document()); !slices.Equal(g, w) {
			t.Errorf("a document has %v, a mongod's %v", g, w)
		}
		if g, w := gotDocs[i].Document().Lookup("txnNum").AsInt64(), w.Document().Lookup("txnNum").AsInt64(); g != w {
			t.Errorf("txnNum is %d, a mongod's %d", g, w)
		}
	}
}

func names(doc bson.Raw) []string {
	elems, _ := doc.Elements()
	var all []string
	for _, e := range elems {
		all = append(all, e.Key())
	}
	slices.Sort(all)
	return all
}
