package commands

import (
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Sender is the part of the product that sends a command.
type Sender string

// The senders, in the order of the page.
const (
	// Driver is the MongoDB driver itself: discovery, authentication, its sessions.
	Driver Sender = "driver"
	// Start looks at a backend when a proxy starts or a backend joins the fleet.
	Start Sender = "start"
	// Catalog keeps maps, backends, databases and settings.
	Catalog Sender = "catalog"
	// Board keeps instances, closings, answers, markers and floors.
	Board Sender = "board"
	// Splitter runs splits, moves, merges, drops, renames and movePrimary.
	Splitter Sender = "splitter"
	// Router sends a command of its own because of a client's.
	Router Sender = "router"
	// Client sends a command that is passed on, with the physical collection's name in place of the client's.
	Client Sender = "client"
)

var senders = []Sender{Driver, Start, Catalog, Board, Splitter, Router, Client}

// Place is a class of namespaces.
type Place string

// The places.
const (
	Everywhere   Place = "any database"
	OnAdmin      Place = "admin"
	OnCatalog    Place = "shardway.*"
	OnBoard      Place = "shardway_member.*"
	OnTxns       Place = "config.transactions"
	OnOplog      Place = "local.oplog.rs"
	OnSystemDBs  Place = "admin, config, local"
	OnClientData Place = "clients' databases"
)

// Row is one command as one sender sends it.
type Row struct {
	Name string
	By   Sender
	On   Place
	// Stage is the first stage of an aggregate; empty is any.
	Stage string
	// Always are the fields that the command always has, May those that it may have. Neither names the command itself,
	// $db, readConcern and writeConcern.
	Always, May []string
	// Read and Write are the concerns that it has one of, as concern writes them; empty: none is sent. ClientsOwn is any, or
	// none.
	Read, Write []string
	// Newer are the fields that not every supported version takes, each with those that do; Older says what is done on the
	// others. A client's own fields are the client's concern.
	Newer map[string]string
	Older string
	// SetOnly says that it is sent to replica sets only.
	SetOnly bool
	// Needs are the privileges it takes.
	Needs []Privilege
	// Without says what happens where a privilege is missing; empty: the product does not use the backend.
	Without string
	// Why says what it is for.
	Why string
	// Unseen says why the recording test cannot see it; empty: it must be seen there.
	Unseen string
}

// ClientsOwn stands for whatever concern the client gave.
const ClientsOwn = "client's"

// Rows are all rows. The slice is the caller's.
func Rows() []Row {
	return slices.Concat(driverRows, startRows, catalogRows, boardRows, splitterRows, routerRows, clientRows)
}

// String names a row in few words.
func (r *Row) String() string {
	s := string(r.By) + ": " + r.Name + " on " + string(r.On)
	if r.Stage != "" {
		s += " (" + r.Stage + ")"
	}
	if len(r.Always) > 0 {
		s += " with " + strings.Join(r.Always, ", ")
	}
	return s
}

// Takes reports whether a command, with its sequences written into it as arrays, is one that the row describes; where it is not,
// why says what differs.
func (r *Row) Takes(command bson.Raw) (ok bool, why string) {
	elements, err := command.Elements()
	if err != nil || len(elements) == 0 {
		return false, "it is no document"
	}
	if elements[0].Key() != r.Name {
		return false, "it is another command"
	}
	if !r.On.has(command) {
		return false, "it is on another namespace"
	}
	if r.Stage != "" && r.Stage != firstStage(command) {
		return false, "its first stage is " + firstStage(command)
	}
	var have []string
	read, write := "", ""
	for _, e := range elements[1:] {
		switch key := e.Key(); key {
		case "$db":
		case "readConcern":
			read = concern(e.Value())
		case "writeConcern":
			write = concern(e.Value())
		default:
			if !slices.Contains(r.Always, key) && !slices.Contains(r.May, key) {
				return false, "the field " + key + " is not listed"
			}
			have = append(have, key)
		}
	}
	if !allows(r.Read, read) {
		return false, "its readConcern is " + cmp.Or(read, "missing")
	}
	if !allows(r.Write, write) {
		return false, "its writeConcern is " + cmp.Or(write, "missing")
	}
	for _, key := range r.Always {
		if !slices.Contains(have, key) {
			return false, "the field " + key + " is missing"
		}
	}
	return true, ""
}

// Find returns the first of rows that takes a command. Where none does, why says for each row of the command's name and
// namespace what differs.
func Find(rows []Row, command bson.Raw) (row *Row, why []string) {
	for i := range rows {
		ok, differs := rows[i].Takes(command)
		if ok {
			return &rows[i], nil
		}
		if elements, err := command.Elements(); err == nil && len(elements) > 0 && rows[i].Name == elements[0].Key() && rows[i].On.has(command) {
			why = append(why, rows[i].String()+": "+differs)
		}
	}
	return nil, why
}

func allows(list []string, concern string) bool {
	if len(list) == 0 {
		return concern == ""
	}
	return slices.Contains(list, concern) || slices.Contains(list, ClientsOwn)
}

// concern writes a read or write concern in few words: its level or w, and which other fields it has.
func concern(v bson.RawValue) string {
	doc, ok := v.DocumentOK()
	if !ok {
		return "no document"
	}
	elements, _ := doc.Elements()
	var words []string
	for _, e := range elements {
		switch e.Key() {
		case "level", "w":
			if s, ok := e.Value().StringValueOK(); ok {
				words = append(words, s)
			} else {
				words = append(words, e.String())
			}
		default:
			words = append(words, e.Key())
		}
	}
	return strings.Join(words, " + ")
}

// Shape writes a command without its values: its name and database, its fields, its concerns.
func Shape(command bson.Raw) string {
	elements, err := command.Elements()
	if err != nil || len(elements) == 0 {
		return "no document"
	}
	db, _ := command.Lookup("$db").StringValueOK()
	shape := elements[0].Key() + " on " + db
	if stage := firstStage(command); stage != "" {
		shape += " (" + stage + ")"
	}
	var fields []string
	for _, e := range elements[1:] {
		switch key := e.Key(); key {
		case "$db":
		case "readConcern", "writeConcern":
			fields = append(fields, key+" "+concern(e.Value()))
		default:
			fields = append(fields, key)
		}
	}
	return shape + " with " + strings.Join(fields, ", ")
}

// firstStage is the name of an aggregate's first stage.
func firstStage(command bson.Raw) string {
	list, ok := command.Lookup("pipeline").ArrayOK()
	if !ok {
		return ""
	}
	values, err := list.Values()
	if err != nil || len(values) == 0 {
		return ""
	}
	stage, ok := values[0].DocumentOK()
	if !ok {
		return ""
	}
	elements, err := stage.Elements()
	if err != nil || len(elements) == 0 {
		return ""
	}
	return elements[0].Key()
}

// has reports whether a command is on one of the place's namespaces.
func (p Place) has(command bson.Raw) bool {
	db, _ := command.Lookup("$db").StringValueOK()
	elements, err := command.Elements()
	if err != nil || len(elements) == 0 {
		return false
	}
	coll, _ := elements[0].Value().StringValueOK()
	switch p {
	case Everywhere:
		return true
	case OnAdmin:
		return db == "admin"
	case OnCatalog:
		return db == catalogDB
	case OnBoard:
		return db == memberDB
	case OnTxns:
		return db == "config" && coll == "transactions"
	case OnOplog:
		return db == "local" && coll == "oplog.rs"
	case OnSystemDBs:
		return db == "admin" || db == "config" || db == "local"
	case OnClientData: // admin too: a client's collections there are the catalog backend's
		return db != catalogDB && db != memberDB && db != "config" && db != "local"
	}
	return false
}

// The databases of ours on backends.
const (
	catalogDB = "shardway"
	memberDB  = "shardway_member"
)
