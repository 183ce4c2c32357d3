package router

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
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
		"without an _id":                   {insert(d("k", 5)), true},
		"large and without an _id":         {insert(d("k", 5, "pad", strings.Repeat("x", maxHotID))), false},
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
		b := e.router.cfg.Backends.Get("b" + itoa(i))
		waits.Until(e.t, "backend "+b.ID()+" has answered", func() bool { // Ready waits for a second
			if err := b.Ready(e.ctx); err != nil {
				e.t.Fatal(err)
			}
			return b.Kind() != backend.KindUnknown
		})
	}
}

// What is for the general code to find out is left to it also where only the fleet or the map says so.
func TestHotPathLeavesRetriesAlone(t *testing.T) {
	e, _ := scriptEnv(t, func(s *backendtest.Server) { s.SetHello(backendtest.Standalone()) })
	e.shard("alone", "k", 1)
	e.knownBackends()
	if kind := e.router.cfg.Backends.Get("b0").Kind(); kind != backend.KindStandalone {
		t.Fatalf("the backend is a %s", kind)
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
	taken := func(txn int64) (n int) {
		for k := range 20 {
			if reads(t, e.router, with(hotWrite(e.db, "insert", bson.E{Key: "txnNumber", Value: txn}), "documents", bson.A{d("_id", 1, "k", k)})) {
				n++
			}
		}
		return n
	}
	// What another machine's clock says of the flip says nothing.
	flipped = time.Now().Add(-2 * time.Hour)
	apply(3)
	if n := taken(1); n != stayed {
		t.Errorf("%d taken, want the %d that did not move", n, stayed)
	}
	// Once the old home has been asked, what is new to its session is taken.
	var client sessionKey
	copy(client[:], testSession[0].Value.(bson.Binary).Data)
	e.router.histories.put(oldSession{id: derive(client, partition.Home{Backend: "b0", DB: e.db, Physical: "c@1.0.0"})}, history{txn: 5})
	for txn, want := range map[int64]int{4: stayed, 5: stayed, 6: 20} {
		if n := taken(txn); n != want {
			t.Errorf("number %d: %d taken, want %d", txn, n, want)
		}
	}
	// Homes that concern all positions count together.
	for i := range 2 {
		e.apply(&catalog.Map{NS: e.db + ".c", V: int64(4 + i), Key: &p, Hash: shardkey.HashName, UUID: catalog.NewUUID(),
			Partitions: []catalog.Partition{{Range: halves[0], Backend: "b1", Physical: "c@2.0.0"}, {Range: halves[1], Backend: "b0", Physical: "c@1.0.1"}},
			Retired:    []catalog.OldHome{{Backend: "b0", Physical: "c@0.0.0", FlippedAt: time.Now()}, {Backend: "b1", Physical: "c@0.0.1", FlippedAt: time.Now()}}})
	}
	e.router.histories.putWhole(wholeSession{client, e.db + ".c", 5}, 7)
	for txn, want := range map[int64]int{7: 0, 8: 20} {
		if n := taken(txn); n != want {
			t.Errorf("number %d after a drop: %d taken, want %d", txn, n, want)
		}
	}
	e.router.cfg.RetryWindow = time.Nanosecond
	if n := taken(1); n != 20 {
		t.Errorf("out of the retry window: %d taken", n)
	}
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

// A document without an _id is given one, as first field, before it is placed.
func TestHotPathMakesIDs(t *testing.T) {
	e, servers := scriptEnv(t)
	e.knownBackends()
	e.shard("c", "k", 5)
	e.shard("byid", "_id", 5)
	seen := map[bson.ObjectID]bool{}
	for i := range 40 {
		for _, name := range []string{"c", "byid"} {
			for _, s := range servers {
				s.Forget()
			}
			doc := d("k", i, "v", strings.Repeat("x", i*20))
			m := sectioned(t, with(with(hotWrite(e.db, "insert"), "documents", bson.A{doc}), "insert", name))
			if !takes(e.router, m) {
				t.Fatal("not taken")
			}
			if n, _ := e.exchange(m).Lookup("n").AsInt64OK(); n != 1 {
				t.Error("not inserted")
			}
			c := e.table.View().Collection(e.db + "." + name)
			for j, s := range servers {
				for _, w := range writesOf(s) {
					got := w.Docs("documents")[0]
					id, ok := got.Index(0).Value().ObjectIDOK()
					if !ok || got.Index(0).Key() != "_id" || seen[id] || !bytes.Equal(without(got, "_id"), mustMarshal(doc)) {
						t.Errorf("%v arrived as %v", doc, got)
					}
					seen[id] = true
					pos, _ := c.Key.Position(got)
					if part := c.At(pos); part.Backend != "b"+itoa(j) || part.Physical != w.Body.Lookup("insert").StringValue() {
						t.Errorf("%v is not where it belongs", got)
					}
				}
			}
		}
	}
	if len(seen) != 80 {
		t.Errorf("%d documents arrived", len(seen))
	}
}
