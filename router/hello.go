package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// sessionTimeoutMinutes is hello's logicalSessionTimeoutMinutes.
const sessionTimeoutMinutes = 30

var _ = register(handshakeCommands)

func handshakeCommands(r *Router) []Command {
	return []Command{
		{Name: "hello", NoAuth: true, API1: true, Help: "tells what this server is", Run: r.hello},
		{Name: "isMaster", Aliases: []string{"ismaster"}, NoAuth: true, Help: "older name of hello", Run: r.hello},
		{Name: "ping", NoAuth: true, API1: true, Help: "answers", Run: okReply},
	}
}

var okBody = bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(nil, "ok", 1)))

func okReply(context.Context, *Request) (Reply, error) { return Reply{Body: okBody}, nil }

// hello answers hello and its older names; it may wait, as far as the client allows, for something to tell.
func (r *Router) hello(ctx context.Context, q *Request) (Reply, error) {
	q.waits = true
	await, err := parseAwait(q.Msg.Body)
	if err != nil {
		return Reply{}, err
	}
	exhaust := q.Msg.Flags&wire.ExhaustAllowed != 0
	if exhaust && !await.given {
		return Reply{}, wire.Errorf(51763, "An exhaust '%s' requires maxAwaitTimeMS", q.Name)
	}
	if err := q.Conn.greet(q.Msg.Body); err != nil {
		return Reply{}, err
	}
	if err := r.checkCounter(await); err != nil {
		return Reply{}, err
	}
	if r.knows(await) {
		if err := r.awaitChange(ctx, await.most); err != nil {
			return Reply{}, err
		}
	}
	q.streams = exhaust
	return r.helloReply(q)
}

// stream goes on answering an exhaust hello: each reply but the last says that more come, and answers the one before it.
func (c *Conn) stream(ctx context.Context, q *Request, responseTo int32, flags wire.Flags, how wire.Compressor, reply Reply) error {
	await, err := parseAwait(q.Msg.Body)
	if err != nil {
		return err // hello has parsed it: cannot happen
	}
	for {
		if err := c.writeReply(responseTo, flags|wire.MoreToCome, how, reply, nil); err != nil {
			return err
		}
		responseTo = c.nextID
		if err := c.r.awaitChange(ctx, await.most); err != nil {
			return err
		}
		if reply, err = c.r.helloReply(q); err != nil {
			return c.writeReply(responseTo, flags, how, Reply{}, err)
		}
	}
}

func (r *Router) helloReply(q *Request) (Reply, error) {
	if err := r.draining(); err != nil {
		return Reply{}, err
	}
	return Reply{Body: r.helloBody(q.Msg.Body, q.Name, q.Conn)}, nil
}

// awaitChange waits for a change of the topology, of which this proxy's end is the only one, at most for d.
func (r *Router) awaitChange(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.drain:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// draining returns the error by which hello says that this proxy is going away, nil if it is not.
func (r *Router) draining() error {
	select {
	case <-r.drain:
	default:
		return nil
	}
	left := max(0, time.Until(r.drainEnds).Milliseconds())
	extra := bsoncore.BuildDocument(nil, append(r.appendTopologyVersion(nil),
		bsoncore.AppendInt64Element(nil, "remainingQuiesceTimeMillis", left)...))
	return &wire.Error{Code: wire.ShutdownInProgress, Message: "the server is in quiesce mode and will shut down", Extra: bson.Raw(extra)}
}

// topologyCounter is hello's topologyVersion.counter.
func (r *Router) topologyCounter() int64 {
	select {
	case <-r.drain:
		return 1
	default:
		return 0
	}
}

func (r *Router) appendTopologyVersion(d []byte) []byte {
	return bsoncore.AppendDocumentElement(d, "topologyVersion", bsoncore.BuildDocument(nil,
		bsoncore.AppendInt64Element(bsoncore.AppendObjectIDElement(nil, "processId", r.processID), "counter", r.topologyCounter())))
}

// helloBody builds hello's answer in the order in which mongos gives it (mongos-behaviour §2.1).
func (r *Router) helloBody(cmd bson.Raw, name string, c *Conn) bson.Raw {
	start, d := bsoncore.AppendDocumentStart(nil)
	if name == "hello" {
		d = bsoncore.AppendBooleanElement(d, "isWritablePrimary", true)
	} else {
		d = bsoncore.AppendBooleanElement(d, "ismaster", true)
	}
	d = bsoncore.AppendStringElement(d, "msg", "isdbgrid")
	d = r.appendTopologyVersion(d)
	if c.loadBalanced {
		d = bsoncore.AppendObjectIDElement(d, "serviceId", r.processID)
	}
	if v, err := bsoncore.Document(cmd).LookupErr("helloOk"); err == nil && isTrue(v) {
		d = bsoncore.AppendBooleanElement(d, "helloOk", true)
	}
	d = bsoncore.AppendInt32Element(d, "maxBsonObjectSize", wire.MaxDocumentSize)
	d = bsoncore.AppendInt32Element(d, "maxMessageSizeBytes", wire.MaxMessageSize)
	d = bsoncore.AppendInt32Element(d, "maxWriteBatchSize", wire.MaxWriteBatchSize)
	d = bsoncore.AppendDateTimeElement(d, "localTime", time.Now().UnixMilli())
	d = bsoncore.AppendInt32Element(d, "logicalSessionTimeoutMinutes", sessionTimeoutMinutes)
	d = bsoncore.AppendInt32Element(d, "connectionId", int32(c.id))
	d = bsoncore.AppendInt32Element(d, "maxWireVersion", r.wireVersion())
	d = bsoncore.AppendInt32Element(d, "minWireVersion", 0)
	d = appendCompression(d, cmd)
	d = bsoncore.AppendDoubleElement(d, "ok", 1)
	d, _ = bsoncore.AppendDocumentEnd(d, start)
	return d
}

func appendCompression(d []byte, cmd bson.Raw) []byte {
	arr, ok := bsoncore.Document(cmd).Lookup("compression").ArrayOK()
	if !ok {
		return d
	}
	values, _ := arr.Values()
	var names []string
	for _, v := range values {
		if s, ok := v.StringValueOK(); ok {
			names = append(names, s)
		}
	}
	names = wire.NegotiateCompressors(names)
	if len(names) == 0 {
		return d
	}
	ab := bsoncore.NewArrayBuilder()
	for _, n := range names {
		ab.AppendString(n)
	}
	return bsoncore.AppendArrayElement(d, "compression", ab.Build())
}

// answerQuery answers a command that came as OP_QUERY; failed marks the document as an error to old clients.
func (r *Router) answerQuery(ctx context.Context, c *Conn, query wire.Query) (body []byte, failed bool) {
	db, isCommand := query.DB()
	if !isCommand {
		return wire.AppendErrorReply(nil, wire.Errorf(5739101, "OP_QUERY is no longer supported. The client driver may require an upgrade.")), true
	}
	q := &Request{Conn: c, Msg: &wire.Msg{Body: query.Body}, DB: db, Started: time.Now()}
	reply, err := r.runQuery(ctx, q)
	if err != nil {
		return wire.AppendErrorReply(nil, err), true
	}
	return reply.Body, false
}

// runQuery runs a command that came as OP_QUERY, if it is one of the few that still may.
func (r *Router) runQuery(ctx context.Context, q *Request) (Reply, error) {
	elems, err := bsoncore.Document(q.Msg.Body).Elements()
	if err != nil || len(elems) == 0 {
		return Reply{}, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	q.Name, q.First = elems[0].Key(), elems[0].Value()
	switch q.Name {
	case "hello", "isMaster", "ismaster", "buildInfo", "buildinfo", "saslStart", "saslContinue", "authenticate", "_isSelf":
		return r.run(ctx, q)
	}
	return Reply{}, wire.Errorf(wire.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: %s. The client driver may require an upgrade.", q.Name)
}
