package commands

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func command(t *testing.T, text string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		t.Fatal(err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A row takes a command only where name, place, stage, fields and concerns are all its own.
func TestRowTakesOnlyItsOwnCommand(t *testing.T) {
	row := Row{Name: "aggregate", On: OnBoard, Stage: "$match", Always: []string{"pipeline"}, May: []string{"lsid"}, Read: []string{majorityAfter}, Write: []string{ClientsOwn}}
	const ok = `{aggregate: "c", pipeline: [{$match: {}}], readConcern: {level: "majority", afterClusterTime: {$timestamp: {t: 1, i: 1}}}, $db: "shardway_member"}`
	for _, c := range []struct{ name, from, to, why string }{
		{"itself", "", "", ""},
		{"an optional field", "$db", "lsid: {}, $db", ""},
		{"a concern of the client's", "$db", "writeConcern: {w: 1, j: true}, $db", ""},
		{"another name", "aggregate", "find", "another command"},
		{"another place", "shardway_member", "shop", "another namespace"},
		{"another stage", "$match", "$group", "first stage is $group"},
		{"a field too many", "$db", "hint: 1, $db", "hint is not listed"},
		{"a field too few", "pipeline: [{$match: {}}], ", "", "first stage"},
		{"a weaker concern", "majority", "local", "readConcern is local"},
		{"no concern", "readConcern", "lsid", "readConcern is missing"},
	} {
		text := strings.ReplaceAll(ok, c.from, c.to)
		if c.from == "" {
			text = ok
		}
		quoted := quote(text)
		takes, why := row.Takes(command(t, quoted))
		if takes != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v, %q, want %q", c.name, takes, why, c.why)
		}
	}
	row.Write = nil
	if takes, why := row.Takes(command(t, quote(strings.Replace(ok, "$db", "writeConcern: {w: 1}, $db", 1)))); takes || !strings.Contains(why, "writeConcern is") {
		t.Errorf("a concern where the row has none: %v, %q", takes, why)
	}
	row.Always = append(row.Always, "cursor")
	if takes, why := row.Takes(command(t, quote(ok))); takes || !strings.Contains(why, "cursor is missing") {
		t.Errorf("a command without a field of every such command: %v, %q", takes, why)
	}
}

// quote puts the quotes around keys that extended JSON wants.
func quote(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if c := text[i]; c == '{' || c == ',' {
			b.WriteByte(c)
			j := i + 1
			for j < len(text) && text[j] == ' ' {
				j++
			}
			k := j
			for k < len(text) && (text[k] == '$' || text[k] >= 'a' && text[k] <= 'z' || text[k] >= 'A' && text[k] <= 'Z') {
				k++
			}
			if k < len(text) && text[k] == ':' {
				b.WriteString(`"` + text[j:k] + `"`)
				i = k - 1
			}
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// What is granted on all databases does not hold for local, config and system collections, as on a server.
func TestGrantsCoverWhatServersSay(t *testing.T) {
	all, cluster, any := Resource{}, Resource{Cluster: true}, Resource{Any: true}
	ns := func(db, coll string) Resource { return Resource{DB: db, Collection: coll} }
	for _, c := range []struct {
		have, want Resource
		covers     bool
	}{
		{all, all, true}, {all, ns("shop", ""), true}, {all, ns("shop", "c"), true}, {all, ns("admin", "c"), true},
		{all, ns("config", "transactions"), false}, {all, ns("local", "oplog.rs"), false}, {all, ns("local", ""), false}, {all, ns("shop", "system.views"), false}, {all, cluster, false},
		{cluster, cluster, true}, {cluster, all, false}, {cluster, ns("shop", "c"), false},
		{any, all, true}, {any, cluster, true}, {any, ns("local", "oplog.rs"), true},
		{ns("local", ""), ns("local", "oplog.rs"), true}, {ns("local", ""), ns("local", "system.replset"), false}, {ns("local", ""), ns("config", ""), false},
		{ns("shop", ""), all, false}, {ns("shop", "c"), ns("shop", ""), false}, {ns("shop", "c"), ns("shop", "c"), true},
		{ns("", "transactions"), ns("config", "transactions"), true}, {ns("", "transactions"), all, false}, {all, any, false},
	} {
		if got := c.have.covers(c.want); got != c.covers {
			t.Errorf("a grant on %s for %s: %v", c.have, c.want, got)
		}
	}
}

// The built-in roles of a server, as far as they matter here.
var (
	readActions      = []string{"changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections", "listIndexes", "planCacheRead"}
	readWriteActions = append(slices.Clone(readActions), "convertToCapped", "createCollection", "createIndex", "dropCollection", "dropIndex", "insert", "remove", "renameCollectionSameDB", "update")
	dbAdminActions   = []string{"bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped", "createCollection", "createIndex", "dbStats", "dropCollection", "dropDatabase",
		"dropIndex", "enableProfiler", "listCollections", "listIndexes", "planCacheIndexFilter", "planCacheRead", "planCacheWrite", "reIndex", "renameCollectionSameDB", "validate"}
	readWriteAny   = []Privilege{onAll(readWriteActions...), onCluster("listDatabases")}
	dbAdminAny     = []Privilege{onAll(dbAdminActions...), onCluster("listDatabases", "applyOps")}
	clusterMonitor = []Privilege{onCluster("getDefaultRWConcern", "getParameter", "listDatabases", "inprog", "replSetGetConfig", "serverStatus"), onAll("collStats", "dbStats", "indexStats"),
		onDB("config", readActions...), onDB("local", readActions...)}
	clusterManager = []Privilege{onCluster("appendOplogNote", "getDefaultRWConcern", "setDefaultRWConcern", "setClusterParameter", "getClusterParameter"), onDB("config", readActions...)}
	hostManager    = []Privilege{onCluster("killop", "fsync", "killAnySession")}
)

func lacked(list []Lack) []string {
	var all []string
	for _, l := range list {
		all = append(all, l.String())
	}
	slices.Sort(all)
	return all
}

// What the built-in roles lack is what people are told of them.
func TestBuiltInRolesAreJudgedByTheirPrivileges(t *testing.T) {
	set, catalog, alone := Backend{}, Backend{HasCatalog: true}, Backend{Standalone: true}
	const transactions, oplog = "find on config.transactions", "find on local.oplog.rs"
	monitor := slices.Concat(readWriteAny, dbAdminAny, clusterMonitor)
	for _, c := range []struct {
		name  string
		have  []Privilege
		where Backend
		fatal []string // of those, some
		none  bool     // nothing fatal
		spare []string // of the limits, some; nil: none is missing
	}{
		{"nobody", nil, catalog, []string{transactions, oplog, "find on the database shardway", "find on the database shardway_member", "changeStream on all databases"}, false, []string{"validate on all databases"}},
		{"readWriteAnyDatabase", readWriteAny, set, []string{transactions, oplog, "collMod on all databases", "bypassDocumentValidation on all databases"}, false, []string{"killop on the cluster"}},
		{"and dbAdminAnyDatabase", slices.Concat(readWriteAny, dbAdminAny), set, []string{transactions, oplog}, false, []string{"killop on the cluster"}},
		{"and clusterMonitor", monitor, catalog, nil, true, []string{"killop on the cluster", "setDefaultRWConcern on the cluster"}},
		{"and clusterManager, hostManager", slices.Concat(monitor, clusterManager, hostManager), catalog, nil, true, nil},
		{"the role of the page", Role(), catalog, nil, true, nil},
		{"anything", []Privilege{{Resource{Any: true}, slices.Concat(actions(Role())...)}}, catalog, nil, true, nil},
	} {
		fatal, limits := Missing(c.have, c.where)
		if (len(fatal) == 0) != c.none {
			t.Errorf("%s: missing are %v", c.name, lacked(fatal))
		}
		for _, want := range c.fatal {
			if !slices.Contains(lacked(fatal), want) {
				t.Errorf("%s: %s is not missed, but %v", c.name, want, lacked(fatal))
			}
		}
		if c.spare == nil && len(limits) > 0 {
			t.Errorf("%s: limits are %v", c.name, lacked(limits))
		}
		for _, want := range c.spare {
			if !slices.Contains(lacked(limits), want) {
				t.Errorf("%s: %s is no limit, but %v", c.name, want, lacked(limits))
			}
		}
	}
	fatal, _ := Missing(nil, alone)
	for _, not := range []string{transactions, oplog, "find on the database shardway", "changeStream on all databases"} {
		if slices.Contains(lacked(fatal), not) {
			t.Errorf("a standalone without the catalog is to have %s", not)
		}
	}
}

func actions(role []Privilege) [][]string {
	var all [][]string
	for _, p := range role {
		all = append(all, p.Actions)
	}
	return all
}

// Each privilege of the role is needed: without it something is missing.
func TestRoleHasNothingInVain(t *testing.T) {
	role := Role()
	for i, p := range role {
		for _, action := range p.Actions {
			less := slices.Clone(role)
			less[i].Actions = slices.DeleteFunc(slices.Clone(p.Actions), func(a string) bool { return a == action })
			if fatal, limits := Missing(less, Backend{HasCatalog: true}); len(fatal)+len(limits) == 0 {
				t.Errorf("nobody misses %s on %s", action, p.Resource)
			}
		}
	}
}

// A field that not every supported server takes says what is done on the others, where the product sends it by itself.
func TestNewerFieldsSayWhatOlderServersGet(t *testing.T) {
	for _, r := range Rows() {
		for field := range r.Newer {
			if !slices.Contains(r.Always, field) && !slices.Contains(r.May, field) {
				t.Errorf("%s: %s is no field of it", r.String(), field)
			}
		}
		if len(r.Newer) > 0 && r.Older == "" && r.By != Client {
			t.Errorf("%s: what do older servers get?", r.String())
		}
	}
}
