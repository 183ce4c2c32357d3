package differential

import "go.mongodb.org/mongo-driver/v2/bson"

func (g *generator) insertRange(c collection, from, to int) Step {
	docs := bson.A{}
	for i := from; i < to; i++ {
		docs = append(docs, c.doc(g.r, i))
	}
	return Step{Cmd: bson.D{{Key: "insert", Value: c.name}, {Key: "documents", Value: docs}}}
}

func (g *generator) insert(c collection) Step {
	docs := bson.A{}
	for range pick(g, 1, 1, 2, 5, 15) {
		docs = append(docs, c.doc(g.r, g.doc()))
	}
	return g.maybeTwice(Step{Cmd: g.maybeUnordered(bson.D{{Key: "insert", Value: c.name}, {Key: "documents", Value: docs}})}, true)
}

func (g *generator) maybeUnordered(cmd bson.D) bson.D {
	if g.one(2) {
		cmd = append(cmd, bson.E{Key: "ordered", Value: g.one(3)})
	}
	return cmd
}

// maybeTwice repeats a write whose every statement is bound to a partition.
func (g *generator) maybeTwice(s Step, bound bool) Step {
	s.Twice = g.c.Repeats && bound && g.one(3)
	return s
}

// operators is an update that does not touch the key; some of them fail on some documents.
func (g *generator) operators(c collection, i int) any {
	r := g.r
	u := pick(g,
		bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: value(r)}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "m", Value: int64(2)}}}}, // fails where m is a string
		bson.D{{Key: "$unset", Value: bson.D{{Key: "v", Value: ""}}}},
		bson.D{{Key: "$push", Value: bson.D{{Key: "l", Value: int32(r.IntN(6))}}}},
		bson.D{{Key: "$pull", Value: bson.D{{Key: "l", Value: int32(r.IntN(6))}}}},
		bson.D{{Key: "$max", Value: bson.D{{Key: "n", Value: int32(r.IntN(10))}}}, {Key: "$set", Value: bson.D{{Key: "w", Value: pick(g, "red", "green")}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "_id", Value: id(r, pick(g, i, g.doc()))}}}}, // an equal one passes, another is 66
		bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(1)}}}, {Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}},
		bson.D{{Key: "$mul", Value: bson.D{{Key: "n", Value: int32(1)}}}},
		bson.D{{Key: "$rename", Value: bson.D{{Key: "w", Value: "word"}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "w", Value: "blue"}}}, {Key: "$unset", Value: bson.D{{Key: "word", Value: 1}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "l.0", Value: int32(7)}}}},
	)
	switch {
	case g.one(6) && c.key == "k":
		return bson.D{{Key: "$set", Value: bson.D{{Key: "k", Value: key(r, i)}, {Key: "n", Value: int32(3)}}}} // as every save() does
	case g.one(8):
		return bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$add", Value: bson.A{"$n", int32(1)}}}}}}}}
	}
	return u
}

// update is one statement for document i or nothing. The second result says whether its filter binds the key.
func (g *generator) update(c collection, i int) (bson.D, bool) {
	filter, bound := g.unique(c, i), false
	if g.one(2) {
		filter, bound = g.bound(c, i), true
	}
	switch g.r.IntN(8) {
	case 0, 1: // a replacement, of the document by its _id
		d := c.doc(g.r, i)
		filter = bson.D{{Key: "_id", Value: d[0].Value}}
		if g.one(2) {
			filter = g.bound(c, i)
			d = d[1:] // the _id comes from the document or the filter
			bound = true
		} else {
			bound = c.key == "_id"
		}
		s := bson.D{{Key: "q", Value: filter}, {Key: "u", Value: d}}
		if g.one(2) {
			s = append(s, bson.E{Key: "upsert", Value: true})
		}
		return s, bound
	case 2: // an upsert with operators
		set := bson.D{{Key: "u", Value: int32(i)}, {Key: "w", Value: "red"}}
		return bson.D{{Key: "q", Value: g.bound(c, i)}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}, {Key: "$setOnInsert", Value: set}}}, {Key: "upsert", Value: true}}, true
	}
	return bson.D{{Key: "q", Value: filter}, {Key: "u", Value: g.operators(c, i)}}, bound
}

func (g *generator) updateOne(c collection) Step {
	statements, bound := bson.A{}, true
	seen := map[int]bool{}
	for range pick(g, 1, 1, 1, 3, 8) {
		i := g.doc()
		if seen[i] {
			continue // the order of unordered statements on one document is open
		}
		seen[i] = true
		s, b := g.update(c, i)
		statements, bound = append(statements, s), bound && b
	}
	return g.maybeTwice(Step{Cmd: g.maybeUnordered(bson.D{{Key: "update", Value: c.name}, {Key: "updates", Value: statements}})}, bound)
}

// updateMany updates in ways that fail for no document, since how far a failed one comes is open.
func (g *generator) updateMany(c collection) Step {
	u := pick[any](g,
		bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: value(g.r)}}}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(g.r.IntN(10))}}}, {Key: "$unset", Value: bson.D{{Key: "l", Value: 1}}}},
		bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "w", Value: "green"}}}}},
	)
	s := bson.D{{Key: "q", Value: g.filter(c)}, {Key: "u", Value: u}, {Key: "multi", Value: true}}
	return Step{Cmd: bson.D{{Key: "update", Value: c.name}, {Key: "updates", Value: bson.A{s}}}}
}

func (g *generator) delete(c collection) Step {
	if g.one(8) {
		f := append(c.keyFilter(g.r, g.doc()), bson.E{Key: "n", Value: int32(g.r.IntN(10))})
		return Step{Cmd: bson.D{{Key: "delete", Value: c.name}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: f}, {Key: "limit", Value: int32(0)}}}}}}
	}
	statements, bound := bson.A{}, true
	for range pick(g, 1, 1, 2, 5) {
		i := g.doc()
		f := g.bound(c, i)
		if g.one(2) {
			f, bound = g.unique(c, i), false
		}
		statements = append(statements, bson.D{{Key: "q", Value: f}, {Key: "limit", Value: int32(1)}})
	}
	return g.maybeTwice(Step{Cmd: g.maybeUnordered(bson.D{{Key: "delete", Value: c.name}, {Key: "deletes", Value: statements}})}, bound)
}

func (g *generator) findAndModify(c collection) Step {
	i := g.doc()
	f, bound := g.unique(c, i), false
	if g.one(2) {
		f, bound = g.bound(c, i), true
	}
	cmd := bson.D{{Key: "findAndModify", Value: c.name}, {Key: "query", Value: f}}
	switch g.r.IntN(5) {
	case 0:
		cmd = append(cmd, bson.E{Key: "remove", Value: true})
	case 1:
		d := c.doc(g.r, i)
		cmd = append(cmd, bson.E{Key: "update", Value: d})
		if bound && g.one(2) {
			cmd = append(cmd, bson.E{Key: "upsert", Value: true})
		}
	default:
		cmd = append(cmd, bson.E{Key: "update", Value: g.operators(c, i)})
	}
	if cmd[2].Key == "update" && g.one(2) {
		cmd = append(cmd, bson.E{Key: "new", Value: true})
	}
	if g.one(3) {
		cmd = append(cmd, bson.E{Key: "sort", Value: bson.D{{Key: "n", Value: int32(1)}}})
	}
	if g.one(3) {
		cmd = append(cmd, bson.E{Key: "fields", Value: bson.D{{Key: "v", Value: int32(1)}, {Key: "n", Value: int32(1)}}})
	}
	return g.maybeTwice(Step{Cmd: cmd}, bound)
}

// wrong is a command that fails, or does nothing, in a way of its own.
func (g *generator) wrong(c collection) Step {
	one := int32(1)
	cmd := pick(g,
		bson.D{{Key: "find", Value: c.name}, {Key: "filter", Value: bson.D{{Key: "v", Value: bson.D{{Key: "$nope", Value: one}}}}}},
		bson.D{{Key: "find", Value: c.name}, {Key: "filter", Value: bson.D{{Key: "$nope", Value: one}}}},
		bson.D{{Key: "find", Value: c.name}, {Key: "filter", Value: "a string"}},
		bson.D{{Key: "find", Value: c.name}, {Key: "unheardOf", Value: one}},
		bson.D{{Key: "find", Value: c.name}, {Key: "projection", Value: bson.D{{Key: "v", Value: one}, {Key: "w", Value: int32(0)}}}},
		bson.D{{Key: "getMore", Value: int64(987654321987)}, {Key: "collection", Value: c.name}},
		bson.D{{Key: "insert", Value: c.name}, {Key: "documents", Value: bson.A{}}},
		bson.D{{Key: "delete", Value: c.name}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: g.bound(c, 1)}, {Key: "limit", Value: int32(2)}}}}},
		bson.D{{Key: "update", Value: c.name}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: g.bound(c, 1)}, {Key: "u", Value: bson.D{{Key: "$nope", Value: bson.D{{Key: "v", Value: one}}}}}}}}},
		bson.D{{Key: "count", Value: c.name}, {Key: "query", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$in", Value: one}}}}}},
		bson.D{{Key: "distinct", Value: c.name}, {Key: "key", Value: one}},
		bson.D{{Key: "aggregate", Value: c.name}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$nope", Value: bson.D{}}}}}, {Key: "cursor", Value: bson.D{}}},
		bson.D{{Key: "aggregate", Value: c.name}, {Key: "pipeline", Value: bson.A{}}},
		bson.D{{Key: "aggregate", Value: c.name}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$limit", Value: int32(0)}}}}, {Key: "cursor", Value: bson.D{}}},
		bson.D{{Key: "findAndModify", Value: c.name}, {Key: "query", Value: g.bound(c, 1)}},
		bson.D{{Key: "findAndModify", Value: c.name}, {Key: "query", Value: g.bound(c, 1)}, {Key: "remove", Value: true}, {Key: "update", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: one}}}}}},
		bson.D{{Key: "find", Value: "nothinghere"}},
		bson.D{{Key: "count", Value: "nothinghere"}},
		bson.D{{Key: "unheardOf", Value: one}},
	)
	return Step{Cmd: cmd, Drain: cmd[0].Key == "find"}
}
