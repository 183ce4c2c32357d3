package member_test

import (
	"context"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/protocol"
	"github.com/shardway/shardway/wire"
)

// enrollWorld is servers of which the first has the catalog.
type enrollWorld struct {
	servers []*fleet.Server
	store   *catalog.Store
}

func newEnrollWorld(t *testing.T, n int) *enrollWorld {
	t.Helper()
	w := &enrollWorld{servers: fleettest.Start(t, n).Servers}
	client, err := mongo.Connect(options.Client().ApplyURI(w.servers[0].URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	if w.store, err = catalog.Open(t.Context(), client, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	return w
}

// as opens a server under an id; with another name of the loopback interface if by is not empty.
func (w *enrollWorld) as(t *testing.T, id string, server int, by string) *backend.Backend {
	t.Helper()
	uri := w.servers[server-1].URI()
	if by != "" {
		_, port, _ := strings.Cut(w.servers[server-1].Addr(), ":")
		uri = "mongodb://" + by + ":" + port + "/?directConnection=true"
	}
	b, err := backend.Open(t.Context(), backend.Config{ID: id, URI: uri, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	if err := b.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// refused enrolls backends that must be refused, and looks that nothing came of it.
func (w *enrollWorld) refused(t *testing.T, code wire.Code, says []string, backends ...*backend.Backend) {
	t.Helper()
	before := w.store.Snapshot().Backends
	err := member.Enroll(t.Context(), w.store, backends...)
	if err == nil || wire.AsError(err).Code != code {
		t.Fatalf("it is %v, want code %d", err, code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if err := w.store.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := w.store.Snapshot().Backends
	if len(after) != len(before) {
		t.Errorf("the catalog has %d backends, before %d", len(after), len(before))
	}
	for id, b := range before {
		if a := after[id]; a == nil || *a != *b {
			t.Errorf("%s is %+v in the catalog, before %+v", id, a, b)
		}
	}
}

func (w *enrollWorld) enroll(t *testing.T, backends ...*backend.Backend) {
	t.Helper()
	if err := member.Enroll(t.Context(), w.store, backends...); err != nil {
		t.Fatal(err)
	}
}

// identity reads what a server says of itself.
func identity(t *testing.T, b *backend.Backend) member.Identity {
	t.Helper()
	id, err := member.ReadIdentity(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func set(t *testing.T, b *backend.Backend, update bson.D) {
	t.Helper()
	if _, err := member.DB(b).Collection(member.Fleet).UpdateByID(t.Context(), "fleet", update); err != nil {
		t.Fatal(err)
	}
}

// A server keeps the id that it was given, and an id its server; whoever breaks that is refused, and nothing is registered.
func TestEnrollOneIDPerServer(t *testing.T) {
	w := newEnrollWorld(t, 3)
	b1, b2, b3 := w.as(t, "b1", 1, ""), w.as(t, "b2", 2, ""), w.as(t, "b3", 3, "")
	w.refused(t, wire.IllegalOperation, []string{"'b2'", "'c2'", "one server"}, b1, b2, w.as(t, "c2", 2, "localhost"))
	if !identity(t, b1).Fleet.IsZero() || !identity(t, b2).Fleet.IsZero() {
		t.Fatal("a refused start has marked a server")
	}
	w.enroll(t, b1, b2)
	w.enroll(t, b1, b2) // again, as every start does
	known := w.store.Snapshot().Backends
	if id := identity(t, b2); id.Backend != "b2" || id.Token.IsZero() || id.Token != known["b2"].Token || known["b1"].Token == id.Token {
		t.Errorf("b2 says %+v, the catalog %+v", id, known["b2"])
	}
	w.refused(t, wire.IllegalOperation, []string{"is the backend 'b2' of this fleet, and it was given as 'x'", w.servers[1].Addr()}, b1, b3, w.as(t, "x", 2, ""))
	if !identity(t, b3).Fleet.IsZero() {
		t.Error("a refused start has marked the one backend that is new")
	}
	w.refused(t, wire.IllegalOperation, []string{"'b1'", "'b2'"}, w.as(t, "b1", 2, ""), w.as(t, "b2", 1, ""))
	w.refused(t, wire.IllegalOperation, []string{"was given as backend 'b2'", "mark", "is missing"}, w.as(t, "b2", 3, ""))
	w.enroll(t, b1, b2, b3)
}

// What a copy of a server's files says is what the server said: the replica set, its token and how far it had counted tell them apart.
func TestEnrollRefusesCopies(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(t *testing.T, w *enrollWorld, b *backend.Backend)
		code  wire.Code
		says  string
	}{
		"an older copy": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			set(t, b, bson.D{{Key: "$set", Value: bson.D{{Key: "pulse", Value: int64(1)}}}})
		}, wire.IllegalOperation, "restored from a copy that is older"},
		"an older catalog": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			set(t, b, bson.D{{Key: "$set", Value: bson.D{{Key: "seen", Value: int64(99)}}}})
		}, wire.OperationFailed, "the catalog is older than backend 'b2'"},
		"another fleet's": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			set(t, b, bson.D{{Key: "$set", Value: bson.D{{Key: "fleet", Value: bson.NewObjectID()}}}})
		}, wire.OperationFailed, "belongs to the fleet with the clusterId"},
		"emptied": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			if err := b.Client().Database(catalog.MemberDB).Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, wire.IllegalOperation, "is missing"},
		"one that had the id before": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			set(t, b, bson.D{{Key: "$set", Value: bson.D{{Key: "token", Value: bson.NewObjectID()}}}})
		}, wire.IllegalOperation, "as another server"},
		"another replica set's": {func(t *testing.T, w *enrollWorld, b *backend.Backend) {
			k := *w.store.Snapshot().Backends["b2"]
			k.SetName = "before"
			if err := w.store.PutBackend(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}, wire.IllegalOperation, "the catalog knows it as 'before'"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newEnrollWorld(t, 2)
			b1, b2 := w.as(t, "b1", 1, ""), w.as(t, "b2", 2, "")
			w.enroll(t, b1, b2)
			for range 3 {
				if err := member.Beat(t.Context(), b2, w.store); err != nil {
					t.Fatal(err)
				}
			}
			if err := member.Verify(t.Context(), w.store, b2); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, w, b2)
			w.refused(t, c.code, []string{c.says, "'b2'"}, b1, b2)
			if err := member.Verify(t.Context(), w.store, b2); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("a proxy that runs says %v", err)
			}
		})
	}
}

// Backends that an older version has registered, and marked with the fleet only, are completed; the partitions that the maps name on them decide which id is whose.
func TestEnrollCompletesWhatAnOlderVersionMarked(t *testing.T) {
	w := newEnrollWorld(t, 2)
	b1, b2 := w.as(t, "b1", 1, ""), w.as(t, "b2", 2, "")
	cluster := w.store.Snapshot().ClusterID
	for _, b := range []*backend.Backend{b1, b2} {
		if err := w.store.PutBackend(t.Context(), catalog.Backend{ID: b.ID(), URI: b.URI(), Host: b.HostString()}); err != nil {
			t.Fatal(err)
		}
		if _, err := member.DB(b).Collection(member.Fleet).InsertOne(t.Context(), bson.D{{Key: "_id", Value: "fleet"}, {Key: "clusterId", Value: cluster}}); err != nil {
			t.Fatal(err)
		}
	}
	w.refused(t, wire.IllegalOperation, []string{"'b2'", "'x'"}, b1, w.as(t, "x", 2, ""))
	w.refused(t, wire.IllegalOperation, []string{"'b1'", "'b2'"}, w.as(t, "b1", 2, ""), w.as(t, "b2", 1, ""))
	// A wrong start of the older version has swapped the addresses in the catalog.
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	name := catalog.PhysicalName("db", "c", 1, 0, 0)
	if err := w.store.InsertMap(t.Context(), &catalog.Map{NS: "db.c", V: 1, UUID: catalog.NewUUID(), Epoch: bson.NewObjectID(),
		Partitions: []catalog.Partition{{Backend: "b2", Physical: name}}}); err != nil {
		t.Fatal(err)
	}
	if err := b2.Client().Database("db").CreateCollection(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for id, b := range map[string]*backend.Backend{"b1": b2, "b2": b1} {
		if err := w.store.PutBackend(t.Context(), catalog.Backend{ID: id, URI: b.URI(), Host: b.HostString()}); err != nil {
			t.Fatal(err)
		}
	}
	w.refused(t, wire.IllegalOperation, []string{"partitions of the backend 'b2'", "'b1'"}, w.as(t, "b1", 2, ""))
	if err := w.store.PutBackend(t.Context(), catalog.Backend{ID: "b1", URI: b1.URI(), Host: b1.HostString()}); err != nil {
		t.Fatal(err)
	}
	w.enroll(t, b1, b2)
	for _, b := range []*backend.Backend{b1, b2} {
		if id := identity(t, b); id.Backend != b.ID() || id.Fleet != cluster || id.Token != w.store.Snapshot().Backends[b.ID()].Token {
			t.Errorf("%s says %+v", b.ID(), id)
		}
		// Versions that drop without evidence look for this field before they start, and do not find it.
		raw, err := member.DB(b).Collection(member.Fleet).FindOne(t.Context(), bson.D{{Key: "_id", Value: "fleet"}}).Raw()
		if err != nil || !raw.Lookup("clusterId").IsZero() {
			t.Errorf("%s: %v, %v", b.ID(), raw, err)
		}
	}
}

// A backend that was restored from an older copy under a process's feet has an older registration of it: its lease ends.
func TestLeaseEndsOnAnOlderCopy(t *testing.T) {
	w := newEnrollWorld(t, 1)
	b := w.as(t, "b1", 1, "")
	board := member.BoardOf(b)
	in := protocol.Instance{ID: bson.NewObjectID(), Renewals: 7}
	if err := board.Register(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		confirmed int64
		want      bool
	}{{7, true}, {7, true}, {9, true}, {20, false}} { // an unanswered renewal may have been done
		if ok, err := board.RenewFrom(t.Context(), in.ID, c.confirmed); ok != c.want || err != nil {
			t.Errorf("with %d confirmed: %t, %v, want %t", c.confirmed, ok, err, c.want)
		}
	}
}

// A backend that has counted less than the catalog remembers is not helped to catch up.
func TestPulseOfAnOlderCopyStands(t *testing.T) {
	w := newEnrollWorld(t, 1)
	b := w.as(t, "b1", 1, "")
	w.enroll(t, b)
	for range 3 {
		if err := member.Beat(t.Context(), b, w.store); err != nil {
			t.Fatal(err)
		}
	}
	set(t, b, bson.D{{Key: "$set", Value: bson.D{{Key: "pulse", Value: int64(1)}}}})
	for range 5 {
		_ = member.Beat(t.Context(), b, w.store) // an error is right
	}
	if id := identity(t, b); id.Pulse != 1 {
		t.Errorf("the pulse is %d, want 1", id.Pulse)
	}
}
