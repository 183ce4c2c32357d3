package commands

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// titles head the senders' sections of the page.
var titles = map[Sender]string{
	Driver:   "The MongoDB driver itself",
	Start:    "When a proxy starts, or a backend joins the fleet",
	Catalog:  "The catalog (on one backend, a replica set)",
	Board:    "Instances, closings, answers, markers and floors (on every backend)",
	Splitter: "Splits, moves, merges and other changes of maps",
	Router:   "Commands of the router's own, because of a client's",
	Client:   "Clients' commands that are passed on",
}

const intro = `<!-- Made by go test ./backend/commands -rewrite from package backend/commands. Do not edit. -->
# What is sent to backends

Every command that Shardway sends to a backend, with its fields and concerns. A test of package ` + "`integration`" + ` compares this list with what real
proxies send: what is not listed fails it, and so does a row that nobody sends any more.

*Fields*: those that a command always has, then in parentheses those that it may have. **Concern**: the level of the read concern (r) or the write concern (w).
**Since**: the versions that take a field which not all supported ones take; nothing means all of them, from 6.0 on. **Set**: sent to replica sets only, not to
standalones. **Privilege**: what the backend's user needs where there is access control.

Supported are MongoDB %s. A backend whose servers are older is refused; a newer one, or a release between, is used with a warning in the log.
`

const roleText = `## The user on a backend

Where a backend has access control, its connection string names a user who has this role. The script is for ` + "`mongosh`" + `, once on the primary of each backend. On a backend
that does not hold the catalog the privileges on ` + "`shardway`" + ` are not used. The built-in roles ` + "`readWriteAnyDatabase`, `dbAdminAnyDatabase` and `clusterMonitor`" + ` together
have everything but what clients' administrative commands need; ` + "`root`" + ` has all of it.

A proxy asks each backend at its start (` + "`connectionStatus`" + ` with ` + "`showPrivileges`" + `) and does not start where one lacks a privilege without which the fleet would not be
safe or whole; ` + "`serve --check`" + ` says the same without starting. `

// Page is docs/backends.md.
func Page(supported []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, intro, strings.Join(supported, ", "))
	rows := Rows()
	for _, s := range senders {
		fmt.Fprintf(&b, "\n## %s\n\n| command | on | fields | since | concern | set | privilege | why |\n|---|---|---|---|---|---|---|---|\n", titles[s])
		for i := range rows {
			if rows[i].By == s {
				b.WriteString(rows[i].line())
			}
		}
	}
	b.WriteString("\n" + roleText)
	b.WriteString("What is only felt by some commands is a warning:\n\n| privilege | without it |\n|---|---|\n")
	for _, l := range spare() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.Privilege, each(l.Rows, func(r Row) string { return "`" + r.Name + "`: " + r.Without }))
	}
	b.WriteString("\n```js\n" + Script() + "```\n")
	return b.String()
}

// line is a row of a table of the page.
func (r *Row) line() string {
	name := "`" + r.Name + "`"
	if r.Stage != "" {
		name += " of `" + r.Stage + "`"
	}
	set := ""
	if r.SetOnly {
		set = "set"
	}
	var needs []string
	for _, n := range r.Needs {
		needs = append(needs, n.String())
	}
	why := r.Why
	if r.Older != "" {
		why += ". Older servers: " + r.Older
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", name, r.On, r.fields(), r.newer(), r.concerns(), set, strings.Join(needs, "; "), why)
}

func (r *Row) fields() string {
	s := strings.Join(r.Always, ", ")
	if len(r.May) > 0 {
		may := slices.DeleteFunc(slices.Clone(r.May), func(f string) bool { return slices.Contains(r.Always, f) })
		slices.Sort(may)
		s += " (" + strings.Join(slices.Compact(may), ", ") + ")"
	}
	return strings.TrimSpace(s)
}

func (r *Row) newer() string {
	var all []string
	for _, field := range slices.Sorted(maps.Keys(r.Newer)) {
		all = append(all, field+": "+r.Newer[field])
	}
	return strings.Join(all, "; ")
}

func (r *Row) concerns() string {
	var all []string
	if len(r.Read) > 0 {
		all = append(all, "r: "+strings.Join(r.Read, ", "))
	}
	if len(r.Write) > 0 {
		all = append(all, "w: "+strings.Join(r.Write, ", "))
	}
	return strings.Join(all, "; ")
}

// each joins what f says of rows, each word once.
func each(rows []Row, f func(Row) string) string {
	var all []string
	for _, r := range rows {
		if word := f(r); !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return strings.Join(all, "; ")
}

// spare are the privileges that the product can do without.
func spare() []Lack {
	_, limits := Missing(nil, Backend{HasCatalog: true})
	return limits
}

// actionsPerLine are how many actions a line of the script has.
const actionsPerLine = 6

// Script makes the role, and a user who has it, in mongosh.
func Script() string {
	var b strings.Builder
	b.WriteString("db = db.getSiblingDB(\"admin\")\ndb.createRole({\n  role: \"shardway\",\n  privileges: [\n")
	for _, p := range Role() {
		fmt.Fprintf(&b, "    {resource: %s, actions: [", p.Resource.script())
		for i, a := range p.Actions {
			if i > 0 {
				b.WriteByte(',')
			}
			if len(p.Actions) > actionsPerLine && i%actionsPerLine == 0 {
				b.WriteString("\n     ")
			} else if i == 0 {
				fmt.Fprintf(&b, "%q", a)
				continue
			}
			fmt.Fprintf(&b, " %q", a)
		}
		b.WriteString("]},\n")
	}
	b.WriteString("  ],\n  roles: []\n})\ndb.createUser({user: \"shardway\", pwd: passwordPrompt(), roles: [\"shardway\"]})\n")
	return b.String()
}

func (r Resource) script() string {
	if r.Cluster {
		return "{cluster: true}"
	}
	return fmt.Sprintf("{db: %q, collection: %q}", r.DB, r.Collection)
}
