// Command stub is a server that answers every find with one document from bytes made beforehand and says yes to
// everything else, so that a benchmark measures what stands in front of it. It says that it is a standalone.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

func main() {
	size := flag.Int("size", 900, "bytes of the document that finds return")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	s := newStub(*size)
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go s.serve(c)
	}
}

type stub struct{ hello, found, empty, written, databases []byte }

func newStub(size int) *stub {
	must := func(d bson.D) []byte {
		b, err := bson.Marshal(d)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return b
	}
	cursor := func(batch bson.A) []byte {
		return must(bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: batch}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "bench.c"}}}, {Key: "ok", Value: 1.0}})
	}
	return &stub{
		hello: must(bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "ismaster", Value: true}, {Key: "maxBsonObjectSize", Value: wire.MaxDocumentSize},
			{Key: "maxMessageSizeBytes", Value: wire.MaxMessageSize}, {Key: "maxWriteBatchSize", Value: wire.MaxWriteBatchSize},
			{Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21}, {Key: "readOnly", Value: false}, {Key: "ok", Value: 1.0}}),
		found:     cursor(bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "pad", Value: string(make([]byte, size))}}}),
		empty:     cursor(bson.A{}),
		written:   must(bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}}),
		databases: must(bson.D{{Key: "databases", Value: bson.A{}}, {Key: "totalSize", Value: int64(0)}, {Key: "ok", Value: 1.0}}),
	}
}

func (s *stub) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := wire.NewReader(bufio.NewReaderSize(c, 16<<10))
	var out []byte
	var msg wire.Msg
	for {
		m, err := r.ReadMessage()
		if err != nil {
			return
		}
		out = out[:0]
		if m.Header.OpCode == wire.OpQuery {
			out = wire.AppendReply(out, 1, m.Header.RequestID, false, s.hello)
		} else if err = wire.ParseMsg(m, &msg); err == nil {
			out = wire.AppendMsg(out, 1, m.Header.RequestID, 0, s.answer(&msg))
		}
		m.Release()
		if err != nil {
			return
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

func (s *stub) answer(m *wire.Msg) []byte {
	name, _, db, err := m.Command()
	if err != nil {
		return s.written
	}
	switch name {
	case "hello", "isMaster", "ismaster":
		return s.hello
	case "find":
		if db == "bench" {
			return s.found
		}
		return s.empty
	case "aggregate", "listCollections", "listIndexes", "getMore":
		return s.empty
	case "listDatabases":
		return s.databases
	}
	return s.written
}
