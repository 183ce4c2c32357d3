package router_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// withIndex counts the partitions that have an index of that name.
func (w *ddlWorld) withIndex(m *catalog.Map, name string) (n int) {
	w.t.Helper()
	for _, p := range m.Partitions {
		specs, err := w.on(p.Backend).Collection(p.Physical).Indexes().ListSpecifications(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, s := range specs {
			if s.Name == name {
				n++
			}
		}
	}
	return n
}

// An index that one partition refuses is on none of them afterwards.
func TestIndexRefusedByOnePartition(t *testing.T) {
	w := newDDLWorld(t)
	m := w.shard("c", "k")
	coll := w.client.Database(w.db).Collection("c")
	for i := range 30 {
		if _, err := coll.InsertOne(t.Context(), bson.D{e("_id", i), e("k", i), e("u", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 { // one value twice under one key: in one partition
		if _, err := coll.InsertOne(t.Context(), bson.D{e("_id", 100+i), e("k", 7), e("u", "same")}); err != nil {
			t.Fatal(err)
		}
	}
	w.fails(bson.D{e("createIndexes", "c"), e("indexes", bson.A{bson.D{e("key", bson.D{e("k", 1), e("u", 1)}), e("name", "ku"), e("unique", true)}})}, wire.DuplicateKey)
	if n := w.withIndex(m, "ku"); n != 0 {
		t.Errorf("%d of %d partitions have the index that was refused", n, len(m.Partitions))
	}
	w.settled(t)
}

// What a process that died half-way through a DDL command left is finished by another.
func TestHalfMadeIndexesAreFinished(t *testing.T) {
	w := newDDLWorld(t)
	m := w.shard("c", "k")
	make := bson.D{e("createIndexes", "c"), e("indexes", bson.A{bson.D{e("key", bson.D{e("z", 1)}), e("name", "z_1")}})}
	command, err := bson.Marshal(make)
	if err != nil {
		t.Fatal(err)
	}
	first := m.Partitions[0]
	here := bson.D{e("createIndexes", first.Physical), make[1]}
	if err := w.on(first.Backend).RunCommand(t.Context(), here).Err(); err != nil {
		t.Fatal(err)
	}
	rec := &catalog.Reshape{ID: bson.NewObjectID(), Slot: w.ns("c") + " ddl", NS: w.ns("c"), Kind: "ddl", Owner: bson.NewObjectID(), Server: "gone",
		Phase: catalog.Copying, Command: command}
	if err := w.catalog.InsertReshape(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	w.settled(t)
	if n := w.withIndex(m, "z_1"); n != len(m.Partitions) {
		t.Errorf("%d of %d partitions have the index", n, len(m.Partitions))
	}
}
