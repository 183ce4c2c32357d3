package router

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardway/shardway/wire"
)

// memory is what heap and stacks take after a collection.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func TestHello(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	names := func(doc bson.Raw) string {
		elems, err := doc.Elements()
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, el := range elems {
			keys = append(keys, el.Key())
		}
		return strings.Join(keys, " ")
	}
	rest := " maxBsonObjectSize maxMessageSizeBytes maxWriteBatchSize localTime logicalSessionTimeoutMinutes connectionId maxWireVersion minWireVersion ok"
	for _, tt := range []struct {
		cmd  bson.D
		want string
	}{
		{bson.D{{Key: "hello", Value: 1}, {Key: "backpressure", Value: "2"}}, "isWritablePrimary msg topologyVersion" + rest},
		{bson.D{{Key: "isMaster", Value: 1}}, "ismaster msg topologyVersion" + rest},
		{bson.D{{Key: "ismaster", Value: 1}, {Key: "helloOk", Value: true}}, "ismaster msg topologyVersion helloOk" + rest},
	} {
		got := p.ok(tt.cmd)
		if names(got) != tt.want {
			t.Errorf("%v has the fields\n%s, want\n%s", tt.cmd, names(got), tt.want)
		}
		if got.Lookup("msg").StringValue() != "isdbgrid" || got.Lookup("maxWireVersion").AsInt64() != wire70 || got.Lookup("minWireVersion").AsInt64() != 0 {
			t.Errorf("%v: %v", tt.cmd, got)
		}
	}
}

func TestHelloMetadata(t *testing.T) {
	e := newLone(t)
	good := bson.D{{Key: "driver", Value: bson.D{{Key: "name", Value: "d"}, {Key: "version", Value: "1"}}}, {Key: "os", Value: bson.D{{Key: "type", Value: "Linux"}}}}
	hello := func(client any) bson.D { return bson.D{{Key: "hello", Value: 1}, {Key: "client", Value: client}} }
	for _, tt := range []struct {
		name   string
		client any
		code   wire.Code
	}{
		{"good", good, 0},
		{"with an application", append(good[:2:2], bson.E{Key: "application", Value: bson.D{{Key: "name", Value: strings.Repeat("a", 128)}}}), 0},
		{"name too long", append(good[:2:2], bson.E{Key: "application", Value: bson.D{{Key: "name", Value: strings.Repeat("a", 129)}}}), wire.ClientMetadataAppNameTooLarge},
		{"application is no document", append(good[:2:2], bson.E{Key: "application", Value: 1}), wire.TypeMismatch},
		{"too large", append(good[:2:2], bson.E{Key: "platform", Value: strings.Repeat("a", 512)}), wire.ClientMetadataDocumentTooLarge},
		{"no document", "x", wire.TypeMismatch},
		{"empty", bson.D{}, wire.ClientMetadataMissingField},
		{"no os", good[:1:1], wire.ClientMetadataMissingField},
		{"no driver", good[1:2:2], wire.ClientMetadataMissingField},
		{"no version", bson.D{{Key: "driver", Value: bson.D{{Key: "name", Value: "d"}}}, good[1]}, wire.ClientMetadataMissingField},
		{"os type is a number", bson.D{good[0], {Key: "os", Value: bson.D{{Key: "type", Value: 1}}}}, wire.TypeMismatch},
	} {
		p := e.dial()
		if got := codeIn(p.run(hello(tt.client))); got != tt.code {
			t.Errorf("%s: code %d, want %d", tt.name, got, tt.code)
		}
	}
	p := e.dial()
	p.ok(bson.D{{Key: "hello", Value: 1}})
	p.ok(hello(good))
	p.ok(hello(good))
	p.fails(hello(append(good[:2:2], bson.E{Key: "platform", Value: "x"})), wire.ClientMetadataCannotBeMutated)
	p.ok(bson.D{{Key: "hello", Value: 1}})

	if got, ok := p.ok(bson.D{{Key: "hello", Value: 1}, {Key: "loadBalanced", Value: true}}).Lookup("serviceId").ObjectIDOK(); !ok || got != e.r.processID {
		t.Errorf("behind a load balancer the serviceId is %v, want %v", got, e.r.processID)
	}
}

func TestHelloAwaits(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	version := func(id bson.ObjectID, counter any) bson.D {
		return bson.D{{Key: "processId", Value: id}, {Key: "counter", Value: counter}}
	}
	current := version(e.r.processID, int64(0))
	hello := func(version, await any) bson.D {
		d := bson.D{{Key: "hello", Value: 1}}
		if version != nil {
			d = append(d, bson.E{Key: "topologyVersion", Value: version})
		}
		if await != nil {
			d = append(d, bson.E{Key: "maxAwaitTimeMS", Value: await})
		}
		return d
	}
	for _, tt := range []struct {
		cmd  bson.D
		code wire.Code
	}{
		{hello(nil, 10), 51760},
		{hello(current, nil), 51760},
		{hello(version(e.r.processID, int64(-1)), 10), 51758},
		{hello(current, -1), 51759},
		{hello(version(e.r.processID, int64(1)), 10), 51761},
		{hello("x", 10), wire.TypeMismatch},
		{hello(bson.D{{Key: "processId", Value: e.r.processID}}, 10), 40414},
		{hello(bson.D{{Key: "counter", Value: int64(0)}}, 10), 40414},
		{hello(current, "x"), wire.TypeMismatch},
		{hello(version(e.r.processID, "x"), 10), wire.TypeMismatch},
	} {
		p.fails(tt.cmd, tt.code)
	}
	p.send(p.msg(wire.ExhaustAllowed, hello(nil, nil)))
	if _, _, body := p.receive(); codeIn(body) != 51763 {
		t.Errorf("exhaust without maxAwaitTimeMS: %v", body)
	}

	began := time.Now()
	p.ok(hello(version(bson.NewObjectID(), int64(7)), 60_000)) // another process's: there is something to tell
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("waited %v though the client knows nothing", took)
	}
	began = time.Now()
	p.ok(hello(current, 50))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("answered after %v though nothing changed, want 50ms", took)
	}
}

func TestHelloStreams(t *testing.T) {
	e := newLone(t)
	p := e.dial()
	version := p.ok(bson.D{{Key: "hello", Value: 1}}).Lookup("topologyVersion")
	p.send(p.msg(wire.ExhaustAllowed|wire.ChecksumPresent, bson.D{{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: version}, {Key: "maxAwaitTimeMS", Value: 10}}))
	last := p.id
	for i := range 5 {
		h, flags, body := p.receive()
		if h.ResponseTo != last || flags != wire.MoreToCome|wire.ChecksumPresent || !body.Lookup("topologyVersion").Equal(version) {
			t.Fatalf("reply %d answers %d with flags %#x, want %d: %v", i, h.ResponseTo, flags, last, body)
		}
		last = h.RequestID
	}
	go e.stop()
	for {
		h, flags, body := p.receive()
		if h.ResponseTo != last {
			t.Fatalf("a reply to %d, want to %d", h.ResponseTo, last)
		}
		last = h.RequestID
		if flags&wire.MoreToCome == 0 {
			if codeIn(body) != wire.ShutdownInProgress {
				t.Errorf("the stream ended with %v, want 91", body)
			}
			return
		}
	}
}

func TestDriverConnects(t *testing.T) {
	e := newLone(t)
	for _, opts := range []*options.ClientOptions{
		options.Client(),
		options.Client().SetCompressors([]string{"zstd"}),
		options.Client().SetCompressors([]string{"snappy", "zlib"}).SetAppName("shardway tests"),
		options.Client().SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1).SetStrict(true)),
	} {
		c, err := mongo.Connect(opts.ApplyURI("mongodb://" + e.addr + "/").SetServerSelectionTimeout(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := c.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
