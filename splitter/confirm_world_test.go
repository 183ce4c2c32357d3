package splitter_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/splitter"
	"github.com/shardway/shardway/wire"
)

// between passes commands on to a server, each connection over one of its own, and lets a test
// change the replies.
type between struct {
	t  *testing.T
	to string

	mu    sync.Mutex
	conns map[int]net.Conn
	// alter returns the reply that is passed on instead, nil for the server's own.
	alter func(cmd backendtest.Command, reply bson.Raw) bson.D
	// refuse, if not nil, answers instead of the server, which is not asked then; nil where the
	// server is to be asked.
	refuse func(cmd backendtest.Command) *backendtest.Answer
}

func newBetween(t *testing.T, to string) (*between, *backendtest.Server) {
	t.Helper()
	b := &between{t: t, to: to, conns: map[int]net.Conn{}}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, c := range b.conns {
			_ = c.Close()
		}
	})
	server := backendtest.New(t)
	server.SetScript(b.answer)
	return b, server
}

func (b *between) conn(n int) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.conns[n]; c != nil {
		return c, nil
	}
	c, err := net.Dial("tcp", b.to)
	if err == nil {
		b.conns[n] = c
	}
	return c, err
}

func (b *between) answer(cmd backendtest.Command) backendtest.Answer {
	if b.refuse != nil {
		if a := b.refuse(cmd); a != nil {
			return *a
		}
	}
	c, err := b.conn(cmd.Conn)
	if err != nil {
		return backendtest.Cut()
	}
	if _, err := c.Write(cmd.Message); err != nil {
		return backendtest.Cut()
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return backendtest.Cut()
	}
	msg := make([]byte, binary.LittleEndian.Uint32(head))
	copy(msg, head)
	if _, err := io.ReadFull(c, msg[4:]); err != nil {
		return backendtest.Cut()
	}
	b.mu.Lock()
	alter := b.alter
	b.mu.Unlock()
	if alter != nil {
		if other := alter(cmd, bson.Raw(msg[21:])); other != nil {
			return backendtest.Answer{Body: other}
		}
	}
	return backendtest.Answer{Raw: msg}
}

// unconfirmed is a reply with ok:1 that says that a step-down came before the majority.
func unconfirmed(reply bson.Raw) bson.D {
	var d bson.D
	_ = bson.Unmarshal(reply, &d)
	return append(d, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(91)}, {Key: "codeName", Value: "ShutdownInProgress"},
		{Key: "errmsg", Value: "Replication is being shut down"}}})
}

// TestStepDownUndoesAnOutput: a step-down before its majority undoes what made an output. The next
// insert, or the next index, would make it anew without its options and unique indexes. A split
// begins anew then, and its outputs are like the collection.
func TestStepDownUndoesAnOutput(t *testing.T) {
	for name, undo := range map[string]struct {
		after string
		how   func(db *mongo.Database, coll string) error
	}{
		"its creation": {"create", func(db *mongo.Database, coll string) error { return db.Collection(coll).Drop(context.Background()) }},
		"its indexes": {"createIndexes", func(db *mongo.Database, coll string) error {
			return db.Collection(coll).Indexes().DropAll(context.Background())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := fleettest.Start(t, 1).Servers[0]
			way, front := newBetween(t, server.Addr())
			w := newWorldBehind(t, server, front.URI(), func(cfg *splitter.Config) { cfg.Backoff = 10 * time.Millisecond })
			direct, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = direct.Disconnect(context.Background()) })
			db := direct.Database("db")
			if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
				t.Fatal(err)
			}
			validator := bson.D{{Key: "v", Value: bson.D{{Key: "$exists", Value: true}}}}
			if err := db.CreateCollection(t.Context(), "c", options.CreateCollection().SetValidator(validator)); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				if _, err := db.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "v", Value: 1}}); err != nil {
					t.Fatal(err)
				}
			}
			w.shard(t, "k", 0)
			var once sync.Once
			way.mu.Lock()
			way.alter = func(cmd backendtest.Command, reply bson.Raw) (other bson.D) {
				coll, _ := cmd.Body.Lookup(cmd.Name).StringValueOK()
				if cmd.Name == undo.after && catalog.IsPhysicalName(coll) {
					once.Do(func() {
						if err := undo.how(db, coll); err != nil {
							t.Error(err)
						}
						other = unconfirmed(reply)
					})
				}
				return other
			}
			way.mu.Unlock()
			if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
				t.Fatal(err)
			}
			parts := w.store.Snapshot().Maps["db.c"].Partitions
			if len(parts) != 2 {
				t.Fatalf("%d partitions", len(parts))
			}
			for _, p := range parts {
				specs, err := db.Collection(p.Physical).Indexes().ListSpecifications(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				unique := false
				for _, ix := range specs {
					unique = unique || ix.Name == "k_1" && ix.Unique != nil && *ix.Unique
				}
				infos, err := db.ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: p.Physical}})
				if err != nil || len(infos) != 1 {
					t.Fatal(infos, err)
				}
				if !unique || !strings.Contains(infos[0].Options.String(), "validator") {
					t.Errorf("%s has the indexes %v and the options %v", p.Physical, specs, infos[0].Options)
				}
			}
		})
	}
}

// TestOutputThatIsAnotherCollection: an output that was made anew behind the reshape's back, like
// the first one but for its UUID or an index, is not put in place.
func TestOutputThatIsAnotherCollection(t *testing.T) {
	for name, spoil := range map[string]func(db *mongo.Database, coll string) error{
		"its index is gone": func(db *mongo.Database, coll string) error {
			return db.Collection(coll).Indexes().DropAll(context.Background())
		},
		"it has another validator": func(db *mongo.Database, coll string) error {
			return db.RunCommand(context.Background(), bson.D{{Key: "collMod", Value: coll}, {Key: "validator", Value: bson.D{{Key: "v", Value: 1}}}}).Err()
		},
		"it was made anew": func(db *mongo.Database, coll string) error {
			ctx := context.Background()
			cur, err := db.Collection(coll).Find(ctx, bson.D{})
			if err != nil {
				return err
			}
			var docs []bson.D
			if err := cur.All(ctx, &docs); err != nil || len(docs) == 0 {
				return err
			}
			if err := db.Collection(coll).Drop(ctx); err != nil {
				return err
			}
			if _, err := db.Collection(coll).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: "hashed"}}}); err != nil {
				if _, err := db.Collection(coll).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}}); err != nil {
					return err
				}
			}
			_, err = db.Collection(coll).InsertMany(ctx, docs)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			attempts := 0
			w := newAbortWorld(t, func(w *world, phase string) {
				if phase == "copy" {
					attempts++
				}
				if phase != "close" || attempts != 1 {
					return
				}
				names, err := w.outputs(context.Background())
				if err == nil {
					err = spoil(w.b.Client().Database("db"), names[0])
				}
				if err != nil {
					t.Error(err)
				}
			})
			if err := w.split.Split(t.Context(), "db.c", shardkey.Position(1<<63)); err != nil {
				t.Fatal(err)
			}
			if attempts != 2 {
				t.Errorf("%d attempts, want 2", attempts)
			}
			w.whole(t)
		})
	}
}

// TestDDLThatIsNotConfirmedStaysOnRecord: a DDL command that was done on all parts and is not
// confirmed on one may be undone there. Its record stays, so that it is repeated until a majority
// has it everywhere; a command that is confirmed leaves none.
func TestDDLThatIsNotConfirmedStaysOnRecord(t *testing.T) {
	command := bson.Raw(mustMarshal(t, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}}}}))
	w := newWorld(t, func(cfg *splitter.Config) {
		cfg.Lease, cfg.Margin, cfg.Renew = 50*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	if err := w.store.CreateDatabase(t.Context(), "db", "b1"); err != nil {
		t.Fatal(err)
	}
	w.shard(t, "k", 2)
	parts := w.table.View().Collection("db.c").Parts
	if err := w.split.Everywhere(t.Context(), "db.c", parts, command, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if left := w.ddlRecords(t); left != 0 {
		t.Errorf("%d records of a command that is over", left)
	}
	late := &backend.UnconfirmedError{Concern: wire.Errorf(wire.WriteConcernFailed, "waiting for replication timed out")}
	if err := w.split.Everywhere(t.Context(), "db.c", parts, command, func(context.Context) error { return late }); !errors.Is(err, late) {
		t.Errorf("%v", err)
	}
	if left := w.ddlRecords(t); left != 1 {
		t.Fatalf("%d records of a command that is not confirmed, want 1", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.split.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	for until := time.Now().Add(30 * time.Second); w.ddlRecords(t) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the command is not repeated")
		}
	}
	for _, p := range parts {
		specs, err := w.b.Client().Database("db").Collection(p.Physical).Indexes().ListSpecifications(t.Context())
		if err != nil || !slices.ContainsFunc(specs, func(s mongo.IndexSpecification) bool { return s.Name == "a_1" }) {
			t.Errorf("%s has the indexes %v (%v)", p.Physical, specs, err)
		}
	}
}

// ddlRecords counts the records of DDL commands.
func (w *world) ddlRecords(t *testing.T) (n int) {
	t.Helper()
	all, err := w.store.Reshapes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.Kind == "ddl" {
			n++
		}
	}
	return n
}
