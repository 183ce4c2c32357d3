package router

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "split", Admin: true, Writes: true, Help: "divides a partition in two", Run: r.splitChunk},
		{Name: "moveChunk", Aliases: []string{"movechunk"}, Admin: true, Writes: true, Help: "moves a partition to another backend", Run: r.moveChunk},
		{Name: "moveRange", Admin: true, Writes: true, Help: "moves the partition that begins or ends at a bound", Run: r.moveRange},
		{Name: "mergeChunks", Admin: true, Writes: true, Help: "makes one partition of adjacent ones", Run: r.mergeChunks},
		{Name: "clearJumboFlag", Admin: true, Writes: true, Help: "does nothing: no partition is too large to move", Run: r.clearJumboFlag},
	}
})

// shardedNS returns the sharded collection that an admin command names; 118 NamespaceNotSharded otherwise.
func (r *Router) shardedNS(q *Request) (*partition.Collection, error) {
	ns, err := q.adminNS()
	if err != nil {
		return nil, err
	}
	c := r.cfg.Table.View().Collection(ns)
	if c == nil || !c.Sharded() {
		return nil, wire.Errorf(wire.NamespaceNotSharded, "namespace %s is not sharded", ns)
	}
	return c, nil
}

// chunkBound reads {field: bound}: a NumberLong as clients see positions, MinKey or MaxKey.
func chunkBound(c *partition.Collection, doc bson.Raw) (p shardkey.Position, end bool, err error) {
	elems, e := bsoncore.Document(doc).Elements()
	if e != nil || len(elems) != 1 || elems[0].Key() != c.Key.Path() {
		return 0, false, wire.Errorf(656451, "the bound must be of the form {%s: NumberLong(…)}", c.Key.Path())
	}
	v := elems[0].Value()
	p, end, ok := shardkey.ParseBound(bson.RawValue{Type: bson.Type(v.Type), Value: v.Data})
	if !ok {
		return 0, false, wire.Errorf(656451, "the bound of a hashed key is a NumberLong, MinKey or MaxKey: the position, as config.chunks shows it")
	}
	return p, end, nil
}

// chunkBounds reads [min, max].
func chunkBounds(c *partition.Collection, v bsoncore.Value) (rg shardkey.Range, err error) {
	arr, ok := v.ArrayOK()
	values, e := arr.Values()
	if !ok || e != nil || len(values) != 2 {
		return rg, wire.Errorf(wire.InvalidOptions, "bounds must be an array of two documents, [min, max]")
	}
	lo, lok := values[0].DocumentOK()
	hi, hok := values[1].DocumentOK()
	if !lok || !hok {
		return rg, wire.Errorf(wire.InvalidOptions, "bounds must be an array of two documents, [min, max]")
	}
	low, lowEnd, err := chunkBound(c, bson.Raw(lo))
	if err != nil {
		return rg, err
	}
	high, highEnd, err := chunkBound(c, bson.Raw(hi))
	if err != nil {
		return rg, err
	}
	rg = shardkey.Range{Lo: low}
	if !highEnd {
		rg.Hi = high
	}
	if lowEnd || !highEnd && high <= low {
		return rg, wire.Errorf(wire.BadValue, "the bounds are not in order")
	}
	return rg, nil
}

// findChunk finds the partition of a plain shard key value given as {field: value}.
func findChunk(c *partition.Collection, v bsoncore.Value) (*partition.Part, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, typeMismatch("find", v, "object")
	}
	t := c.Key.Target(bson.Raw(doc), true)
	if !t.Bound || len(t.Positions) != 1 {
		return nil, wire.Errorf(656450, "the find document must hold one value of the shard key %s", c.Key)
	}
	return c.At(t.Positions[0]), nil
}

// partAt finds the partition with exactly these bounds.
func partAt(c *partition.Collection, rg shardkey.Range) (*partition.Part, error) {
	for _, p := range c.Parts {
		if p.Range == rg {
			return p, nil
		}
	}
	return nil, wire.Errorf(656452, "no partition of %s has exactly the bounds %s", c.NS, rg)
}

func (r *Router) splitChunk(ctx context.Context, q *Request) (Reply, error) {
	c, err := r.shardedNS(q)
	if err != nil {
		return Reply{}, err
	}
	d := bsoncore.Document(q.Msg.Body)
	middle, find, bounds := d.Lookup("middle"), d.Lookup("find"), d.Lookup("bounds")
	given := 0
	for _, v := range []bsoncore.Value{middle, find, bounds} {
		if v.Type != 0 {
			given++
		}
	}
	if given != 1 {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "split needs exactly one of find, middle and bounds")
	}
	switch {
	case middle.Type != 0:
		doc, err := documentField("middle", middle)
		if err != nil {
			return Reply{}, err
		}
		at, end, err := chunkBound(c, doc)
		if err != nil {
			return Reply{}, err
		}
		if end || at == 0 {
			return Reply{}, wire.Errorf(wire.CannotSplit, "cannot split %s at the end of its space", c.NS)
		}
		return Reply{Body: okBody}, r.cfg.Reshaper.Split(ctx, c.NS, at)
	case find.Type != 0:
		p, err := findChunk(c, find)
		if err != nil {
			return Reply{}, err
		}
		return Reply{Body: okBody}, r.cfg.Reshaper.SplitMedian(ctx, c.NS, p.Range.Lo)
	}
	rg, err := chunkBounds(c, bounds)
	if err != nil {
		return Reply{}, err
	}
	p, err := partAt(c, rg)
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: okBody}, r.cfg.Reshaper.SplitMedian(ctx, c.NS, p.Range.Lo)
}

func (r *Router) moveChunk(ctx context.Context, q *Request) (Reply, error) {
	began := time.Now()
	c, err := r.shardedNS(q)
	if err != nil {
		return Reply{}, err
	}
	d := bsoncore.Document(q.Msg.Body)
	to, ok := d.Lookup("to").StringValueOK()
	if !ok {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "you have to specify where you want to move the chunk: to")
	}
	find, bounds := d.Lookup("find"), d.Lookup("bounds")
	if (find.Type != 0) == (bounds.Type != 0) {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "moveChunk needs exactly one of find and bounds")
	}
	var p *partition.Part
	if find.Type != 0 {
		p, err = findChunk(c, find)
	} else {
		var rg shardkey.Range
		if rg, err = chunkBounds(c, bounds); err == nil {
			p, err = partAt(c, rg)
		}
	}
	if err != nil {
		return Reply{}, err
	}
	return moved(began, r.cfg.Reshaper.Move(ctx, c.NS, p.Range, to))
}

func moved(began time.Time, err error) (Reply, error) {
	body := bsoncore.NewDocumentBuilder().AppendInt64("millis", time.Since(began).Milliseconds()).AppendDouble("ok", 1).Build()
	return Reply{Body: bson.Raw(body)}, err
}

// moveRange moves the partition that begins at min or ends at max. Where a bound lies within a partition, that is divided there first.
func (r *Router) moveRange(ctx context.Context, q *Request) (Reply, error) {
	began := time.Now()
	c, err := r.shardedNS(q)
	if err != nil {
		return Reply{}, err
	}
	d := bsoncore.Document(q.Msg.Body)
	to, ok := d.Lookup("toShard").StringValueOK()
	if !ok {
		return Reply{}, wire.Errorf(40414, "BSON field 'moveRange.toShard' is missing but a required field")
	}
	lo, hi := optional(d, "min"), optional(d, "max")
	if lo.Type == 0 && hi.Type == 0 {
		return Reply{}, wire.Errorf(wire.InvalidOptions, "moveRange needs min or max")
	}
	rg, err := r.rangeOf(ctx, c, lo, hi)
	if err != nil {
		return Reply{}, err
	}
	return moved(began, r.cfg.Reshaper.Move(ctx, c.NS, rg, to))
}

// optional is a field that may be missing, which null says too: shells send it for an argument that was not given.
func optional(d bsoncore.Document, name string) bsoncore.Value {
	if v := d.Lookup(name); v.Type != bsoncore.TypeNull && v.Type != bsoncore.TypeUndefined {
		return v
	}
	return bsoncore.Value{}
}

// rangeOf makes min and max bounds of one partition and returns its range.
func (r *Router) rangeOf(ctx context.Context, c *partition.Collection, lo, hi bsoncore.Value) (shardkey.Range, error) {
	var cuts []shardkey.Position
	inside := shardkey.Position(0)
	for i, v := range []bsoncore.Value{lo, hi} {
		if v.Type == 0 {
			continue
		}
		doc, err := documentField("moveRange bound", v)
		if err != nil {
			return shardkey.Range{}, err
		}
		p, end, err := chunkBound(c, doc)
		if err != nil {
			return shardkey.Range{}, err
		}
		if !end && p != 0 {
			cuts = append(cuts, p)
		}
		switch {
		case i == 0:
			inside = p
		case lo.Type == 0 && end:
			inside = c.Parts[len(c.Parts)-1].Range.Lo
		case lo.Type == 0:
			inside = p - 1
		}
	}
	for _, at := range cuts {
		err := r.cfg.Reshaper.Split(ctx, c.NS, at)
		var we *wire.Error
		if err != nil && !(errors.As(err, &we) && we.Code == wire.CannotSplit) {
			return shardkey.Range{}, err
		}
	}
	return r.cfg.Table.View().Collection(c.NS).At(inside).Range, nil
}

func (r *Router) mergeChunks(ctx context.Context, q *Request) (Reply, error) {
	c, err := r.shardedNS(q)
	if err != nil {
		return Reply{}, err
	}
	rg, err := chunkBounds(c, bsoncore.Document(q.Msg.Body).Lookup("bounds"))
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: okBody}, r.cfg.Reshaper.Merge(ctx, c.NS, rg)
}

// clearJumboFlag answers as a mongos does for a chunk without the flag, which is every one here: a partition can be moved whatever its size.
func (r *Router) clearJumboFlag(_ context.Context, q *Request) (Reply, error) {
	c, err := r.shardedNS(q)
	if err != nil {
		return Reply{}, err
	}
	find, bounds := bsoncore.Document(q.Msg.Body).Lookup("find"), bsoncore.Document(q.Msg.Body).Lookup("bounds")
	switch {
	case (find.Type == 0) == (bounds.Type == 0):
		return Reply{}, wire.Errorf(wire.InvalidOptions, "clearJumboFlag needs either find or bounds")
	case find.Type != 0:
		if find.Type != bsoncore.TypeEmbeddedDocument {
			return Reply{}, typeMismatch("clearJumboFlag.find", find, "object")
		}
		if _, err := findChunk(c, find); err != nil {
			return Reply{}, wire.Errorf(51260, "no shard key found in chunk query %s", find)
		}
	default:
		rg, err := chunkBounds(c, bounds)
		if err != nil {
			return Reply{}, err
		}
		if _, err := partAt(c, rg); err != nil {
			return Reply{}, wire.Errorf(51261, "no chunk of %s has exactly the bounds %s", c.NS, rg)
		}
	}
	return Reply{Body: okBody}, nil
}
