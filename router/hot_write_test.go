package router

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// hotWrite is a write with one statement that the hot path takes, with more fields behind.
func hotWrite(db, name string, more ...bson.E) bson.D {
	list, stmt := "documents", d("_id", 1, "k", 5, "v", "x")
	switch name {
	case "update":
		list, stmt = "updates", d("q", d("k", 5, "_id", 1), "u", d("$set", d("v", 1)))
	case "delete":
		list, stmt = "deletes", d("q", d("k", 5, "_id", 1), "limit", 1)
	}
	return append(bson.D{{Key: name, Value: "c"}, {Key: list, Value: bson.A{stmt}}, {Key: "lsid", Value: testSession}, {Key: "$db", Value: db}}, more...)
}

// with is cmd with another value for a field.
func with(cmd bson.D, field string, value any) bson.D {
	cmd = slices.Clone(cmd)
	for i := range cmd {
		if cmd[i].Key == field {
			cmd[i].Value = value
		}
	}
	return cmd
}

// sectioned has the statements of a write, if it has an array of documents, in a section of their own, as drivers send them.
func sectioned(t testing.TB, cmd bson.D) wire.Message {
	t.Helper()
	var body bson.D
	var seqs []wire.Sequence
	for _, e := range cmd {
		list, ok := e.Value.(bson.A)
		if !ok || !slices.Contains([]string{"documents", "updates", "deletes"}, e.Key) {
			body = append(body, e)
			continue
		}
		s := wire.Sequence{Identifier: e.Key}
		for _, x := range list {
			raw, err := bson.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			s.Docs = append(s.Docs, raw...)
		}
		seqs = append(seqs, s)
	}
	raw := wire.AppendMsg(nil, 7, 0, 0, mustMarshal(body), seqs...)
	h, err := wire.ParseHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Message{Header: h, Buf: &wire.Buffer{B: raw}}
}

// The hot path takes writes of one plain statement that goes to one partition as it is, and leaves the rest alone.
func TestHotPathTakesPlainWritesOnly(t *testing.T) {
	e, _ := scriptEnv(t)
	e.shard("c", "k", 5)
	e.shard("c.d", "k", 5)
	e.knownBackends()
	insert := func(stmts ...any) bson.D { return with(hotWrite(e.db, "insert"), "documents", bson.A(stmts)) }
	update := func(stmts ...any) bson.D { return with(hotWrite(e.db, "update"), "updates", bson.A(stmts)) }
	remove := func(stmts ...any) bson.D { return with(hotWrite(e.db, "delete"), "deletes", bson.A(stmts)) }
	more := func(k string, v any) bson.D { return hotWrite(e.db, "insert", bson.E{Key: k, Value: v}) }
	set, q := d("$set", d("v", 1)), d("k", 5)
	for name, c := range map[string]struct {
		cmd  bson.D
		want bool
	}{
		"an insert":                        {hotWrite(e.db, "insert"), true},
		"an update":                        {hotWrite(e.db, "update"), true},
		"a delete":                         {hotWrite(e.db, "delete"), true},
		"the _id behind":                   {insert(d("k", 5, "_id", 1)), true},
		"without an _id":                   {insert(d("k", 5)), false},
		"without the key":                  {insert(d("_id", 1)), true},
		"an array as the key":              {insert(d("_id", 1, "k", bson.A{1})), false},
		"two documents":                    {insert(d("_id", 1), d("_id", 2)), false},
		"no document":                      {insert(), false},
		"a document that is none":          {insert(5), false},
		"documents that are none":          {with(hotWrite(e.db, "insert"), "documents", 5), false},
		"unordered":                        {more("ordered", false), true},
		"ordered by a number":              {more("ordered", 1), false},
		"retryable":                        {more("txnNumber", int64(3)), true},
		"a small transaction number":       {more("txnNumber", int32(3)), false},
		"a negative one":                   {more("txnNumber", int64(-3)), false},
		"a number without a session":       {d("insert", "c", "documents", bson.A{d("_id", 1)}, "txnNumber", int64(1), "$db", e.db), false},
		"in a transaction":                 {hotWrite(e.db, "insert", d("txnNumber", int64(3), "autocommit", false)...), false},
		"statement ids":                    {hotWrite(e.db, "insert", d("txnNumber", int64(3), "stmtIds", bson.A{int32(3)})...), false},
		"of a majority":                    {more("writeConcern", d("w", "majority", "wtimeout", 5, "j", true)), true},
		"of two":                           {more("writeConcern", d("w", 2)), true},
		"an empty concern":                 {more("writeConcern", d()), true},
		"unacknowledged":                   {more("writeConcern", d("w", 0)), false},
		"by tags":                          {more("writeConcern", d("w", d("a", 1))), false},
		"a concern's provenance":           {more("writeConcern", d("provenance", "x")), false},
		"a cluster time":                   {more("$clusterTime", d("clusterTime", bson.Timestamp{T: 1})), true},
		"a read preference":                {more("$readPreference", d("mode", "secondary")), false},
		"an unknown field":                 {more("whatever", 1), false},
		"a find's field":                   {more("limit", 1), false},
		"a field twice":                    {more("lsid", testSession), false},
		"another's statements":             {more("updates", bson.A{d("q", q, "u", set)}), false},
		"a time limit":                     {more("maxTimeMS", 5), false},
		"an unsharded collection":          {with(hotWrite(e.db, "insert"), "insert", "other"), false},
		"a database of another":            {with(with(hotWrite(e.db, "insert"), "insert", "d"), "$db", e.db+".c"), false},
		"a find there":                     {with(findOf(e.db+".c", "d", 5), "$db", e.db+".c"), false},
		"no":                               {update(d("q", q, "u", set, "multi", false, "upsert", false)), true},
		"many":                             {update(d("q", q, "u", set, "multi", true)), false},
		"an upsert":                        {update(d("q", q, "u", set, "upsert", true)), false},
		"many as a number":                 {update(d("q", q, "u", set, "multi", 0)), false},
		"a hint":                           {update(d("q", q, "u", set, "hint", "k_1")), false},
		"a collation":                      {update(d("q", q, "u", set, "collation", d("locale", "simple"))), false},
		"a pipeline":                       {update(d("q", q, "u", bson.A{set})), false},
		"the key set to what it is":        {update(d("q", q, "u", d("$set", d("k", 5.0)))), true},
		"the key set to something else":    {update(d("q", q, "u", d("$set", d("k", 6)))), false},
		"the key counted up":               {update(d("q", q, "u", d("$inc", d("k", 1)))), false},
		"the key on insert":                {update(d("q", q, "u", d("$setOnInsert", d("k", 6), "$set", d("v", 1)))), true},
		"a replacement":                    {update(d("q", q, "u", d("k", 5, "v", 1))), true},
		"a replacement that moves":         {update(d("q", q, "u", d("k", 6, "v", 1))), false},
		"a replacement without the key":    {update(d("q", q, "u", d("v", 1))), false},
		"operators and fields":             {update(d("q", q, "u", d("$set", d("v", 1), "w", 2))), false},
		"no filter":                        {update(d("u", set)), false},
		"no update":                        {update(d("q", q)), false},
		"a filter twice":                   {update(d("q", q, "q", q, "u", set)), false},
		"a filter without the key":         {update(d("q", d("_id", 1), "u", set)), false},
		"a filter of several keys":         {update(d("q", d("k", d("$in", bson.A{1, 2, 3, 4, 5, 6})), "u", set)), false},
		"an update's limit":                {update(d("q", q, "u", set, "limit", 1)), false},
		"all of a filter":                  {remove(d("q", q, "limit", 0)), false},
		"a delete without a limit":         {remove(d("q", q)), false},
		"a limit that may be a fraction":   {remove(d("q", q, "limit", 1.0)), false},
		"a delete's update":                {remove(d("q", q, "limit", 1, "u", set)), false},
		"two updates":                      {update(d("q", q, "u", set), d("q", q, "u", set)), false},
		"a delete with a hint":             {remove(d("q", q, "limit", 1, "hint", "k_1")), false},
		"a replacement with an equal long": {update(d("q", q, "u", d("k", int64(5)))), true},
	} {
		if got := reads(t, e.router, c.cmd); got != c.want {
			t.Errorf("%s: taken %v, want %v", name, got, c.want)
		}
		if _, array := c.cmd[1].Value.(bson.A); array && name != "a document that is none" {
			if got := takes(e.router, sectioned(t, c.cmd)); got != c.want {
				t.Errorf("%s, in a section: taken %v, want %v", name, got, c.want)
			}
		}
	}
	both := wireMessage(t, hotWrite(e.db, "insert"))
	both.Buf.B = wire.AppendMsg(nil, 7, 0, 0, both.Buf.B[bodyAt:], wire.Sequence{Identifier: "documents", Docs: mustMarshal(d("_id", 1))})
	if takes(e.router, both) {
		t.Error("taken with documents in the body and in a section")
	}
}

// knownBackends waits until every backend has answered.
func (e *writeEnv) knownBackends() {
	for i := range 3 {
		if err := e.router.cfg.Backends.Get("b" + itoa(i)).Ready(e.ctx); err != nil {
			e.t.Fatal(err)
		}
	}
}

// What is for the general code to find out is left to it also where only the fleet or the map says so.
func TestHotPathLeavesRetriesAlone(t *testing.T) {
	e, servers := scriptEnv(t)
	for _, s := range servers {
		s.SetHello(backendtest.Standalone())
	}
	e.shard("alone", "k", 1)
	if err := e.router.cfg.Backends.Get("b0").Ready(e.ctx); err != nil {
		t.Fatal(err)
	}
	if e.router.cfg.Backends.Get("b0").Kind().String() != "standalone" {
		t.Skip("the backend was asked before it became a standalone")
	}
	cmd := with(hotWrite(e.db, "insert"), "insert", "alone")
	if !reads(t, e.router, cmd) || reads(t, e.router, append(cmd, bson.E{Key: "txnNumber", Value: int64(1)})) {
		t.Error("a standalone's retryable write is taken, or its others are not")
	}
}

func TestHotPathLeavesMovedWritesAlone(t *testing.T) {
	e, _ := scriptEnv(t)
	e.knownBackends()
	p, _ := shardkey.ParsePattern(mustMarshal(d("k", "hashed")))
	halves := shardkey.Even(2)
	flipped := time.Now()
	apply := func(v int64) {
		e.apply(&catalog.Map{NS: e.db + ".c", V: v, Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID(),
			Partitions: []catalog.Partition{{Range: halves[0], Backend: "b1", Physical: "c@2.0.0"}, {Range: halves[1], Backend: "b0", Physical: "c@1.0.1"}},
			Retired:    []catalog.OldHome{{Range: halves[0], Backend: "b0", Physical: "c@1.0.0", FlippedAt: flipped}}})
	}
	apply(2)
	var moved, stayed int
	for k := range 20 {
		pos, _ := p.Position(mustMarshal(d("k", k)))
		for _, name := range []string{"insert", "update", "delete"} {
			cmd := hotWrite(e.db, name, bson.E{Key: "txnNumber", Value: int64(1)})
			switch name {
			case "insert":
				cmd = with(cmd, "documents", bson.A{d("_id", 1, "k", k)})
			case "update":
				cmd = with(cmd, "updates", bson.A{d("q", d("k", k), "u", d("$set", d("v", 1)))})
			case "delete":
				cmd = with(cmd, "deletes", bson.A{d("q", d("k", k), "limit", 1)})
			}
			if got := reads(t, e.router, cmd); got == halves[0].Contains(pos) {
				t.Errorf("%s of key %d: taken %v", name, k, got)
			}
		}
		if halves[0].Contains(pos) {
			moved++
		} else {
			stayed++
		}
	}
	if moved == 0 || stayed == 0 {
		t.Fatal("all keys on one side")
	}
	flipped = time.Now().Add(-2 * retryWindow)
	apply(3)
	for k := range 20 {
		cmd := with(hotWrite(e.db, "insert", bson.E{Key: "txnNumber", Value: int64(1)}), "documents", bson.A{d("_id", 1, "k", k)})
		if !reads(t, e.router, cmd) {
			t.Errorf("key %d, long after the flip: not taken", k)
		}
	}
}

// outcomes of a write at the servers.
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
	"an upsert":             answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "upserted", Value: bson.A{d("index", 0, "_id", 4)}}),
	"a repeat":              answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "retriedStmtIds", Value: bson.A{0}}),
	"too late":              answers(bson.E{Key: "n", Value: 1}, bson.E{Key: "writeConcernError", Value: d("code", 64, "codeName", "WriteConcernFailed", "errmsg", "late")}),
	"a duplicate":           duplicate(false),
	"a duplicate, and late": duplicate(true),
	"a text that names a home": func(db string) backendtest.Script {
		return func(c backendtest.Command) backendtest.Answer {
			return backendtest.Err(2, "BadValue", "no "+db+"."+catalog.PhysicalName("c", 1, 0, 1)+" here")
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

// A write that waits at a closed gate goes where the newest map says, also when that is no longer for the hot path to find out.
func TestHotWritesPlanAgain(t *testing.T) {
	for what, change := range map[string]func(*catalog.Map){
		"moved":   func(*catalog.Map) {},
		"rekeyed": func(m *catalog.Map) { p, _ := shardkey.ParsePattern(mustMarshal(d("v", "hashed"))); m.Key = &p },
		"retired": func(m *catalog.Map) {
			m.Retired = []catalog.OldHome{{Range: m.Partitions[0].Range, Backend: "b0", Physical: "c@1.0.0", FlippedAt: time.Now()}}
		},
		"unsharded": func(m *catalog.Map) { m.Key, m.Hash = nil, "" },
	} {
		for _, name := range []string{"insert", "update", "delete"} {
			t.Run(what+", "+name, func(t *testing.T) {
				e, servers := scriptEnv(t)
				e.knownBackends()
				e.shard("c", "k", 1)
				c := e.table.View().Collection(e.db + ".c")
				cmd := hotWrite(e.db, name, bson.E{Key: "txnNumber", Value: int64(1)})
				if !reads(t, e.router, cmd) {
					t.Fatal("not taken")
				}
				e.table.Close(c.NS, []partition.Home{c.Parts[0].Home}, 2, partition.ClosedAll)
				replied := make(chan bson.Raw, 1)
				go func() { replied <- e.exchange(wireMessage(t, cmd)) }()
				for e.router.stats.inserts.Load()+e.router.stats.updates.Load()+e.router.stats.deletes.Load() == 0 {
					time.Sleep(time.Millisecond) // until it is on its way to the gate
				}
				next := *c.Map
				next.V, next.Partitions = 2, []catalog.Partition{{Range: c.Parts[0].Range, Backend: "b1", Physical: "c@2.0.0"}}
				change(&next)
				e.apply(&next)
				reply := <-replied
				if n, _ := reply.Lookup("n").AsInt64OK(); n != 1 {
					t.Errorf("answered %v", reply)
				}
				if got := writesOf(servers[0], servers[2]); len(got) != 0 {
					t.Errorf("sent to the old home, or another: %v", got)
				}
				got := writesOf(servers[1])
				if len(got) != 1 || got[0].Body.Lookup(name).StringValue() != "c@2.0.0" || got[0].Body.Lookup("txnNumber").Int64() != 1 {
					t.Errorf("the new home got %v", got)
				}
			})
		}
	}
}
