package router

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

func TestDiagnostics(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	one := func(name string) bson.D { return bson.D{{Key: name, Value: 1}} }

	info := p.ok(one("buildInfo"))
	if v := info.Lookup("version").StringValue(); v != newestVersion {
		t.Errorf("version %q", v)
	}
	if n, _ := info.Lookup("versionArray").Array().Values(); len(n) != 4 || n[0].AsInt64() != 7 {
		t.Errorf("versionArray %v", n)
	}
	for _, path := range [][]string{{"modules"}, {"buildEnvironment", "target_os"}, {"buildEnvironment", "target_arch"}} {
		if _, err := info.LookupErr(path...); err != nil {
			t.Errorf("buildInfo lacks %v", path)
		}
	}
	if you := p.ok(one("whatsmyuri")).Lookup("you").StringValue(); you != p.nc.LocalAddr().String() {
		t.Errorf("whatsmyuri says %q, I am %v", you, p.nc.LocalAddr())
	}
	if host, _ := os.Hostname(); p.ok(one("isdbgrid")).Lookup("hostname").StringValue() != host {
		t.Error("isdbgrid names another host")
	}
	if _, err := p.ok(bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}}).LookupErr("authInfo", "authenticatedUserPrivileges"); err != nil {
		t.Error("connectionStatus shows no privileges though asked to")
	}
	if _, err := p.ok(one("connectionStatus")).LookupErr("authInfo", "authenticatedUserPrivileges"); err == nil {
		t.Error("connectionStatus shows privileges unasked")
	}
	if rs := p.run(one("replSetGetStatus")); rs.Lookup("info").StringValue() != "mongos" || wire.ReplyOK(rs) || rs.Lookup("code").Type != 0 {
		t.Errorf("replSetGetStatus: %v", rs)
	}
	if p.ok(one("hostInfo")).Lookup("system", "numCores").AsInt64() < 1 {
		t.Error("hostInfo knows no cores")
	}
	if w := p.ok(one("getDefaultRWConcern")).Lookup("defaultWriteConcern", "w").StringValue(); w != "majority" {
		t.Errorf("default w: %s", w)
	}
	pools := p.ok(one("connPoolStats"))
	for _, path := range [][]string{{"numClientConnections"}, {"numAScopedConnections"}, {"totalInUse"}, {"totalAvailable"}, {"totalLeased"}, {"totalCreated"},
		{"totalRefreshing"}, {"replicaSetMatchingStrategy"}, {"pools", "shardway", "poolInUse"}, {"hosts"}, {"replicaSets"}} {
		if _, err := pools.LookupErr(path...); err != nil {
			t.Errorf("connPoolStats lacks %v", path)
		}
	}
	if self := p.ok(one("_isSelf")).Lookup("id").ObjectID(); self != p.ok(one("hello")).Lookup("topologyVersion", "processId").ObjectID() {
		t.Errorf("_isSelf: %v", self)
	}
	if n := p.ok(one("dropAllUsersFromDatabase")).Lookup("n"); n.AsInt64() != 0 || n.Type != bson.TypeInt32 {
		t.Errorf("dropAllUsersFromDatabase: %v", n)
	}
	p.ok(one("features"))
	p.ok(one("logout"))
	p.ok(one("getCmdLineOpts"))
	p.ok(one("usersInfo"))
	p.fails(bson.D{{Key: "createUser", Value: "u"}}, wire.CommandNotSupported)
	p.fails(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "SCRAM-SHA-256"}}, wire.MechanismUnavailable)

	list := p.ok(one("listCommands")).Lookup("commands").Document()
	for name, c := range e.r.commands {
		d, ok := list.Lookup(name).DocumentOK()
		if name != c.Name {
			continue
		}
		if !ok || d.Lookup("help").StringValue() != c.Help || d.Lookup("adminOnly").Boolean() != c.Admin || d.Lookup("requiresAuth").Boolean() == c.NoAuth {
			t.Errorf("listCommands says of %s: %v", name, d)
		}
	}
}

func TestServerStatus(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	status := bson.D{{Key: "serverStatus", Value: 1}}
	number := func(s bson.Raw, path ...string) int64 { return s.Lookup(path...).AsInt64() }
	a := p.ok(status)
	if number(a, "pid") != int64(os.Getpid()) || a.Lookup("process").StringValue() != "mongos" || number(a, "connections", "current") != 1 || number(a, "connections", "active") != 1 {
		t.Errorf("%v", a)
	}
	for range 5 {
		p.ok(ping())
	}
	p.fails(bson.D{{Key: "getLog", Value: 1}}, wire.TypeMismatch)
	e.dial().ok(ping())
	b := p.ok(status)
	for _, tt := range []struct {
		path []string
		by   int64
	}{
		{[]string{"opcounters", "command"}, 8},
		{[]string{"network", "numRequests"}, 8},
		{[]string{"asserts", "user"}, 1},
		{[]string{"connections", "totalCreated"}, 1},
	} {
		if got := number(b, tt.path...) - number(a, tt.path...); got != tt.by {
			t.Errorf("%v grew by %d, want %d", tt.path, got, tt.by)
		}
	}
	if number(b, "network", "bytesIn") <= number(a, "network", "bytesIn") || number(b, "network", "bytesOut") <= number(a, "network", "bytesOut") {
		t.Error("no bytes are counted")
	}
	for _, absent := range []string{"repl", "storageEngine", "wiredTiger", "locks", "globalLock"} {
		if _, err := b.LookupErr(absent); err == nil {
			t.Errorf("serverStatus has %s, which a router has not", absent)
		}
	}
}

func TestParameters(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	get := func(first any, names ...string) bson.D {
		d := bson.D{{Key: "getParameter", Value: first}}
		for _, n := range names {
			d = append(d, bson.E{Key: n, Value: 1})
		}
		return d
	}
	all, _ := p.ok(get("*")).Elements()
	if len(all) != len(e.r.parameters())+1 {
		t.Errorf("getParameter '*' gives %d fields, there are %d parameters", len(all), len(e.r.parameters()))
	}
	if v := p.ok(get(1, "cursorTimeoutMillis")).Lookup("cursorTimeoutMillis").AsInt64(); v != 600_000 {
		t.Errorf("cursorTimeoutMillis %d", v)
	}
	if d := p.ok(get(bson.D{{Key: "showDetails", Value: true}}, "requireApiVersion")).Lookup("requireApiVersion"); !d.Document().Lookup("settableAtRuntime").Boolean() {
		t.Errorf("details: %v", d)
	}
	for _, unknown := range []bson.D{get(1, "featureCompatibilityVersion"), get("foo"), get(1)} {
		p.fails(unknown, wire.InvalidOptions)
	}
	set := func(name string, v any) bson.D {
		return bson.D{{Key: "setParameter", Value: 1}, {Key: name, Value: v}}
	}
	p.fails(set("foo", 1), wire.InvalidOptions)
	p.fails(set("cursorTimeoutMillis", 1), wire.IllegalOperation)
	p.fails(set("requireApiVersion", "x"), wire.BadValue)
	p.fails(bson.D{{Key: "setParameter", Value: 1}}, wire.InvalidOptions)
	if was := p.ok(set("requireApiVersion", false)).Lookup("was").Boolean(); was {
		t.Error("requireApiVersion was true")
	}
}

func TestGetLog(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	for i := range recentLines + 10 {
		fmt.Fprintf(e.r.cfg.RecentLog, `{"level":"warn","time":"2026-01-02T03:04:05Z","n":%d,"message":"m%d"}`+"\n", i, i)
	}
	fmt.Fprintln(e.r.cfg.RecentLog, strings.Repeat("x", recentLine+1))
	reply := p.ok(bson.D{{Key: "getLog", Value: "global"}})
	lines, _ := reply.Lookup("log").Array().Values()
	if len(lines) != recentLines || reply.Lookup("totalLinesWritten").AsInt64() != recentLines+11 {
		t.Fatalf("%d lines of %v", len(lines), reply.Lookup("totalLinesWritten"))
	}
	for i, line := range lines {
		var entry struct {
			T struct {
				Date string `json:"$date"`
			}
			S    string
			Msg  string
			Attr struct{ N int }
		}
		if err := json.Unmarshal([]byte(line.StringValue()), &entry); err != nil {
			t.Fatal(err)
		}
		if want := i + 10; entry.Attr.N != want || entry.Msg != fmt.Sprint("m", want) || entry.S != "W" || entry.T.Date == "" {
			t.Fatalf("line %d is %s", i, line.StringValue())
		}
	}
	names, _ := p.ok(bson.D{{Key: "getLog", Value: "*"}}).Lookup("names").Array().Values()
	if len(names) != 2 {
		t.Errorf("names: %v", names)
	}
	p.ok(bson.D{{Key: "getLog", Value: "startupWarnings"}})
	p.fails(bson.D{{Key: "getLog", Value: "x"}}, wire.OperationFailed)
}

func TestPasswordsStayPrivate(t *testing.T) {
	for in, want := range map[string]string{
		"--backend=a=mongodb://u:secret@h:1/?x=y": "--backend=a=mongodb://u:<password>@h:1/?x=y",
		"mongodb+srv://u:p%40ss@h/":               "mongodb+srv://u:<password>@h/",
		"a=mongodb://h1:1,h2:2/":                  "a=mongodb://h1:1,h2:2/",
		"mongodb://u:s1@h/ mongodb://v:s2@i/":     "mongodb://u:<password>@h/ mongodb://v:<password>@i/",
		"--listen=:27017":                         "--listen=:27017",
	} {
		if got := withoutPassword(in); got != want {
			t.Errorf("withoutPassword(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestMonitoringReadsTheStatus: what mongostat and exporters take for granted.
func TestMonitoringReadsTheStatus(t *testing.T) {
	e, _ := scriptEnv(t)
	e.shard("c", "_id", 4)
	ask := func(name string) bson.Raw {
		t.Helper()
		raw, err := e.client.Database("admin").RunCommand(e.ctx, d(name, 1)).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	before := ask("serverStatus")
	if up, ok := before.Lookup("uptime").DoubleOK(); !ok || up != float64(int64(up)) {
		t.Errorf("uptime is %v, want a double without a fraction", before.Lookup("uptime"))
	}
	update := d("q", d("_id", 1), "u", d("$set", d("a", 1)))
	for _, cmd := range []bson.D{insertOf(7), d("update", "c", "updates", bson.A{update, update, update}), d("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1), d("q", d("_id", 2), "limit", 1)})} {
		if _, err := e.run(cmd); err != nil {
			t.Fatal(err)
		}
	}
	data := ask("getDiagnosticData")
	for name, want := range map[string]int64{"insert": 7, "update": 3, "delete": 2} {
		if got := data.Lookup("data", "serverStatus", "opcounters", name).AsInt64() - before.Lookup("opcounters", name).AsInt64(); got != want {
			t.Errorf("opcounters.%s grew by %d, want %d", name, got, want)
		}
	}
}
