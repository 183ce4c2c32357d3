package router

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// observed is what came of a write.
type observed struct {
	reply   bson.Raw
	sent    []string
	counted string
}

// observe sends m to the router and says what came of it: the reply, what the servers got, what was counted.
func (e *writeEnv) observe(m wire.Message, servers []*backendtest.Server) observed {
	e.t.Helper()
	for _, s := range servers {
		s.Forget()
	}
	s := &e.router.stats
	counts := func() [9]int64 {
		return [...]int64{s.inserts.Load(), s.updates.Load(), s.deletes.Load(), s.queries.Load(), s.failed.Load(),
			s.toInsert.one.Load(), s.toUpdate.one.Load(), s.toDelete.one.Load(), s.toUpdate.all.Load()}
	}
	before := counts()
	o := observed{reply: e.exchange(m)}
	after := counts()
	for i := range after {
		after[i] -= before[i]
	}
	o.counted = fmt.Sprint(after)
	for i, srv := range servers {
		for _, c := range srv.Received() {
			if !slices.Contains([]string{"insert", "update", "delete", "find"}, c.Name) {
				continue
			}
			text := fmt.Sprintf("b%d flags %d %x", i, c.Flags, []byte(without(c.Body, "comment")))
			for _, list := range []string{"documents", "updates", "deletes"} {
				for _, doc := range c.Sequences[list] {
					text += fmt.Sprintf(" %s %x", list, []byte(doc))
				}
			}
			o.sent = append(o.sent, text)
		}
	}
	slices.Sort(o.sent) // what goes to several partitions goes at once
	return o
}

// compare holds what came of a write and of the same with a comment, which the hot path does not know, against one another.
func (o observed) compare(t *testing.T, what string, general observed) {
	t.Helper()
	if !bytes.Equal(o.reply, general.reply) {
		t.Errorf("%s: answered %v, the general code answers %v", what, o.reply, general.reply)
	}
	if !slices.Equal(o.sent, general.sent) {
		t.Errorf("%s: sent\n%s\nthe general code sends\n%s", what, strings.Join(o.sent, "\n"), strings.Join(general.sent, "\n"))
	}
	if o.counted != general.counted {
		t.Errorf("%s: counted %s, the general code counts %s", what, o.counted, general.counted)
	}
}

// What servers may answer to a write; each is made anew for each write.
var hotAnswers = map[string]func(db string) backendtest.Script{
	"done":         func(string) backendtest.Script { return writesDone },
	"nothing done": answers(bson.E{Key: "n", Value: 0}, bson.E{Key: "nModified", Value: 0}),
	"a long count": answers(bson.E{Key: "n", Value: int64(1 << 40)}, bson.E{Key: "nModified", Value: int64(3)}),
	"a fraction":   answers(bson.E{Key: "n", Value: 1.0}),
	"no count":     answers(),
	"more fields": answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "electionId", Value: bson.ObjectID{1}}, bson.E{Key: "opTime", Value: d("t", 1)},
		bson.E{Key: "operationTime", Value: bson.Timestamp{T: 5}}, bson.E{Key: "odd", Value: 1}),
	"an upsert": answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "upserted", Value: bson.A{d("index", 0, "_id", 4)}}),
	"a repeat":  answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "retriedStmtIds", Value: bson.A{0}}),
	"too late":  answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "writeConcernError", Value: d("code", 64, "codeName", "WriteConcernFailed", "errmsg", "late")}),
	"unconfirmed": answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "writeConcernError", Value: d("code", 91, "codeName", "ShutdownInProgress", "errmsg", "no")},
		bson.E{Key: "errorLabels", Value: bson.A{retryableWrite}}),
	"a duplicate":           duplicate(false),
	"a duplicate, and late": duplicate(true),
	"a text that names a home": func(db string) backendtest.Script {
		return func(c backendtest.Command) backendtest.Answer {
			return backendtest.Err(2, "BadValue", "no "+db+"."+catalog.PhysicalName("db", "c", 1, 0, 1)+" here")
		}
	},
	"an error with labels": failingTimes(1, 211, "Label"),
	"not primary":          failingTimes(100, 10107, retryableWrite),
	"stepping down, twice": failingTimes(2, 189),
	"not retriable":        failingTimes(100, 13),
	"cut":                  cuttingTimes(100),
	"cut once":             cuttingTimes(1),
	"ok as a whole number": func(string) backendtest.Script {
		return func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Body: d("n", 1, "ok", 1)} }
	},
	"ok as a truth": func(string) backendtest.Script {
		return func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Body: d("n", 1, "ok", true)} }
	},
	"neither": func(string) backendtest.Script {
		return func(backendtest.Command) backendtest.Answer { return backendtest.Answer{Body: d("n", 1)} }
	},
}

func answers(fields ...bson.E) func(string) backendtest.Script {
	return func(string) backendtest.Script {
		return func(backendtest.Command) backendtest.Answer { return backendtest.OK(fields...) }
	}
}

func duplicate(late bool) func(string) backendtest.Script {
	return func(db string) backendtest.Script {
		return func(c backendtest.Command) backendtest.Answer {
			text := "E11000 duplicate key error collection: " + c.DB + "." + c.Body.Index(0).Value().StringValue() + " index: _id_ dup key: { _id: 1 }"
			fields := bson.D{{Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{d("index", 0, "code", 11000, "keyPattern", d("_id", 1), "keyValue", d("_id", 1), "errmsg", text)}}}
			if late {
				fields = append(fields, bson.E{Key: "writeConcernError", Value: d("code", 64, "errmsg", "late")})
			}
			return backendtest.OK(fields...)
		}
	}
}

func failingTimes(times int32, code int32, labels ...string) func(string) backendtest.Script {
	return func(string) backendtest.Script {
		var n atomic.Int32
		return func(c backendtest.Command) backendtest.Answer {
			if isWrite(c) && n.Add(1) <= times {
				return backendtest.Err(code, "Name", "failed", labels...)
			}
			return writesDone(c)
		}
	}
}

func cuttingTimes(times int32) func(string) backendtest.Script {
	return func(string) backendtest.Script {
		var n atomic.Int32
		return func(c backendtest.Command) backendtest.Answer {
			if isWrite(c) && n.Add(1) <= times {
				return backendtest.Cut()
			}
			return writesDone(c)
		}
	}
}

func isWrite(c backendtest.Command) bool {
	return c.Name == "insert" || c.Name == "update" || c.Name == "delete"
}

// What the hot path sends, answers and counts is what the general code would.
func TestHotPathIsWrite(t *testing.T) {
	plain, majority := bson.D{}, bson.D{{Key: "writeConcern", Value: d("w", "majority")}, {Key: "txnNumber", Value: int64(0)}}
	fields := []bson.D{plain, {{Key: "ordered", Value: false}}, majority, {{Key: "$clusterTime", Value: d("clusterTime", bson.Timestamp{T: 1})}, {Key: "txnNumber", Value: int64(0)}}}
	for answer, script := range hotAnswers {
		t.Run(answer, func(t *testing.T) {
			fields, names := fields, []string{"insert", "update", "delete"}
			if strings.HasPrefix(answer, "cut") || strings.HasPrefix(answer, "not primary") || strings.HasPrefix(answer, "stepping down") {
				fields, names = []bson.D{plain, majority}, names[1:2] // the servers must be found again each time
				t.Parallel()
			}
			compareHotWrites(t, script, names, fields)
		})
	}
}

func compareHotWrites(t *testing.T, script func(string) backendtest.Script, names []string, fields []bson.D) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 5)
	e.knownBackends()
	txn := int64(0)
	for _, name := range names {
		for i, more := range fields {
			txn++
			cmd := with(hotWrite(e.db, name, more...), "txnNumber", txn)
			message := []func(testing.TB, bson.D) wire.Message{wireMessage, sectioned}[(i+len(name))%2]
			var got [2]observed
			for i, cmd := range []bson.D{cmd, append(slices.Clone(cmd), bson.E{Key: "comment", Value: "slow"})} {
				for _, s := range servers {
					s.SetScript(script(e.db))
				}
				m := message(t, cmd)
				if took := takes(e.router, m); took != (i == 0) {
					t.Fatalf("%v: taken %v", cmd, took)
				}
				got[i] = e.observe(m, servers)
			}
			got[0].compare(t, fmt.Sprint(name, " ", more), got[1])
			if len(got[0].sent) == 0 {
				t.Errorf("%s %v: nothing was sent", name, more)
			}
		}
	}
}

// randomHotWrite is a write of one statement, plain or not in some way.
func randomHotWrite(r *rand.Rand, db string) bson.D {
	pick := func(of ...any) any { return of[r.IntN(len(of))] }
	key := func() any {
		return pick(1, int64(1), 1.0, 2.5, "two", nil, true, bson.ObjectID{7}, d("x", 1), bson.A{1}, bson.Regex{Pattern: "x"}, bson.MinKey{}, bson.Undefined{})
	}
	var stmt any
	filter := func() any {
		k := key()
		return pick(d("k", k), d("_id", 1, "k", k), d("k", d("$eq", k)), d("k", d("$in", bson.A{k})), d("$and", bson.A{d("k", k)}), d("k", k, "k", k), d(), 5)
	}
	name := pick("insert", "update", "update", "delete").(string)
	list := map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[name]
	switch name {
	case "insert":
		stmt = pick(d("_id", 1, "k", key()), d("k", key(), "_id", key()), d("_id", 1))
	case "update":
		k := key()
		s := d("q", pick(filter(), d("k", k)), "u", pick(d("$set", d("v", 1)), d("$set", d("k", k)), d("k", k, "v", 1), d("$inc", d("k", 1)), d("$unset", d("k", 1)), d(),
			d("$set", d("k.x", 1)), d("$rename", d("v", "k")), d("$set", 5), d("$set", d("v", 1), "w", 1), bson.A{d("$set", d("v", 1))}, 5))
		for _, f := range []string{"multi", "upsert"} {
			if r.IntN(4) == 0 {
				s = append(s, bson.E{Key: f, Value: pick(false, false, true, 0, 1, "x")})
			}
		}
		if r.IntN(8) == 0 {
			s = append(s, bson.E{Key: "odd", Value: 1})
		}
		stmt = s
	case "delete":
		stmt = d("q", filter(), "limit", pick(1, 1, 1, int64(1), 1.0, 0, 2, true, "x"))
	}
	cmd := d(name, pick("c", "c", "c", "c", "c", 5), list, bson.A{stmt})
	session := r.IntN(3) > 0
	if session {
		cmd = append(cmd, bson.E{Key: "lsid", Value: pick(testSession, testSession, testSession, testSession, d("id", 1), 5)})
	}
	for _, f := range []struct {
		key    string
		values []any
	}{
		{"txnNumber", []any{int64(r.IntN(50)), int64(r.IntN(50)), int64(-1), 4}}, {"ordered", []any{true, false, 1}},
		{"writeConcern", []any{d("w", 1), d("w", "majority"), d("w", 1, "provenance", "x"), d(), 5}},
		{"$readPreference", []any{d("mode", "primary"), d("mode", "primary", "tags", bson.A{d("a", "b")}), 5}}, {"maxTimeMS", []any{5000, -1}},
		{"limit", []any{1}}, {"bypassDocumentValidation", []any{true}}, {"stmtIds", []any{bson.A{int32(4)}, bson.A{}}}, {"autocommit", []any{true}}, {list, []any{bson.A{stmt}}},
	} {
		if r.IntN(6) == 0 {
			cmd = append(cmd, bson.E{Key: f.key, Value: f.values[r.IntN(len(f.values))]})
		}
	}
	rest := cmd[1:]
	r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(cmd, bson.E{Key: "$db", Value: pick(db, db, db, db, db, db, db, db, db+".c", 5)})
}

// Of random writes, few of them plain, the hot path takes only those of which client and servers then see what the general code does.
func TestRandomWritesOnAndOffTheHotPath(t *testing.T) {
	e, servers := scriptEnv(t)
	e.shard("c", "k", 5)
	e.knownBackends()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 6))
	taken := 0
	for i := 0; i < 30_000 && taken < 700; i++ {
		cmd := randomHotWrite(r, e.db)
		message := wireMessage
		if r.IntN(2) == 0 {
			message = sectionedIfDocuments
		}
		m := message(t, cmd)
		if !takes(e.router, m) {
			continue // both ways are one
		}
		taken++
		hot := e.observe(m, servers)
		general := e.observe(message(t, append(slices.Clone(cmd), bson.E{Key: "comment", Value: "slow"})), servers)
		hot.compare(t, fmt.Sprintf("seed %d: %v", seed, cmd), general)
		if t.Failed() {
			return
		}
	}
	if taken < 300 {
		t.Errorf("seed %d: only %d were taken", seed, taken)
	}
}

// sectionedIfDocuments is sectioned where the one list of statements has documents only.
func sectionedIfDocuments(t testing.TB, cmd bson.D) wire.Message {
	lists := 0
	for _, e := range cmd {
		if slices.Contains([]string{"documents", "updates", "deletes"}, e.Key) {
			lists++
		}
	}
	if lists != 1 {
		return wireMessage(t, cmd)
	}
	return sectioned(t, cmd)
}
