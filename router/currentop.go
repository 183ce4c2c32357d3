package router

import (
	"context"
	"math"
	"net"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/router/merge"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "currentOp", Admin: true, Help: "lists what is being done, here and on the backends", Run: r.currentOp},
		{Name: "killOp", Admin: true, Writes: true, Help: "ends an operation by its opid", Run: r.killOp},
	}
})

const (
	// opsPerConn separates the numbers of one connection's requests from the next one's in an opid.
	opsPerConn = 1_000_000
	// truncateOps is how long a command may be to be shown whole when truncateOps is asked for, in bytes.
	truncateOps = 1000
	// backendOpsTimeout is how long a backend may take to list its operations.
	backendOpsTimeout = 5 * time.Second
)

// opsWanted is what a client wants to see.
type opsWanted struct {
	idle, truncate, backends bool
}

// operations lists the requests of this proxy's clients and its reshapes, and the backends' operations when wanted.
func (r *Router) operations(ctx context.Context, self *Request, want opsWanted) ([]bson.Raw, error) {
	var docs []bson.Raw
	add := func(d bson.D) {
		if raw, err := bson.Marshal(d); err == nil {
			docs = append(docs, raw)
		}
	}
	var conns []*Conn
	r.eachConn(func(c *Conn) { conns = append(conns, c) })
	sort.Slice(conns, func(i, j int) bool { return conns[i].id < conns[j].id })
	for _, c := range conns {
		if raw := c.describe(want, time.Now()); raw != nil {
			docs = append(docs, raw)
		}
	}
	if r.cfg.Reshaper != nil {
		for _, d := range r.cfg.Reshaper.Operations() {
			add(d)
		}
	}
	if !want.backends {
		return docs, nil
	}
	more, err := r.backendOperations(ctx, want)
	return append(docs, more...), err
}

// describe is the connection in currentOp's words; nil when it is idle and those are not wanted.
func (c *Conn) describe(want opsWanted, now time.Time) bson.Raw {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.op == nil && !want.idle {
		return nil
	}
	raw, err := bson.Marshal(c.descriptionLocked(want, now)) // with the lock: the request's bytes are its own only while it is shown
	if err != nil {
		return nil
	}
	return raw
}

func (c *Conn) descriptionLocked(want opsWanted, now time.Time) bson.D {
	d := bson.D{
		{Key: "type", Value: "op"},
		{Key: "host", Value: c.at()},
		{Key: "desc", Value: "conn" + strconv.FormatInt(c.id, 10)},
		{Key: "connectionId", Value: c.id},
		{Key: "client", Value: c.nc.RemoteAddr().String()},
	}
	if c.metadata != nil {
		if app := metadataText(c.metadata, "application", "name"); app != "" {
			d = append(d, bson.E{Key: "appName", Value: app})
		}
		d = append(d, bson.E{Key: "clientMetadata", Value: c.metadata})
	}
	d = append(d, bson.E{Key: "active", Value: c.op != nil}, bson.E{Key: "currentOpTime", Value: now.UTC().Format("2006-01-02T15:04:05.000-07:00")})
	if c.op == nil {
		return d
	}
	q, took := c.op, now.Sub(c.op.Started)
	d = append(d,
		bson.E{Key: "opid", Value: c.opid()},
		bson.E{Key: "secs_running", Value: int64(took.Seconds())},
		bson.E{Key: "microsecs_running", Value: took.Microseconds()},
		bson.E{Key: "op", Value: opType(q.Command.Name)},
		bson.E{Key: "ns", Value: opNS(q)},
	)
	if q.Session != nil {
		d = append(d, bson.E{Key: "lsid", Value: q.Session})
	}
	if want.truncate && len(q.Msg.Body) > truncateOps {
		return append(d, bson.E{Key: "command", Value: bson.D{{Key: "$truncated", Value: strings.ToValidUTF8(q.Msg.Body[:min(truncateOps, len(q.Msg.Body))].String(), "?")}}})
	}
	return append(d, bson.E{Key: "command", Value: q.Msg.Body})
}

// at is this proxy as the connection's client reached it: host and port.
func (c *Conn) at() string {
	if _, port, err := net.SplitHostPort(c.nc.LocalAddr().String()); err == nil {
		return net.JoinHostPort(hostname(), port)
	}
	return hostname()
}

// opid numbers the request that is running; mu must be held.
func (c *Conn) opid() int64 { return c.id*opsPerConn + c.number%opsPerConn }

// opType is what currentOp calls a command in "op".
func opType(command string) string {
	switch command {
	case "find":
		return "query"
	case "getMore":
		return "getmore"
	case "insert", "update":
		return command
	case "delete":
		return "remove"
	}
	return "command"
}

func opNS(q *Request) string {
	if name, ok := q.First.StringValueOK(); ok {
		return q.DB + "." + name
	}
	return q.DB + ".$cmd"
}

// backendOperations lists the operations of every backend's primary, as mongos does: opids and clients say where they are.
func (r *Router) backendOperations(ctx context.Context, want opsWanted) ([]bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, backendOpsTimeout)
	defer cancel()
	stage := bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: want.idle}, {Key: "truncateOps", Value: want.truncate}}
	cmd := bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: stage}}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: math.MaxInt32}}}}
	var docs []bson.Raw
	for _, b := range r.cfg.Backends.All() {
		reply, err := b.Run(ctx, "admin", cmd)
		if err != nil {
			return nil, err
		}
		arr, _ := bsoncore.Document(reply).Lookup("cursor", "firstBatch").ArrayOK()
		values, _ := arr.Values()
		for _, v := range values {
			op, ok := v.DocumentOK()
			if !ok {
				continue
			}
			ns, _ := op.Lookup("ns").StringValueOK()
			db, _ := op.Lookup("command", "$db").StringValueOK()
			if catalog.IsInternalDB(strings.SplitN(ns, ".", 2)[0]) || catalog.IsInternalDB(db) {
				continue
			}
			docs = append(docs, backendOp(b.ID(), op))
		}
	}
	return docs, nil
}

func backendOp(id string, op bsoncore.Document) bson.Raw {
	start, d := bsoncore.AppendDocumentStart(nil)
	d = bsoncore.AppendStringElement(d, "shard", id)
	elems, _ := op.Elements()
	for _, e := range elems {
		v := e.Value()
		switch e.Key() {
		case "shard":
		case "client":
			d = bsoncore.AppendValueElement(d, "client_s", v)
		case "opid":
			if n, ok := v.AsInt64OK(); ok {
				d = bsoncore.AppendStringElement(d, "opid", id+":"+strconv.FormatInt(n, 10))
			}
		default:
			d = append(d, e...)
		}
	}
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return hideNames(d)
}

// currentOp answers the old command: what the fields of the command beyond its options match.
func (r *Router) currentOp(ctx context.Context, q *Request) (Reply, error) {
	want := opsWanted{backends: true}
	filter := bson.A{}
	elems, err := bsoncore.Document(q.Msg.Body).Elements()
	if err != nil {
		return Reply{}, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	for _, e := range elems[1:] {
		switch key := e.Key(); key {
		case "$all":
			want.idle = isTrue(e.Value())
		case "$ownOps":
		case "$truncateOps":
			want.truncate = isTrue(e.Value())
		default:
			if !genericField(key) {
				filter = append(filter, bson.D{{Key: key, Value: bson.RawValue{Type: bson.Type(e.Value().Type), Value: e.Value().Data}}})
			}
		}
	}
	docs, err := r.operations(ctx, q, want)
	if err != nil {
		return Reply{}, err
	}
	if len(filter) == 0 {
		return docReply(bson.D{{Key: "inprog", Value: docs}})
	}
	match, err := bson.Marshal(bson.D{{Key: "$match", Value: bson.D{{Key: "$and", Value: filter}}}})
	if err != nil {
		return Reply{}, wire.Errorf(wire.BadValue, "the filter cannot be read: %v", err)
	}
	b, err := r.overDocuments(ctx, q, docs, []bson.Raw{match})
	if err != nil {
		return Reply{}, err
	}
	start, d := bsoncore.AppendDocumentStart(nil)
	at, d := bsoncore.AppendArrayElementStart(d, "inprog")
	d = append(d, b.docs...)
	d, _ = bsoncore.AppendArrayEnd(d, at)
	d = bsoncore.AppendDoubleElement(d, "ok", 1)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return Reply{Body: d}, nil
}

// genericField reports the fields that any command may have.
func genericField(key string) bool {
	switch key {
	case "lsid", "comment", "maxTimeMS", "readConcern", "apiVersion", "apiStrict", "apiDeprecationErrors", "help":
		return true
	}
	return strings.HasPrefix(key, "$") && key != "$and" && key != "$or" && key != "$nor" && key != "$expr"
}

// overDocuments runs stages over documents that are here, on the catalog's backend, and returns all that comes of it.
func (r *Router) overDocuments(ctx context.Context, q *Request, docs []bson.Raw, stages []bson.Raw) (*batch, error) {
	in, out := &batch{}, &batch{}
	for _, d := range docs {
		in.add(d)
	}
	if len(stages) == 0 {
		return in, nil
	}
	home := partition.Part{Home: partition.Home{Backend: r.cfg.CatalogBackend, DB: "admin", Physical: "$cmd.aggregate"}}
	src := newRest(q, newFanoutPlain(r, q, &home), merge.Plan{Rest: stages}, &home)
	src.ended = true
	defer src.close()
	if err := src.run(ctx, q, in, src.stages); err != nil {
		return nil, err
	}
	done, err := src.fill(ctx, q, out, 0)
	if err == nil && !done {
		err = wire.Errorf(wire.BSONObjectTooLarge, "the operations take more than %d bytes: ask for fewer", wire.MaxDocumentSize)
	}
	return out, err
}

// aggregateCurrentOp answers a pipeline that begins with $currentOp.
func (r *Router) aggregateCurrentOp(ctx context.Context, q *Request, ns string, a *aggArgs) (Reply, error) {
	if _, named := q.First.StringValueOK(); named || q.DB != "admin" {
		return Reply{}, wire.Errorf(wire.InvalidNamespace, "$currentOp must be run against the 'admin' database with {aggregate: 1}")
	}
	want := opsWanted{backends: true}
	spec, ok := bsoncore.Document(a.pipeline[0]).Lookup("$currentOp").DocumentOK()
	if !ok {
		return Reply{}, wire.Errorf(wire.FailedToParse, "$currentOp options must be specified in an object")
	}
	elems, _ := spec.Elements()
	for _, e := range elems {
		on, ok := e.Value().BooleanOK()
		if !ok {
			return Reply{}, wire.Errorf(wire.FailedToParse, "The '%s' parameter of the $currentOp stage must be a boolean value", e.Key())
		}
		switch e.Key() {
		case "idleConnections":
			want.idle = on
		case "localOps":
			want.backends = !on
		case "truncateOps":
			want.truncate = on
		case "allUsers", "idleSessions", "idleCursors", "backtrace", "targetAllNodes":
			// There are no users yet, and no idle sessions or cursors are listed.
		default:
			return Reply{}, wire.Errorf(wire.FailedToParse, "Unrecognized option '%s' in $currentOp stage", e.Key())
		}
	}
	docs, err := r.operations(ctx, q, want)
	if err != nil {
		return Reply{}, err
	}
	b, err := r.overDocuments(ctx, q, docs, a.pipeline[1:])
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: cursorReply("firstBatch", b, 0, q.DB+".$cmd.aggregate", false)}, nil
}

// killOp ends a request of this proxy (a number) or an operation of a backend ("id:number"). It is ok whether or not there is one.
func (r *Router) killOp(ctx context.Context, q *Request) (Reply, error) {
	op, err := bsoncore.Document(q.Msg.Body).LookupErr("op")
	if err != nil {
		return Reply{}, wire.Errorf(wire.FailedToParse, "Did not provide \"op\" field")
	}
	if s, ok := op.StringValueOK(); ok {
		return r.killBackendOp(ctx, s)
	}
	opid, ok := op.AsInt64OK()
	if !ok {
		return Reply{}, typeMismatch("op", op, "number")
	}
	killed := wire.Errorf(wire.Interrupted, "operation was interrupted")
	r.eachConn(func(c *Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.op != nil && c.op != q && c.opid() == opid {
			c.cancel(killed)
		}
	})
	return docReply(bson.D{{Key: "info", Value: "attempting to kill op"}})
}

func (r *Router) killBackendOp(ctx context.Context, op string) (Reply, error) {
	id, number, _ := strings.Cut(op, ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return Reply{}, wire.Errorf(28625, "The op argument to killOp must be of the format shardid:opid but found \"%s\"", op)
	}
	b := r.cfg.Backends.Get(id)
	if b == nil {
		return Reply{}, wire.Errorf(wire.ShardNotFound, "Shard '%s' not found", id)
	}
	if _, err := b.Run(ctx, "admin", bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: n}}); err != nil {
		return Reply{}, err
	}
	return docReply(bson.D{{Key: "shard", Value: id}, {Key: "shardid", Value: n}})
}
