package rules_test

import (
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/fleet/rules"
	"github.com/shardway/shardway/wire"
)

// measured is what servers answer, by version: asked of the rules, and of a mongod where
// SHARDWAY_SERVER names one.
type measured struct {
	name          string
	since, before rules.Version
	alone         bool
	prepare       func(c *client)
	command       func(c *client) []any
	code          int64 // 0 for ok
	codeName      string
	text          string // that errmsg contains
	labels        string
	concern       int64 // the code of writeConcernError
}

// fixed is a command that needs nothing of the server's.
func fixed(pairs ...any) func(*client) []any { return func(*client) []any { return pairs } }

func sessionID(n byte) bson.D {
	id := make([]byte, 16)
	id[0], id[6], id[8] = n, 0x40, 0x80
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}}}
}

func level(name string) bson.D { return bson.D{{Key: "level", Value: name}} }

func after(c *client, name string) bson.D {
	return append(level(name), bson.E{Key: "afterClusterTime", Value: c.time()})
}

func readTransactions(concern func(c *client) bson.D) func(*client) []any {
	return func(c *client) []any {
		return []any{"find", "transactions", "readConcern", concern(c), "$db", "config"}
	}
}

func plain(name string) func(*client) bson.D { return func(*client) bson.D { return level(name) } }

func timed(name string) func(*client) bson.D { return func(c *client) bson.D { return after(c, name) } }

const (
	snapshotText = "Snapshot reads and causal consistent majority reads on config.transactions are not supported"
	levelText    = "afterClusterTime field can be set only if level is equal to majority, local, or snapshot"
	aheadText    = "readConcern afterClusterTime value must not be greater than the current clusterTime"
)

func makeTS(c *client) {
	c.run("create", "ts", "timeseries", bson.D{{Key: "timeField", Value: "t"}}, "$db", "m")
	c.run("create", "view", "viewOn", "c", "pipeline", bson.A{}, "$db", "m")
}

func makeC(c *client) {
	c.run("insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: "c"}}}, "$db", "m")
}

func ahead(c *client, seconds uint32) bson.Timestamp {
	t := c.time()
	return bson.Timestamp{T: t.T + seconds, I: 1}
}

func gossip(t bson.Timestamp) bson.D {
	return bson.D{{Key: "clusterTime", Value: t}, {Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)}}}}
}

var table = []measured{
	{name: "transactions, local", command: readTransactions(plain("local"))},
	{name: "transactions, local after", command: readTransactions(timed("local"))},
	{name: "transactions, majority", command: readTransactions(plain("majority"))},
	{name: "transactions, majority after", command: readTransactions(timed("majority")), code: 5557800, codeName: "Location5557800", text: snapshotText},
	{name: "transactions, linearizable", command: readTransactions(plain("linearizable"))},
	{name: "transactions, linearizable after", command: readTransactions(timed("linearizable")), code: 72, codeName: "InvalidOptions", text: levelText},
	{name: "transactions, available", command: readTransactions(plain("available"))},
	{name: "transactions, available after", command: readTransactions(timed("available")), code: 72, codeName: "InvalidOptions", text: levelText},
	{name: "transactions, snapshot", command: readTransactions(plain("snapshot")), code: 5557800, codeName: "Location5557800", text: snapshotText},
	{name: "transactions, snapshot after", command: readTransactions(timed("snapshot")), code: 5557800, codeName: "Location5557800", text: snapshotText},
	{name: "oplog, majority after", command: func(c *client) []any {
		return []any{"find", "oplog.rs", "limit", 1, "singleBatch", true, "readConcern", after(c, "majority"), "$db", "local"}
	}},
	{name: "collection, linearizable after", prepare: makeC, command: func(c *client) []any {
		return []any{"find", "c", "readConcern", after(c, "linearizable"), "$db", "m"}
	}, code: 72, codeName: "InvalidOptions", text: levelText},
	{name: "collection, snapshot", prepare: makeC, command: fixed("find", "c", "readConcern", level("snapshot"), "$db", "m")},
	{name: "validate with a level", prepare: makeC, command: fixed("validate", "c", "readConcern", level("majority"), "$db", "m"), code: 72, codeName: "InvalidOptions"},
	{name: "a time ahead of the clock", prepare: makeC, command: func(c *client) []any {
		return []any{"find", "c", "readConcern", bson.D{{Key: "level", Value: "local"}, {Key: "afterClusterTime", Value: ahead(c, 600)}}, "$db", "m"}
	}, code: 72, codeName: "InvalidOptions", text: aheadText},
	{name: "a time ahead of the clock, which comes along", prepare: makeC, command: func(c *client) []any {
		t := ahead(c, 50)
		return []any{"find", "c", "readConcern", bson.D{{Key: "level", Value: "local"}, {Key: "afterClusterTime", Value: t}}, "$clusterTime", gossip(t), "$db", "m"}
	}},
	{name: "a clock too far ahead", command: func(c *client) []any {
		return []any{"ping", 1, "$clusterTime", gossip(ahead(c, 400*24*3600)), "$db", "admin"}
	}, code: 205, codeName: "ClusterTimeFailsRateLimiter", text: "is too far from this node's wall clock time"},
	{name: "insert, a field of 8.0", before: rules.V80, command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "bypassEmptyTsReplacement", true, "$db", "m"),
		code: 40415, text: "BSON field 'insert.bypassEmptyTsReplacement' is an unknown field."},
	{name: "insert, a field of 8.0, there", since: rules.V80, command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "bypassEmptyTsReplacement", true, "$db", "m")},
	{name: "findAndModify, a field of 8.0", before: rules.V80, command: fixed("findAndModify", "c", "query", bson.D{}, "remove", true, "bypassEmptyTsReplacement", true, "$db", "m"),
		code: 40415, text: "BSON field 'findAndModify.bypassEmptyTsReplacement' is an unknown field."},
	{name: "update, a statement's field of 8.0", before: rules.V80, command: fixed("update", "c", "updates",
		bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}}, {Key: "sort", Value: bson.D{{Key: "a", Value: 1}}}}}, "$db", "m"),
		code: 40415, text: "BSON field 'update.updates.sort' is an unknown field."},
	{name: "insert, a field that nobody knows", command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "x", true, "$db", "m"),
		code: 40415, text: "BSON field 'insert.x' is an unknown field."},
	{name: "bulkWrite before 8.0", before: rules.V80, command: fixed("bulkWrite", 1, "ops", bson.A{}, "nsInfo", bson.A{}, "$db", "admin"), code: 59, codeName: "CommandNotFound", text: "no such command: 'bulkWrite'"},
	{name: "create with a long name", command: fixed("create", strings.Repeat("x", 254), "$db", "m"), code: 73, codeName: "InvalidNamespace", text: "Fully qualified namespace is too long. Namespace: m."},
	{name: "insert with a long name", command: fixed("insert", strings.Repeat("x", 254), "documents", bson.A{bson.D{}}, "$db", "m"), code: 73, codeName: "InvalidNamespace"},
	{name: "create again", before: rules.V70, prepare: makeC, command: fixed("create", "c", "$db", "m"), code: 48, codeName: "NamespaceExists"},
	{name: "create again with the same options", since: rules.V70, prepare: makeC, command: fixed("create", "c", "$db", "m")},
	{name: "create again with other options", prepare: makeC, command: fixed("create", "c", "capped", true, "size", 1000, "$db", "m"), code: 48, codeName: "NamespaceExists"},
	{name: "drop of nothing before 7.0", before: rules.V70, command: fixed("drop", "nothing", "$db", "m"), code: 26, codeName: "NamespaceNotFound", text: "ns not found"},
	{name: "drop of nothing", since: rules.V70, command: fixed("drop", "nothing", "$db", "m")},
	{name: "noCursorTimeout on a time series", prepare: makeTS, command: fixed("find", "ts", "noCursorTimeout", true, "$db", "m"), code: 168, codeName: "InvalidPipelineOperator", text: "Option noCursorTimeout not supported in aggregation."},
	{name: "noCursorTimeout on a view", prepare: makeTS, command: fixed("find", "view", "noCursorTimeout", true, "$db", "m"), code: 168, codeName: "InvalidPipelineOperator"},
	{name: "noCursorTimeout", prepare: makeC, command: fixed("find", "c", "noCursorTimeout", true, "$db", "m")},
	{name: "a write concern that cannot be met", command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "writeConcern", bson.D{{Key: "w", Value: 3}}, "$db", "m"), concern: 100},
	{name: "commit of nothing", command: fixed("commitTransaction", 1, "lsid", sessionID(1), "txnNumber", int64(4), "autocommit", false, "$db", "admin"),
		code: 251, codeName: "NoSuchTransaction", labels: "TransientTransactionError"},
	{name: "commit of nothing with a write concern that cannot be met", command: fixed("commitTransaction", 1, "lsid", sessionID(1), "txnNumber", int64(4), "autocommit", false,
		"writeConcern", bson.D{{Key: "w", Value: 3}}, "$db", "admin"), code: 251, codeName: "NoSuchTransaction", concern: 100},
	{name: "an older number", prepare: func(c *client) {
		c.must("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "lsid", sessionID(2), "txnNumber", int64(9), "$db", "m")
	}, command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "lsid", sessionID(2), "txnNumber", int64(8), "$db", "m"), code: 225, codeName: "TransactionTooOld"},
	{name: "a cursor that is not there", command: fixed("getMore", int64(77), "collection", "c", "$db", "m"), code: 43, codeName: "CursorNotFound", text: "cursor id 77 not found"},
	{name: "a number at a standalone", alone: true, command: fixed("insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}}, "lsid", sessionID(3), "txnNumber", int64(1), "$db", "m"),
		code: 20, codeName: "IllegalOperation", text: "Transaction numbers are only allowed on a replica set member or mongos"},
}

// versions are those whose rules are asked. A mongod has one.
func versions(t *testing.T) []rules.Version {
	t.Helper()
	if os.Getenv("SHARDWAY_SERVER") != "" {
		return []rules.Version{rules.Default}
	}
	return []rules.Version{rules.V60, rules.V70, rules.V80}
}

// versionOf is the version that a server says it is of.
func versionOf(c *client) rules.Version {
	parts, _ := c.must("buildInfo", 1, "$db", "admin").Lookup("versionArray").Array().Values()
	return rules.Version(10 * parts[0].AsInt64())
}

func TestMeasuredAnswers(t *testing.T) {
	for _, v := range versions(t) {
		t.Run(v.String(), func(t *testing.T) {
			set := fleettest.Start(t, 1, fleettest.Version(v)).Servers[0]
			alone := fleettest.Start(t, 1, fleettest.Version(v), fleettest.Standalone).Servers[0]
			for _, m := range table {
				t.Run(m.name, func(t *testing.T) { m.ask(t, set, alone) })
			}
		})
	}
}

func (m measured) ask(t *testing.T, set, alone *fleet.Server) {
	s := set
	if m.alone {
		s = alone
	}
	c := dialServer(t, s.Addr())
	if v := versionOf(c); v < m.since || m.before != 0 && v >= m.before {
		t.Skip("not of this version")
	}
	if m.prepare != nil {
		m.prepare(c)
	}
	reply := c.run(m.command(c)...)
	text, _ := reply.Lookup("errmsg").StringValueOK()
	codeName, _ := reply.Lookup("codeName").StringValueOK()
	code, _ := reply.Lookup("code").AsInt64OK()
	if wire.ReplyOK(reply) != (m.code == 0) || code != m.code || m.codeName != "" && codeName != m.codeName || !strings.Contains(text, m.text) {
		t.Errorf("got %v, want %d %s %q", reply, m.code, m.codeName, m.text)
	}
	var labels []string
	if arr, ok := reply.Lookup("errorLabels").ArrayOK(); ok {
		values, _ := arr.Values()
		for _, v := range values {
			labels = append(labels, v.StringValue())
		}
	}
	if got := strings.Join(labels, " "); got != m.labels {
		t.Errorf("labels %q, want %q", got, m.labels)
	}
	concern := int64(0)
	if d, ok := reply.Lookup("writeConcernError").DocumentOK(); ok {
		concern = d.Lookup("code").AsInt64()
		if from := d.Lookup("errInfo", "writeConcern", "provenance").StringValue(); from != "clientSupplied" {
			t.Errorf("the write concern's provenance is %q", from)
		}
	}
	if concern != m.concern {
		t.Errorf("writeConcernError %d, want %d: %v", concern, m.concern, reply)
	}
	if !m.alone && (reply.Lookup("$clusterTime").IsZero() || reply.Lookup("operationTime").IsZero()) {
		t.Errorf("the reply tells no time: %v", reply)
	}
}

func TestZeroTimesAndOrderOfFields(t *testing.T) {
	for _, v := range versions(t) {
		t.Run(v.String(), func(t *testing.T) {
			c := dialServer(t, fleettest.Start(t, 1, fleettest.Version(v)).Servers[0].Addr())
			zero := bson.D{{Key: "t", Value: bson.Timestamp{}}, {Key: "_id", Value: "e"}, {Key: "x", Value: bson.D{{Key: "t", Value: bson.Timestamp{}}}}}
			c.must("insert", "c", "documents", bson.A{zero}, "$db", "z")
			check := func(replaced bool) {
				t.Helper()
				d := c.must("find", "c", "$db", "z").Lookup("cursor", "firstBatch", "0").Document()
				elems, _ := d.Elements()
				if elems[0].Key() != "_id" {
					t.Errorf("the first field is %s", elems[0].Key())
				}
				if sec, i := d.Lookup("t").Timestamp(); (sec != 0 || i != 0) != replaced {
					t.Errorf("t is %v", d.Lookup("t"))
				}
				if sec, i := d.Lookup("x", "t").Timestamp(); sec != 0 || i != 0 {
					t.Errorf("x.t is %v", d.Lookup("x", "t"))
				}
			}
			check(true)
			if versionOf(c) < rules.V80 {
				return
			}
			c.must("delete", "c", "deletes", bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}, "$db", "z")
			c.must("insert", "c", "documents", bson.A{zero}, "bypassEmptyTsReplacement", true, "$db", "z")
			check(false)
		})
	}
}

func TestVersionsSayWhatTheyAre(t *testing.T) {
	for v, wireVersion := range map[rules.Version]int64{rules.V60: 17, rules.V70: 21, rules.V80: 25} {
		s := fleettest.Start(t, 1, fleettest.Version(v)).Servers[0]
		if fleettest.FrontOf(s) == nil {
			t.Skip("a mongod has a version of its own")
		}
		c := dialServer(t, s.Addr())
		if got := versionOf(c); got != v {
			t.Errorf("rules of %v say that they are of %v", v, got)
		}
		hello := c.must("hello", 1, "$db", "admin")
		if got := hello.Lookup("maxWireVersion").AsInt64(); got != wireVersion {
			t.Errorf("%v: maxWireVersion %d, want %d", v, got, wireVersion)
		}
		if me, host := hello.Lookup("me").StringValue(), hello.Lookup("hosts", "0").StringValue(); me != s.Addr() || host != s.Addr() || me == s.Direct() {
			t.Errorf("hello names %s and %s, the relay is %s", me, host, s.Addr())
		}
	}
}
