package router

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/wire"
)

// versionEnv is a writeEnv over b0, b1 … with these wire versions, all of which have been met.
func versionEnv(t *testing.T, wires ...int32) (*writeEnv, []*backendtest.Server) {
	t.Helper()
	uris := map[string]string{}
	var servers []*backendtest.Server
	for i, w := range wires {
		s := backendtest.New(t)
		h := backendtest.ReplicaSet("rs" + itoa(i))
		h.MaxWireVersion = w
		s.SetHello(h)
		s.SetScript(writesDone)
		servers = append(servers, s)
		uris["b"+itoa(i)] = "mongodb://" + s.Addr() + "/?replicaSet=rs" + itoa(i)
	}
	e := newWriteEnv(t, uris)
	for i := range wires {
		b := e.router.cfg.Backends.Get("b" + itoa(i))
		for end := time.Now().Add(20 * time.Second); b.MaxWireVersion() == 0 && time.Now().Before(end); {
			if err := b.Ready(e.ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e, servers
}

// TestAnnouncedVersionIsTheLowest: drivers go by the wire version, tools by the version. Both are the oldest backend's, and no more than the proxy itself honours.
func TestAnnouncedVersionIsTheLowest(t *testing.T) {
	for _, c := range []struct {
		wires []int32
		wire  int32
		want  string
		array []int32
	}{
		{[]int32{21, 20}, 20, "6.3.0", []int32{6, 3, 0, 0}},
		{[]int32{17, 25}, 17, "6.0.0", []int32{6, 0, 0, 0}},
		{[]int32{25, 26}, 21, "7.0.0", []int32{7, 0, 0, 0}},
		{[]int32{21}, 21, "7.0.0", []int32{7, 0, 0, 0}},
		{[]int32{12, 21}, 12, "4.4.0", []int32{4, 4, 0, 0}}, // between two versions it is the lower one
	} {
		e, _ := versionEnv(t, c.wires...)
		ask := func(name string) bson.Raw {
			return e.exchange(wireMessage(t, d(name, 1, "$db", "admin")))
		}
		if w := ask("hello").Lookup("maxWireVersion").AsInt64(); w != int64(c.wire) {
			t.Errorf("%v: hello announces %d, want %d", c.wires, w, c.wire)
		}
		info := ask("buildInfo")
		var array []int32
		values, _ := info.Lookup("versionArray").Array().Values()
		for _, v := range values {
			array = append(array, v.Int32())
		}
		if v := info.Lookup("version").StringValue(); v != c.want || !slices.Equal(array, c.array) {
			t.Errorf("%v: version %s %v, want %s", c.wires, v, array, c.want)
		}
		if v := ask("serverStatus").Lookup("version").StringValue(); v != c.want {
			t.Errorf("%v: serverStatus says %s", c.wires, v)
		}
	}
}

// TestCreateOfWhatExists: a server from 7.0 on finds nothing wrong with it if the options are the same, an older one refuses. The fleet answers as its oldest backend would.
func TestCreateOfWhatExists(t *testing.T) {
	for _, c := range []struct {
		what   string
		wires  []int32
		exists bool
		code   wire.Code
		sent   bool
	}{
		{"on 7.0, beside an older one", []int32{21, 20}, true, wire.NamespaceExists, false},
		{"on 7.0, beside an older one, new", []int32{21, 20}, false, 0, true},
		{"on 7.0 alone", []int32{21, 25}, true, 0, true},
		{"on the older one itself", []int32{20, 21}, true, 0, true}, // which says so itself
	} {
		e, servers := versionEnv(t, c.wires...)
		var created atomic.Bool
		servers[0].SetScript(func(cmd backendtest.Command) backendtest.Answer {
			switch cmd.Name {
			case "create":
				created.Store(true)
			case "listCollections":
				found := bson.A{}
				if c.exists {
					found = bson.A{d("name", "c", "type", "collection", "options", d())}
				}
				return backendtest.OK(bson.E{Key: "cursor", Value: d("id", int64(0), "ns", "x.$cmd.listCollections", "firstBatch", found)})
			}
			return writesDone(cmd)
		})
		_, err := e.raw(d("create", "c"))
		if c.code == 0 && err != nil || c.code != 0 && (err == nil || wire.AsError(err).Code != c.code) || created.Load() != c.sent {
			t.Errorf("%s: %v, sent %v", c.what, err, created.Load())
		}
	}
}

// TestDefaultConcernsAreSetEverywhereOrNowhere: what one backend cannot do is found out before another one has done it.
func TestDefaultConcernsAreSetEverywhereOrNowhere(t *testing.T) {
	refuses := func(name string, code int32) backendtest.Script {
		return func(c backendtest.Command) backendtest.Answer {
			if c.Name == name {
				return backendtest.Err(code, "Name", "no")
			}
			return writesDone(c)
		}
	}
	late := func(c backendtest.Command) backendtest.Answer {
		if c.Name == "setDefaultRWConcern" {
			return backendtest.OK(bson.E{Key: "writeConcernError", Value: d("code", 64, "errmsg", "late")})
		}
		return writesDone(c)
	}
	for _, c := range []struct {
		what  string
		alone bool
		b1    backendtest.Script // b1 is asked between b0 and b2
		code  wire.Code
		set   []int // which servers have been told
		text  string
	}{
		{"all take it", false, writesDone, 0, []int{1, 1, 1}, ""},
		{"a standalone", true, writesDone, 51300, []int{0, 0, 0}, "backend 'b1': 'setDefaultRWConcern' is not supported on standalone nodes: make it a replica set, which may have one member; nothing was changed"},
		{"one that cannot be asked", false, refuses("getDefaultRWConcern", 13), 13, []int{0, 0, 0}, "backend 'b1': no; nothing was changed"},
		{"one that refuses", false, refuses("setDefaultRWConcern", 2), 2, []int{1, 1, 0}, "backend 'b1': no; done on 'b0', so run the command again once this is mended"},
		{"one that does not confirm it", false, late, 0, []int{1, 1, 1}, "late"},
	} {
		t.Run(c.what, func(t *testing.T) {
			e, servers := versionEnv(t, 21, 21, 21)
			if c.alone {
				alone := backendtest.New(t)
				alone.SetHello(backendtest.Standalone())
				servers[1] = alone
				e = newWriteEnv(t, map[string]string{"b0": "mongodb://" + servers[0].Addr() + "/?replicaSet=rs0", "b1": alone.URI(), "b2": "mongodb://" + servers[2].Addr() + "/?replicaSet=rs2"})
			}
			servers[1].SetScript(c.b1)
			reply := e.exchange(wireMessage(t, d("setDefaultRWConcern", 1, "defaultWriteConcern", d("w", 1), "$db", "admin")))
			code, _ := reply.Lookup("code").AsInt64OK()
			if code != int64(c.code) || !strings.Contains(reply.String(), c.text) {
				t.Errorf("%v", reply)
			}
			for i, s := range servers {
				n := 0
				for _, got := range s.Received() {
					if got.Name == "setDefaultRWConcern" {
						n++
					}
				}
				if n != c.set[i] {
					t.Errorf("b%d was told %d times, want %d", i, n, c.set[i])
				}
			}
		})
	}
}
