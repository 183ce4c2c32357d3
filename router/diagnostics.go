package router

import (
	"context"
	"os"
	"runtime"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "buildInfo", Aliases: []string{"buildinfo"}, NoAuth: true, API1: true, Help: "tells the version", Run: r.buildInfo},
		{Name: "_isSelf", NoAuth: true, Help: "tells this process's id, by which old tools know that they talk to themselves", Run: r.isSelf},
		{Name: "fsync", Admin: true, Help: "has every backend write its data to disk", Run: r.fsync},
		{Name: "isdbgrid", NoAuth: true, Help: "tells that this is a router", Run: r.isdbgrid},
		{Name: "whatsmyuri", NoAuth: true, Help: "tells the client its address", Run: r.whatsmyuri},
		{Name: "connectionStatus", NoAuth: true, API1: true, Help: "tells who is authenticated on the connection", Run: r.connectionStatus},
		{Name: "listCommands", NoAuth: true, Help: "lists the commands", Run: r.listCommands},
		{Name: "features", Help: "lists what this server has", Run: r.features},
		{Name: "replSetGetStatus", NoAuth: true, Admin: true, Help: "tells that this is no replica set", Run: r.replSetGetStatus},
		{Name: "logout", NoAuth: true, Help: "ends the authentication of the connection", Run: okReply},
	}
})

// hostname is the machine's name, asked for once.
var hostname = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
})

func (r *Router) buildInfo(context.Context, *Request) (Reply, error) {
	version := r.version()
	return docReply(bson.D{
		{Key: "version", Value: version},
		{Key: "gitVersion", Value: buildRevision()},
		{Key: "modules", Value: bson.A{}},
		{Key: "allocator", Value: "go"},
		{Key: "javascriptEngine", Value: "none"},
		{Key: "sysInfo", Value: "deprecated"},
		{Key: "versionArray", Value: versionArray(version)},
		{Key: "openssl", Value: bson.D{{Key: "running", Value: "none: crypto/tls of " + runtime.Version()}}},
		{Key: "buildEnvironment", Value: bson.D{
			{Key: "distmod", Value: ""}, {Key: "distarch", Value: arch()}, {Key: "cc", Value: runtime.Version()},
			{Key: "target_arch", Value: arch()}, {Key: "target_os", Value: osType()},
		}},
		{Key: "bits", Value: int32(64)},
		{Key: "debug", Value: false},
		{Key: "maxBsonObjectSize", Value: int32(wire.MaxDocumentSize)},
		{Key: "shardway", Value: bson.D{{Key: "version", Value: buildVersion()}}},
	})
}

// arch and osType name the machine as MongoDB's builds do.
func arch() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

func osType() string {
	switch runtime.GOOS {
	case "darwin":
		return "macOS"
	case "windows":
		return "windows"
	}
	return runtime.GOOS
}

func (r *Router) isdbgrid(context.Context, *Request) (Reply, error) {
	return docReply(bson.D{{Key: "isdbgrid", Value: 1.0}, {Key: "hostname", Value: hostname()}})
}

func (r *Router) isSelf(context.Context, *Request) (Reply, error) {
	return docReply(bson.D{{Key: "id", Value: r.processID}})
}

// fsync asks every backend, as mongos does. A lock would stop reshapes and this proxy's own records half-way: it is for the backends themselves.
func (r *Router) fsync(ctx context.Context, q *Request) (Reply, error) {
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("lock"); err == nil && isTrue(v) {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "fsync with lock is not supported through this proxy: run it on the backends themselves")
	}
	var files int64
	all := bson.D{}
	for _, b := range r.cfg.Backends.All() {
		reply, _, err := r.askHost(ctx, target{Backend: b.ID()}, "admin", bson.D{{Key: "fsync", Value: 1}})
		if err != nil {
			return Reply{}, err
		}
		files += number(bsoncore.Document(reply), "numFiles")
		all = append(all, bson.E{Key: b.ID(), Value: relay(reply)})
	}
	return docReply(bson.D{{Key: "numFiles", Value: files}, {Key: "all", Value: all}})
}

func (r *Router) whatsmyuri(_ context.Context, q *Request) (Reply, error) {
	return docReply(bson.D{{Key: "you", Value: q.Conn.nc.RemoteAddr().String()}})
}

func (r *Router) connectionStatus(_ context.Context, q *Request) (Reply, error) {
	info := bson.D{{Key: "authenticatedUsers", Value: bson.A{}}, {Key: "authenticatedUserRoles", Value: bson.A{}}}
	if v, err := bsoncore.Document(q.Msg.Body).LookupErr("showPrivileges"); err == nil && isTrue(v) {
		info = append(info, bson.E{Key: "authenticatedUserPrivileges", Value: bson.A{}})
	}
	return docReply(bson.D{{Key: "authInfo", Value: info}})
}

func (r *Router) listCommands(context.Context, *Request) (Reply, error) {
	var commands bson.D
	for _, name := range sortedKeys(r.commands) {
		c := r.commands[name]
		if name != c.Name {
			continue // an alias
		}
		api := bson.A{}
		if c.API1 {
			api = bson.A{"1"}
		}
		aliases := bson.A{}
		for _, a := range c.Aliases {
			aliases = append(aliases, a)
		}
		commands = append(commands, bson.E{Key: name, Value: bson.D{
			{Key: "help", Value: c.Help}, {Key: "aliases", Value: aliases}, {Key: "requiresAuth", Value: !c.NoAuth},
			{Key: "secondaryOk", Value: !c.Writes}, {Key: "adminOnly", Value: c.Admin},
			{Key: "apiVersions", Value: api}, {Key: "deprecatedApiVersions", Value: bson.A{}},
		}})
	}
	return docReply(bson.D{{Key: "commands", Value: commands}})
}

func (r *Router) features(context.Context, *Request) (Reply, error) {
	return docReply(bson.D{{Key: "js", Value: false}, {Key: "oidReset", Value: false}})
}

// replSetGetStatus answers as mongos does: not ok, and without a code, by which tools see what they talk to.
func (r *Router) replSetGetStatus(context.Context, *Request) (Reply, error) {
	raw, err := bson.Marshal(bson.D{{Key: "info", Value: "mongos"}, {Key: "ok", Value: 0.0},
		{Key: "errmsg", Value: "replSetGetStatus is not supported through mongos"}})
	return Reply{Body: raw}, err
}
