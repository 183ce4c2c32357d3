package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// opLimit is how long a client waits for one operation of a fault run.
const opLimit = 20 * time.Second

// setLoad inserts documents and deletes some: every acknowledged one is there once, every one whose delete was acknowledged is not.
type setLoad struct {
	mu sync.Mutex
	// there and gone are what was acknowledged; unsure had no answer.
	there, gone, unsure map[int64]bool
	next                int64
}

func newSetLoad() *setLoad {
	return &setLoad{there: map[int64]bool{}, gone: map[int64]bool{}, unsure: map[int64]bool{}}
}

func (s *setLoad) step(ctx context.Context, c *mongo.Collection, r *rand.Rand) error {
	s.mu.Lock()
	s.next++
	id := s.next
	remove := r.IntN(4) == 0 && id > 100
	if remove {
		id = r.Int64N(id-50) + 1
		if !s.there[id] {
			s.mu.Unlock()
			return nil
		}
		delete(s.there, id)
	}
	s.unsure[id] = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	var err error
	if remove {
		_, err = c.DeleteOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 997}})
	} else {
		_, err = c.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 997}})
		if mongo.IsDuplicateKeyError(err) {
			err = nil // the server forgot the record of a first try when it was killed
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return err
	}
	delete(s.unsure, id)
	if remove {
		s.gone[id] = true
	} else {
		s.there[id] = true
	}
	return nil
}

// check compares what is there with what was acknowledged.
func (s *setLoad) check(ctx context.Context, c *mongo.Collection) error {
	cur, err := c.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var docs []struct {
		ID int64 `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[int64]bool{}
	for _, d := range docs {
		switch {
		case found[d.ID]:
			return fmt.Errorf("_id %d is there twice", d.ID)
		case s.gone[d.ID]:
			return fmt.Errorf("_id %d was deleted and is back", d.ID)
		case !s.there[d.ID] && !s.unsure[d.ID]:
			return fmt.Errorf("_id %d was never inserted", d.ID)
		}
		found[d.ID] = true
	}
	for id := range s.there {
		if !found[id] {
			return fmt.Errorf("_id %d was acknowledged and is not there", id)
		}
	}
	return nil
}

// registers are documents that are written, read, added to, and swapped if they have a value; a history of what clients saw is checked for linearizability.
type registers struct {
	mu    sync.Mutex
	ops   []porcupine.Operation
	began time.Time
	next  int64
}

const registerCount = 12

// registerOp is what a client does to one register.
type registerOp struct {
	key      int
	kind     string // "read", "write", "add" or "swap"
	from, to int64
}

// registerResult is what it saw; unknown without an answer.
type registerResult struct {
	value   int64
	swapped bool
	unknown bool
}

var registerModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		by := make([][]porcupine.Operation, registerCount)
		for _, op := range h {
			k := op.Input.(registerOp).key
			by[k] = append(by[k], op)
		}
		return by
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(int64), input.(registerOp), output.(registerResult)
		switch in.kind {
		case "read":
			return out.unknown || out.value == now, now
		case "write":
			return true, in.to
		case "add":
			return out.unknown || out.value == now+in.to, now + in.to
		}
		if now == in.from {
			return out.unknown || out.swapped, in.to
		}
		return out.unknown || !out.swapped, now
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

func (g *registers) step(ctx context.Context, c *mongo.Collection, client int, r *rand.Rand) error {
	g.mu.Lock()
	g.next++
	in := registerOp{key: r.IntN(registerCount), kind: []string{"read", "write", "add", "swap"}[r.IntN(4)], to: g.next}
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	filter := bson.D{{Key: "_id", Value: in.key}, {Key: "k", Value: in.key}}
	var doc struct{ V int64 }
	if in.kind == "swap" { // reads what it swaps first, outside of the history
		if err := c.FindOne(ctx, filter).Decode(&doc); err != nil {
			return err
		}
		in.from = doc.V
	}
	op := porcupine.Operation{ClientId: client, Input: in, Call: int64(time.Since(g.began))}
	var out registerResult
	var err error
	switch in.kind {
	case "read":
		err = c.FindOne(ctx, filter).Decode(&doc)
		out.value = doc.V
	case "write":
		_, err = c.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: in.to}}}})
	case "add":
		err = c.FindOneAndUpdate(ctx, filter, bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: in.to}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&doc)
		out.value = doc.V
	default:
		err = c.FindOneAndUpdate(ctx, append(filter, bson.E{Key: "v", Value: in.from}), bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: in.to}}}},
			options.FindOneAndUpdate().SetProjection(bson.D{{Key: "v", Value: 1}})).Err()
		out.swapped = err == nil
		if err == mongo.ErrNoDocuments {
			err = nil
		}
	}
	op.Return = int64(time.Since(g.began))
	if err != nil {
		if in.kind == "read" {
			return err // it changed nothing and saw nothing
		}
		out, op.Return = registerResult{unknown: true}, int64(1)<<60
	}
	op.Output = out
	g.mu.Lock()
	g.ops = append(g.ops, op)
	g.mu.Unlock()
	return err
}

// check looks for an order of the operations that explains what everybody saw.
func (g *registers) check(limit time.Duration) error {
	if got := porcupine.CheckOperationsTimeout(registerModel, g.ops, limit); got != porcupine.Ok {
		return fmt.Errorf("%d operations on registers: %s", len(g.ops), got)
	}
	return nil
}
