package router

import (
	"bytes"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

// storedKeys are the shard key values that the servers were given to store; the test fails where one is not in its partition.
func (e *writeEnv) storedKeys(servers ...*backendtest.Server) (keys []bson.RawValue) {
	e.t.Helper()
	c := e.table.View().Collection(e.db + ".c")
	parts := map[string]*partition.Part{}
	for _, p := range c.Parts {
		parts[p.Physical] = p
	}
	for _, cmd := range writesOf(servers...) {
		docs := cmd.Docs("documents")
		for _, u := range cmd.Docs("updates") {
			docs = append(docs, u.Lookup("u").Document())
		}
		if cmd.Name == "findAndModify" {
			docs = append(docs, cmd.Body.Lookup("update").Document())
		}
		for _, doc := range docs {
			part := parts[cmd.Body.Lookup(cmd.Name).StringValue()]
			if pos, err := c.Key.Position(doc); err != nil || part == nil || !part.Range.Contains(pos) {
				e.t.Errorf("%v was sent to %v, which is not its partition (%v)", doc, part, err)
			}
			keys = append(keys, bson.Raw(doc).Lookup("k"))
		}
	}
	return keys
}

// TestEmptyTimestampKeysArePlacedByTheirTime: a server stores its time for a Timestamp(0, 0) at the top of a new document, so the proxy must hash the time that is stored.
func TestEmptyTimestampKeysArePlacedByTheirTime(t *testing.T) {
	empty := bson.Timestamp{}
	const bypass = "bypassEmptyTsReplacement"
	for name, test := range map[string]struct {
		cmd  bson.D
		kept bool // the timestamp is stored as it is
	}{
		"insert":             {d("insert", "c", "documents", bson.A{d("_id", 1, "k", empty)}), false},
		"insert of several":  {d("insert", "c", "documents", bson.A{d("_id", 1, "k", empty), d("_id", 2, "k", empty), d("k", empty)}), false},
		"insert, bypassed":   {d("insert", "c", "documents", bson.A{d("_id", 1, "k", empty)}, bypass, true), true},
		"replacement upsert": {d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("_id", 1, "k", empty), "upsert", true)}), false},
		"replacement upsert with the key": {d("update", "c", "updates",
			bson.A{d("q", d("k", empty), "u", d("k", empty), "upsert", true)}), false},
		"replacement upsert, bypassed": {d("update", "c", "updates",
			bson.A{d("q", d("k", empty), "u", d("k", empty), "upsert", true)}, bypass, true), true},
		"findAndModify":           {d("findAndModify", "c", "query", d("_id", 1), "update", d("_id", 1, "k", empty), "upsert", true), false},
		"findAndModify, bypassed": {d("findAndModify", "c", "query", d("_id", 1), "update", d("_id", 1, "k", empty), "upsert", true, bypass, true), true},
	} {
		t.Run(name, func(t *testing.T) {
			e, servers := scriptEnv(t, func(s *backendtest.Server) {
				s.SetScript(func(c backendtest.Command) backendtest.Answer {
					if c.Name == "findAndModify" {
						return backendtest.OK(bson.E{Key: "lastErrorObject", Value: d("n", int32(1), "upserted", 1)}, bson.E{Key: "value", Value: nil})
					}
					return writesDone(c)
				})
			})
			e.shard("c", "k", 64)
			if _, err := e.run(test.cmd); err != nil {
				t.Fatal(err)
			}
			if _, err := e.raw(test.cmd); err != nil {
				t.Fatal(err)
			}
			keys := e.storedKeys(servers...)
			if len(keys) == 0 {
				t.Fatal("nothing was written")
			}
			for _, k := range keys {
				sec, inc := k.Timestamp()
				if test.kept != (sec == 0 && inc == 0) {
					t.Errorf("the stored key is %v", k)
				}
				if at := time.Unix(int64(sec), 0); !test.kept && (time.Since(at) > time.Minute || time.Until(at) > time.Second) {
					t.Errorf("the stored key is of %v", at)
				}
			}
		})
	}
}

// TestReplacementByAnEmptyTimestampChangesTheKey: a replacement that says what the filter says would be stored with another key, which is refused.
func TestReplacementByAnEmptyTimestampChangesTheKey(t *testing.T) {
	e, servers := scriptEnv(t, func(s *backendtest.Server) {
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			if c.Name == "find" {
				return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", bson.A{d("_id", 1, "k", bson.Timestamp{})})})
			}
			return writesDone(c)
		})
	})
	e.shard("c", "k", 8)
	r, err := e.raw(d("update", "c", "updates", bson.A{d("q", d("k", bson.Timestamp{}), "u", d("k", bson.Timestamp{}))}))
	if err != nil || e.writeCodes(r)[0] != 66 || len(writesOf(servers...)) != 0 {
		t.Errorf("%v %v", r, err)
	}
}

// TestNestedEmptyTimestampKeysStay: a server leaves nested empty timestamps, and those that operators set, alone.
func TestNestedEmptyTimestampKeysStay(t *testing.T) {
	empty := bson.Timestamp{}
	e, servers := scriptEnv(t)
	e.shard("c", "a.k", 64)
	if _, err := e.raw(d("insert", "c", "documents", bson.A{d("_id", 1, "a", d("k", empty), "t", empty)})); err != nil {
		t.Fatal(err)
	}
	want := mustMarshal(d("_id", 1, "a", d("k", empty), "t", empty))
	got := writesOf(servers...)
	at, _ := shardkey.HashValue(bsoncore.Value{Type: bsoncore.TypeTimestamp, Data: make([]byte, 8)})
	home := e.table.View().Collection(e.db + ".c").At(at)
	if len(got) != 1 || !bytes.Equal(got[0].Docs("documents")[0], want) || got[0].Body.Lookup("insert").StringValue() != home.Physical {
		t.Errorf("%v", got)
	}
	e.shard("o", "k", 64)
	for _, s := range servers {
		s.Forget()
	}
	if _, err := e.raw(d("update", "o", "updates", bson.A{d("q", d("k", empty), "u", d("$setOnInsert", d("k", empty)), "upsert", true)})); err != nil {
		t.Fatal(err)
	}
	got = writesOf(servers...)
	home = e.table.View().Collection(e.db + ".o").At(at)
	if len(got) != 1 || got[0].Body.Lookup("update").StringValue() != home.Physical {
		t.Errorf("%v", got)
	}
}

// TestRepeatedInsertOfAnEmptyTimestampGoesToTheSameHome, at the process that had the first try by what it remembers, and at another by the homes' records.
func TestRepeatedInsertOfAnEmptyTimestampGoesToTheSameHome(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 64)
	insert := retryable(d("insert", "c", "documents", bson.A{d("_id", 1, "k", bson.Timestamp{})}), 5)
	for range 2 {
		if _, err := e.raw(insert); err != nil {
			t.Fatal(err)
		}
	}
	got := writesOf(servers...)
	if len(got) != 2 || !bytes.Equal(got[0].Message[16:], got[1].Message[16:]) {
		t.Fatalf("the repetition is another message: %v", got)
	}
	// Another process remembers nothing.
	home := got[0].Body.Lookup("insert").StringValue()
	_, session := got[0].Body.Lookup("lsid", "id").Binary()
	e.router.retries = retryMemory{}
	for _, s := range servers {
		s.Forget()
		s.SetScript(func(c backendtest.Command) backendtest.Answer {
			batch := bson.A{}
			switch c.DB {
			case "config":
				in, _ := c.Body.Lookup("filter", "_id", "$in").Array().Values()
				for _, v := range in {
					if _, id := v.Document().Lookup("id").Binary(); bytes.Equal(id, session) {
						batch = append(batch, d("_id", v, "txnNum", int64(5), "lastWriteOpTime", d("ts", bson.Timestamp{T: 9, I: 1}, "t", int64(1))))
					}
				}
			case "local":
				batch = append(batch, d("stmtId", int32(0), "prevOpTime", d("ts", bson.Timestamp{}, "t", int64(-1))))
			default:
				return writesDone(c)
			}
			return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.y", "firstBatch", batch)})
		})
	}
	if _, err := e.raw(insert); err != nil {
		t.Fatal(err)
	}
	if got = writesOf(servers...); len(got) != 1 || got[0].Body.Lookup("insert").StringValue() != home {
		t.Errorf("%v, want one insert into %s", got, home)
	}
}

// TestHotPathLeavesEmptyTimestampKeys to the general code, which gives them their time.
func TestHotPathLeavesEmptyTimestampKeys(t *testing.T) {
	e, _ := scriptEnv(t)
	e.shard("c", "k", 8)
	e.shard("n", "a.k", 8)
	empty := bson.Timestamp{}
	for name, test := range map[string]struct {
		cmd  bson.D
		want bool
	}{
		"insert of a time":          {d("insert", "c", "documents", bson.A{d("_id", 1, "k", bson.Timestamp{T: 1})}), true},
		"insert":                    {d("insert", "c", "documents", bson.A{d("_id", 1, "k", empty)}), false},
		"insert of a nested one":    {d("insert", "n", "documents", bson.A{d("_id", 1, "a", d("k", empty))}), true},
		"replacement":               {d("update", "c", "updates", bson.A{d("q", d("k", empty), "u", d("k", empty))}), false},
		"an operator that sets it":  {d("update", "c", "updates", bson.A{d("q", d("k", empty), "u", d("$set", d("k", empty)))}), true},
		"a filter that asks for it": {d("delete", "c", "deletes", bson.A{d("q", d("k", empty), "limit", 1)}), true},
	} {
		if got := reads(t, e.router, append(test.cmd, bson.E{Key: "$db", Value: e.db})); got != test.want {
			t.Errorf("%s: taken %v, want %v", name, got, test.want)
		}
	}
}
