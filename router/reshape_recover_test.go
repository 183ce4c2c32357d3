package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/internal/waits"
	"github.com/shardway/shardway/member"
	"github.com/shardway/shardway/protocol"
)

// expiry is expireAfterSeconds of the index t_1 of a physical collection on the first backend; −1 when it has none.
func (p *proxy) expiry(t *testing.T, physical string) int64 {
	t.Helper()
	specs, err := p.direct.Database("db").Collection(physical).Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if s.Name == "t_1" && s.ExpireAfterSeconds != nil {
			return int64(*s.ExpireAfterSeconds)
		}
	}
	return -1
}

// settled waits until no record of a change is left: what a process that is gone began has been taken over and ended.
func (p *proxy) settled(t *testing.T) {
	t.Helper()
	waits.Until(t, "no record of a change is left", func() bool {
		left, err := p.catalog.Reshapes(t.Context())
		return err == nil && len(left) == 0
	})
}

func ttl(seconds int32) mongo.IndexModel {
	m := mongo.IndexModel{Keys: bson.D{{Key: "t", Value: 1}}}
	if seconds > 0 {
		m.Options = options.Index().SetExpireAfterSeconds(seconds)
	}
	return m
}

// Outputs get the time after which documents expire with the flip.
func TestSplitKeepsExpiry(t *testing.T) {
	p := startProxy(t, 1)
	ctx := t.Context()
	p.shard(t, "db.c", "k", 1)
	c := p.client.Database("db").Collection("c")
	if _, err := c.Indexes().CreateOne(ctx, ttl(3600)); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.split.SplitMedian(ctx, "db.c", 0); err != nil {
		t.Fatal(err)
	}
	parts := p.catalog.Snapshot().Map("db.c").Partitions
	if len(parts) != 2 {
		t.Fatalf("%d partitions", len(parts))
	}
	for _, part := range parts {
		if got := p.expiry(t, part.Physical); got != 3600 {
			t.Errorf("%s: documents expire after %d s, want 3600", part.Physical, got)
		}
	}
}

// flippedBy inserts the next version of a map as the flip of a reshape.
func (p *proxy) flippedBy(t *testing.T, m *catalog.Map, reshape bson.ObjectID) *catalog.Map {
	t.Helper()
	next := *m
	next.V, next.Reshape = m.V+1, reshape
	if err := p.catalog.InsertMap(t.Context(), &next); err != nil {
		t.Fatal(err)
	}
	return &next
}

// leftAfterFlip makes db.c as a process leaves it that ended right after the flip of a move: documents expire after a minute in the input, and after has seconds (0: never) in the output.
func (p *proxy) leftAfterFlip(t *testing.T, has int32) (m *catalog.Map, input, output string) {
	t.Helper()
	p.shard(t, "db.c", "k", 1)
	m = p.catalog.Snapshot().Map("db.c")
	input, output = "c@fffff.0.0", m.Partitions[0].Physical
	for name, after := range map[string]int32{input: 60, output: has} {
		if _, err := p.direct.Database("db").Collection(name).Indexes().CreateOne(t.Context(), ttl(after)); err != nil {
			t.Fatal(err)
		}
	}
	id := bson.NewObjectID()
	// What the process recorded before it closed gates.
	specs, err := p.direct.Database("db").ListCollectionSpecifications(t.Context(), bson.D{{Key: "name", Value: input}})
	if err != nil || len(specs) != 1 {
		t.Fatal(specs, err)
	}
	if _, err := p.direct.Database(catalog.MemberDB).Collection(member.Collections).InsertOne(t.Context(),
		member.Collection{Name: "db." + input, State: member.Used, UUID: specs[0].UUID, Reshape: id}); err != nil {
		t.Fatal(err)
	}
	m = p.flippedBy(t, m, id)
	rec := catalog.Reshape{ID: id, NS: "db.c", Kind: "move", Closings: []catalog.RecordedClosing{{Backend: "b1", ID: bson.NewObjectID()}}, Owner: bson.NewObjectID(), Server: "gone", Phase: catalog.Closing, EndV: m.V,
		Inputs:  []catalog.RecordedHome{{Backend: "b1", Physical: input}},
		Outputs: []catalog.RecordedHome{{Backend: "b1", Physical: output}}}
	if err := p.catalog.InsertReshape(t.Context(), &rec); err != nil {
		t.Fatal(err)
	}
	return m, input, output
}

// What a process that ended right after the flip left to do is done before a DDL command of the collection runs, and does not undo one.
func TestRecoveredExpiryUndoesNothing(t *testing.T) {
	for _, tt := range []struct {
		what string
		has  int32
		anew bool // the index is dropped and made without an expiry
		want int64
	}{{"changed before", 3600, false, 3600}, {"taken away meanwhile", 0, true, -1}} {
		p := startProxy(t, 1)
		ctx := t.Context()
		_, _, output := p.leftAfterFlip(t, tt.has)
		if indexes := p.client.Database("db").Collection("c").Indexes(); tt.anew {
			if err := indexes.DropOne(ctx, "t_1"); err != nil {
				t.Fatal(err)
			}
			if _, err := indexes.CreateOne(ctx, ttl(0)); err != nil {
				t.Fatal(err)
			}
		}
		p.settled(t)
		if got := p.expiry(t, output); got != tt.want {
			t.Errorf("%s: documents expire after %d s, want %d", tt.what, got, tt.want)
		}
	}
}

// A process that ends right after the flip leaves outputs that do not expire documents, floors that are too low and the inputs.
func TestRecoverRollsForward(t *testing.T) {
	p := startProxy(t, 1)
	ctx := t.Context()
	m, input, output := p.leftAfterFlip(t, 0)
	p.settled(t)
	if got := p.expiry(t, output); got != 60 {
		t.Errorf("documents expire after %d s, want 60", got)
	}
	if names, err := p.direct.Database("db").ListCollectionNames(ctx, bson.D{{Key: "name", Value: input}}); err != nil || len(names) != 0 {
		t.Errorf("the input is left: %v, %v", names, err)
	}
	var floor protocol.Floor
	err := p.direct.Database(catalog.MemberDB).Collection(member.Floors).FindOne(ctx, bson.D{{Key: "_id", Value: "db.c"}}).Decode(&floor)
	if err != nil || floor.V != m.V {
		t.Errorf("floor %d, %v; want %d", floor.V, err, m.V)
	}
	if left, err := p.catalog.Reshapes(ctx); err != nil || len(left) != 0 {
		t.Errorf("records left: %v, %v", left, err)
	}
}
