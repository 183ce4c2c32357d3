package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// What hello and buildInfo announce: no more than the proxy and any backend from 7.0 on honour.
const (
	maxWireVersion = 21
	serverVersion  = "7.0.0"
	// sessionTimeoutMinutes is hello's logicalSessionTimeoutMinutes.
	sessionTimeoutMinutes = 30
)

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

func (r *Router) hello(_ context.Context, q *Request) (Reply, error) {
	return Reply{Body: r.helloBody(q.Msg.Body, q.Name, q.Conn)}, nil
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
	d = bsoncore.AppendDocumentElement(d, "topologyVersion", bsoncore.BuildDocument(nil,
		bsoncore.AppendObjectIDElement(nil, "processId", r.processID), bsoncore.AppendInt64Element(nil, "counter", 0)))
	if v, err := bsoncore.Document(cmd).LookupErr("helloOk"); err == nil && isTrue(v) {
		d = bsoncore.AppendBooleanElement(d, "helloOk", true)
	}
	d = bsoncore.AppendInt32Element(d, "maxBsonObjectSize", wire.MaxDocumentSize)
	d = bsoncore.AppendInt32Element(d, "maxMessageSizeBytes", wire.MaxMessageSize)
	d = bsoncore.AppendInt32Element(d, "maxWriteBatchSize", wire.MaxWriteBatchSize)
	d = bsoncore.AppendDateTimeElement(d, "localTime", time.Now().UnixMilli())
	d = bsoncore.AppendInt32Element(d, "logicalSessionTimeoutMinutes", sessionTimeoutMinutes)
	d = bsoncore.AppendInt32Element(d, "connectionId", int32(c.id))
	d = bsoncore.AppendInt32Element(d, "maxWireVersion", maxWireVersion)
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
func (r *Router) answerQuery(_ context.Context, c *Conn, query wire.Query) (body []byte, failed bool) {
	_, isCommand := query.DB()
	elems, err := bsoncore.Document(query.Body).Elements()
	name := ""
	if err == nil && len(elems) > 0 {
		name = elems[0].Key()
	}
	switch {
	case !isCommand:
		return wire.AppendErrorReply(nil, wire.Errorf(5739101, "OP_QUERY is no longer supported. The client driver may require an upgrade.")), true
	case name == "hello" || name == "isMaster" || name == "ismaster":
		return r.helloBody(query.Body, name, c), false
	}
	return wire.AppendErrorReply(nil, wire.Errorf(wire.UnsupportedOpQueryCommand,
		"Unsupported OP_QUERY command: %s. The client driver may require an upgrade.", name)), true
}
