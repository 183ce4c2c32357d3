// Command stub is a server that answers from bytes made beforehand, so that a benchmark measures what stands in front of it. It says that it is
// the primary of a replica set, answers finds with one document (or, without a limit, with a cursor over many) and says yes to everything else.
//
// As a mongod does, it handles a connection's requests one after the other; -write-delay is what each write waits, as for a majority of a spread
// replica set, and a request whose comment is a number waits so many milliseconds. What it has read at once it answers at once.
package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

func main() {
	size := flag.Int("size", 900, "bytes of the document that finds return")
	delay := flag.Duration("write-delay", 0, "how long each write waits")
	batch := flag.Bool("batch", true, "write the replies to all requests that were read at once together")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	s := newStub(*size, l.Addr().String())
	s.delay, s.batch = *delay, *batch
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go s.serve(c)
	}
}

// A scan is scanBatches batches of batchDocs documents after a first one of firstDocs.
const (
	firstDocs   = 101
	batchDocs   = 1000
	scanBatches = 20
)

type stub struct {
	delay time.Duration
	batch bool

	hello, found, first, next, empty, stream, waiting, written, databases []byte
}

func newStub(size int, addr string) *stub {
	doc := must(bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "s", Value: 1}, {Key: "pad", Value: string(bytes.Repeat([]byte{'x'}, size))}})
	time := bson.E{Key: "operationTime", Value: bson.Timestamp{T: 1, I: 1}}
	cursor := func(name string, id int64, docs int) []byte {
		batch := make(bson.A, docs)
		for i := range batch {
			batch[i] = bson.Raw(doc)
		}
		return must(bson.D{{Key: "cursor", Value: bson.D{{Key: name, Value: batch}, {Key: "id", Value: id}, {Key: "ns", Value: "bench.c"}}}, {Key: "ok", Value: 1.0}, time})
	}
	return &stub{
		hello: must(bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "ismaster", Value: true}, {Key: "setName", Value: "stub"}, {Key: "setVersion", Value: 1},
			{Key: "hosts", Value: bson.A{addr}}, {Key: "primary", Value: addr}, {Key: "me", Value: addr}, {Key: "electionId", Value: bson.ObjectID{1}},
			{Key: "logicalSessionTimeoutMinutes", Value: 30},
			{Key: "maxBsonObjectSize", Value: wire.MaxDocumentSize}, {Key: "maxMessageSizeBytes", Value: wire.MaxMessageSize},
			{Key: "maxWriteBatchSize", Value: wire.MaxWriteBatchSize}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21},
			{Key: "readOnly", Value: false}, {Key: "ok", Value: 1.0}, time}),
		found:     cursor("firstBatch", 0, 1),
		first:     cursor("firstBatch", scanBatches, firstDocs),
		next:      cursor("nextBatch", 1, batchDocs),
		empty:     cursor("firstBatch", 0, 0),
		stream:    cursor("firstBatch", 1<<40, 0),
		waiting:   cursor("nextBatch", 1<<40, 0),
		written:   must(bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}, time}),
		databases: must(bson.D{{Key: "databases", Value: bson.A{}}, {Key: "totalSize", Value: int64(0)}, {Key: "ok", Value: 1.0}}),
	}
}

func must(d bson.D) []byte {
	b, err := bson.Marshal(d)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// serve answers one connection. It reads what is there, answers every whole message of it and then writes.
func (s *stub) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := make([]byte, 0, 64<<10)
	var out []byte
	for {
		if len(in) == cap(in) {
			in = append(make([]byte, 0, 2*cap(in)), in...)
		}
		n, err := c.Read(in[len(in):cap(in)])
		if err != nil {
			return
		}
		in = in[:len(in)+n]
		rest := in
		for len(rest) >= wire.HeaderLen {
			size := int(binary.LittleEndian.Uint32(rest))
			if len(rest) < size {
				break
			}
			if wait := s.wait(rest[:size]); wait > 0 {
				if len(out) > 0 { // no reply waits for what comes after it
					if _, err := c.Write(out); err != nil {
						return
					}
					out = out[:0]
				}
				time.Sleep(wait)
			}
			out = s.answer(out, rest[:size])
			rest = rest[size:]
			if len(out) > 0 && (!s.batch || len(out) > 1<<20) {
				if _, err := c.Write(out); err != nil {
					return
				}
				out = out[:0]
			}
		}
		in = in[:copy(in, rest)]
		if len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
	}
}

// wait is how long a message waits before it is answered.
func (s *stub) wait(msg []byte) time.Duration {
	if wire.OpCode(binary.LittleEndian.Uint32(msg[12:])) == wire.OpQuery {
		return 0
	}
	body := bsoncore.Document(msg[wire.HeaderLen+5:])
	body = body[:binary.LittleEndian.Uint32(body)]
	e, _, ok := bsoncore.ReadElement(body[4:])
	if !ok {
		return 0
	}
	switch e.Key() {
	case "find":
		if ms, ok := body.Lookup("comment").AsInt64OK(); ok {
			return time.Duration(ms) * time.Millisecond
		}
	case "getMore": // a change stream, on which nothing ever happens
		if e.Value().Int64() > scanBatches {
			return 100 * time.Millisecond
		}
	case "insert", "update", "delete", "findAndModify":
		if s.delay > 0 {
			if db, _ := body.Lookup("$db").StringValueOK(); db == "bench" {
				return s.delay
			}
		}
	}
	return 0
}

// answer appends the reply to one message.
func (s *stub) answer(out, msg []byte) []byte {
	id := int32(binary.LittleEndian.Uint32(msg[4:]))
	if wire.OpCode(binary.LittleEndian.Uint32(msg[12:])) == wire.OpQuery {
		return wire.AppendReply(out, 1, id, false, s.hello)
	}
	body := bsoncore.Document(msg[wire.HeaderLen+5:])
	body = body[:binary.LittleEndian.Uint32(body)]
	e, _, ok := bsoncore.ReadElement(body[4:])
	if !ok {
		return out
	}
	start := len(out)
	out = wire.AppendMsg(out, 1, id, 0, s.reply(string(e.KeyBytes()), body))
	if string(e.KeyBytes()) == "getMore" && e.Value().Int64() <= scanBatches {
		setCursor(out[start:], e.Value().Int64()-1)
	}
	return out
}

func (s *stub) reply(name string, body bsoncore.Document) []byte {
	switch name {
	case "hello", "isMaster", "ismaster":
		return s.hello
	case "find":
		if db, _ := body.Lookup("$db").StringValueOK(); db != "bench" {
			return s.empty
		}
		if _, err := body.LookupErr("limit"); err != nil {
			return s.first
		}
		return s.found
	case "aggregate":
		if bytes.Contains(body, []byte("$changeStream")) {
			return s.stream
		}
		return s.empty
	case "getMore":
		if body.Lookup("getMore").Int64() > scanBatches {
			return s.waiting
		}
		return s.next
	case "listCollections", "listIndexes":
		return s.empty
	case "listDatabases":
		return s.databases
	case "findAndModify":
		// A proxy marks a backend as its fleet's: it is what it says.
		if v, err := body.LookupErr("update", "$setOnInsert"); err == nil {
			return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(bsoncore.AppendDocumentElement(nil, "value", v.Document()), "ok", 1))
		}
	}
	return s.written
}

// setCursor writes a cursor's id into a reply that holds one.
func setCursor(reply []byte, id int64) {
	at := bytes.LastIndex(reply, []byte("\x12id\x00"))
	binary.LittleEndian.PutUint64(reply[at+4:], uint64(id))
}
