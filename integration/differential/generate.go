package differential

import (
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// generator makes steps. All its randomness is r's.
type generator struct {
	r *rand.Rand
	c Config
}

func (g *generator) one(in int) bool { return g.r.IntN(in) == 0 }

func pick[T any](g *generator, of ...T) T { return of[g.r.IntN(len(of))] }

func (g *generator) coll() collection { return pick(g, collections...) }

func (g *generator) doc() int { return g.r.IntN(documents) }

func (g *generator) step() Step {
	c := g.coll()
	switch g.r.IntN(20) {
	case 0, 1, 2:
		return g.insert(c)
	case 3, 4, 5:
		return g.updateOne(c)
	case 6:
		return g.updateMany(c)
	case 7, 8:
		return g.delete(c)
	case 9, 10:
		return g.findAndModify(c)
	case 11, 12, 13, 14:
		return g.find(c)
	case 15:
		return g.count(c)
	case 16:
		return g.distinct(c)
	case 17, 18:
		return g.aggregate(c)
	default:
		return g.wrong(c)
	}
}

// filter matches any number of documents; it may bind the key, a few values of it, or nothing.
func (g *generator) filter(c collection) bson.D {
	r := g.r
	switch r.IntN(16) {
	case 0:
		return bson.D{}
	case 1, 2:
		return c.keyFilter(r, g.doc())
	case 3:
		return bson.D{{Key: "_id", Value: id(r, g.doc())}}
	case 4:
		in := bson.A{}
		for range r.IntN(5) {
			in = append(in, c.keyFilter(r, g.doc())[0].Value)
		}
		return bson.D{{Key: c.keyFilter(r, 0)[0].Key, Value: bson.D{{Key: "$in", Value: in}}}}
	case 5:
		return bson.D{{Key: "n", Value: bson.D{{Key: pick(g, "$gt", "$gte", "$lt", "$lte", "$ne", "$eq"), Value: number(r, r.IntN(10))}}}}
	case 6:
		return bson.D{{Key: "$or", Value: bson.A{c.keyFilter(r, g.doc()), c.keyFilter(r, g.doc())}}}
	case 7:
		return bson.D{{Key: "$or", Value: bson.A{c.keyFilter(r, g.doc()), bson.D{{Key: "n", Value: int32(r.IntN(10))}}}}}
	case 8:
		return bson.D{{Key: "$and", Value: bson.A{c.keyFilter(r, g.doc()), bson.D{{Key: "n", Value: bson.D{{Key: "$gt", Value: int32(r.IntN(8))}}}}}}}
	case 9:
		i := g.doc()
		return bson.D{{Key: "$and", Value: bson.A{c.keyFilter(r, i), c.keyFilter(r, pick(g, i, g.doc()))}}}
	case 10:
		return bson.D{{Key: "w", Value: pick[any](g, "red", bson.Regex{Pattern: "^(r|g)"}, bson.D{{Key: "$in", Value: bson.A{"red", "blue"}}})}}
	case 11:
		return bson.D{{Key: "v", Value: pick(g, bson.D{{Key: "$exists", Value: g.one(2)}}, bson.D{{Key: "$type", Value: pick(g, "number", "string", "array")}})}}
	case 12:
		return bson.D{{Key: "l", Value: int32(r.IntN(6))}}
	case 13:
		f := c.keyFilter(r, g.doc())
		return bson.D{{Key: f[0].Key, Value: bson.D{{Key: pick(g, "$ne", "$eq"), Value: f[0].Value}}}}
	case 14:
		return bson.D{{Key: "u", Value: bson.D{{Key: "$lt", Value: int32(r.IntN(documents))}}}, {Key: "w", Value: bson.D{{Key: "$ne", Value: "red"}}}}
	default:
		f := c.keyFilter(r, g.doc())
		return bson.D{{Key: "$expr", Value: bson.D{{Key: "$eq", Value: bson.A{"$" + f[0].Key, bson.D{{Key: "$literal", Value: f[0].Value}}}}}}}
	}
}

// unique matches document i or nothing.
func (g *generator) unique(c collection, i int) bson.D {
	r := g.r
	switch r.IntN(6) {
	case 0:
		return bson.D{{Key: "_id", Value: id(r, i)}}
	case 1:
		return bson.D{{Key: "u", Value: number(r, i)}}
	case 2:
		return append(c.keyFilter(r, i), bson.E{Key: "u", Value: int32(i)})
	case 3:
		return bson.D{{Key: "u", Value: int32(i)}, {Key: "n", Value: bson.D{{Key: "$lt", Value: int32(r.IntN(12))}}}}
	case 4:
		return bson.D{{Key: "_id", Value: id(r, i)}, {Key: "w", Value: bson.D{{Key: "$ne", Value: "blue"}}}}
	}
	return g.bound(c, i)
}

// bound matches document i or nothing, and binds key and _id.
func (g *generator) bound(c collection, i int) bson.D {
	f := bson.D{{Key: "_id", Value: id(g.r, i)}}
	if c.key != "_id" {
		f = append(f, c.keyFilter(g.r, i)...)
	}
	return f
}

// sort is a total order, or nothing.
func (g *generator) sort() bson.D {
	dir := func() int32 { return pick(g, int32(1), int32(-1)) }
	switch g.r.IntN(5) {
	case 0:
		return nil
	case 1:
		return bson.D{{Key: "_id", Value: dir()}}
	case 2:
		return bson.D{{Key: "v", Value: dir()}, {Key: "_id", Value: dir()}}
	case 3:
		return bson.D{{Key: "w", Value: dir()}, {Key: pick(g, "v", "l", "m", "v.x"), Value: dir()}, {Key: "_id", Value: dir()}}
	default:
		return bson.D{{Key: "n", Value: dir()}, {Key: "_id", Value: dir()}}
	}
}

func sortsBy(cmd bson.D, name string) bool {
	for _, e := range cmd {
		if order, ok := e.Value.(bson.D); ok && e.Key == "sort" {
			for _, f := range order {
				if f.Key == name {
					return true
				}
			}
		}
	}
	return false
}

func (g *generator) projection() bson.D {
	return pick(g,
		bson.D{{Key: "v", Value: int32(1)}},
		bson.D{{Key: "v", Value: true}, {Key: "_id", Value: int32(0)}},
		bson.D{{Key: "n", Value: int32(0)}},
		bson.D{{Key: "_id", Value: int32(0)}, {Key: "v", Value: int32(0)}},
		bson.D{{Key: "_id", Value: int32(1)}},
		bson.D{{Key: "l", Value: bson.D{{Key: "$slice", Value: int32(1)}}}},
		bson.D{{Key: "a.b", Value: int32(1)}, {Key: "w", Value: int32(1)}},
		bson.D{{Key: "v.x", Value: int32(0)}},
		bson.D{{Key: "s", Value: bson.D{{Key: "$concat", Value: bson.A{"$w", "!"}}}}, {Key: "n", Value: int32(1)}},
		bson.D{{Key: "l", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "$gt", Value: int32(2)}}}}}},
	)
}

func (g *generator) find(c collection) Step {
	cmd := bson.D{{Key: "find", Value: c.name}}
	if !g.one(8) {
		cmd = append(cmd, bson.E{Key: "filter", Value: g.filter(c)})
	}
	s := Step{Drain: true}
	if order := g.sort(); order != nil {
		s.Ordered = true
		cmd = append(cmd, bson.E{Key: "sort", Value: order})
		if g.one(2) {
			cmd = append(cmd, bson.E{Key: "skip", Value: number(g.r, g.r.IntN(20))})
		}
		if g.one(2) {
			cmd = append(cmd, bson.E{Key: "limit", Value: number(g.r, g.r.IntN(30))})
		}
	}
	// A sort by a field that the projection changes is refused over several partitions (115), so it is tested apart.
	if projection := g.projection(); g.one(2) && !(sortsBy(cmd, "l") && projection[0].Key == "l") {
		cmd = append(cmd, bson.E{Key: "projection", Value: projection})
	}
	if g.one(2) {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: int32(pick(g, 0, 1, 2, 3, 7, 20, 1000))})
		s.Batch = int32(pick(g, 0, 1, 2, 5, 50))
	}
	if s.Ordered && g.one(12) {
		cmd = append(cmd, bson.E{Key: "singleBatch", Value: true})
	}
	if !s.Ordered && g.one(15) {
		s.Drain, s.Kill = false, true
		cmd = bson.D{{Key: "find", Value: c.name}, {Key: "batchSize", Value: int32(1)}}
	}
	s.Cmd = cmd
	return s
}

func (g *generator) count(c collection) Step {
	cmd := bson.D{{Key: "count", Value: c.name}}
	if !g.one(6) {
		cmd = append(cmd, bson.E{Key: "query", Value: g.filter(c)})
	}
	if g.one(3) {
		cmd = append(cmd, bson.E{Key: "skip", Value: int32(g.r.IntN(10))})
	}
	if g.one(3) {
		cmd = append(cmd, bson.E{Key: "limit", Value: int32(g.r.IntN(20))})
	}
	return Step{Cmd: cmd}
}

func (g *generator) distinct(c collection) Step {
	name := pick(g, "w", "n", "v", "l", "k", "a.b", "v.x", "_id")
	cmd := bson.D{{Key: "distinct", Value: c.name}, {Key: "key", Value: name}}
	if !g.one(3) {
		cmd = append(cmd, bson.E{Key: "query", Value: g.filter(c)})
	}
	return Step{Cmd: cmd, Loose: true, Sets: []string{"values"}}
}
