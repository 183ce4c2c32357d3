package differential

import "go.mongodb.org/mongo-driver/v2/bson"

// byID is the order that makes $push, $first, $last and $mergeObjects definite.
var byID = bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: int32(1)}}}}

func (g *generator) aggregate(c collection) Step {
	s := Step{Drain: true}
	pipeline := bson.A{}
	if g.one(2) {
		pipeline = append(pipeline, bson.D{{Key: "$match", Value: g.filter(c)}})
	}
	switch g.r.IntN(8) {
	case 0, 1, 2:
		pipeline = append(pipeline, g.group(&s)...)
	case 3:
		pipeline = append(pipeline, bson.D{{Key: "$sort", Value: bson.D{{Key: pick(g, "n", "w", "u"), Value: int32(-1)}, {Key: "_id", Value: int32(1)}}}},
			bson.D{{Key: "$skip", Value: int32(g.r.IntN(9))}}, bson.D{{Key: "$limit", Value: int32(1 + g.r.IntN(30))}})
		s.Ordered = true
		if g.one(2) {
			pipeline = append(pipeline, bson.D{{Key: "$project", Value: bson.D{{Key: "w", Value: int32(1)}, {Key: "double", Value: bson.D{{Key: "$multiply", Value: bson.A{"$n", int32(2)}}}}}}})
		}
	case 4:
		pipeline = append(pipeline, bson.D{{Key: "$count", Value: "all"}})
	case 5:
		pipeline = append(pipeline, bson.D{{Key: "$sortByCount", Value: pick(g, "$w", "$n")}})
	case 6:
		pipeline = append(pipeline, bson.D{{Key: "$unwind", Value: pick[any](g, "$l", bson.D{{Key: "path", Value: "$l"}, {Key: "preserveNullAndEmptyArrays", Value: true}})}})
		if g.one(2) {
			pipeline = append(pipeline, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$l"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: int32(1)}}}}}},
				bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: int32(1)}}}})
			s.Ordered, s.Loose = true, true
		}
	default:
		pipeline = append(pipeline, bson.D{{Key: "$addFields", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$toUpper", Value: "$w"}}}}}},
			bson.D{{Key: "$sort", Value: bson.D{{Key: "x", Value: int32(1)}, {Key: "_id", Value: int32(-1)}}}})
		s.Ordered = true
	}
	cursor := bson.D{}
	if g.one(3) {
		cursor = bson.D{{Key: "batchSize", Value: int32(pick(g, 0, 1, 2, 10))}}
		s.Batch = int32(pick(g, 0, 1, 3))
	}
	s.Cmd = bson.D{{Key: "aggregate", Value: c.name}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: cursor}}
	return s
}

// group is a $group whose result does not depend on the order in which it sees documents, or a sort before it.
func (g *generator) group(s *Step) bson.A {
	s.Loose = true
	by := pick[any](g, nil, "$w", "$n", "$k", bson.D{{Key: "w", Value: "$w"}, {Key: "n", Value: "$n"}})
	fields := bson.D{{Key: "_id", Value: by}}
	sorted := g.one(2)
	add := func(name, op string, of any) {
		fields = append(fields, bson.E{Key: name, Value: bson.D{{Key: op, Value: of}}})
	}
	for range 1 + g.r.IntN(4) {
		switch g.r.IntN(10) {
		case 0:
			add("sum"+suffix(fields), "$sum", pick[any](g, "$m", "$n", int32(1), int64(2), 0.5))
		case 1:
			add("avg"+suffix(fields), "$avg", pick(g, "$m", "$n", "$w"))
		case 2:
			add("min"+suffix(fields), "$min", pick(g, "$n", "$w", "$u"))
		case 3:
			add("max"+suffix(fields), "$max", pick(g, "$n", "$w", "$u"))
		case 4:
			add("count"+suffix(fields), "$count", bson.D{})
		case 5:
			name := "set" + suffix(fields)
			add(name, "$addToSet", pick(g, "$n", "$w"))
			s.Sets = append(s.Sets, name)
		case 6:
			name := "push" + suffix(fields)
			add(name, "$push", pick(g, "$n", "$u", "$l"))
			if !sorted {
				s.Sets = append(s.Sets, name)
			}
		default:
			if sorted {
				op := pick(g, "$first", "$last", "$mergeObjects")
				of := pick(g, "$v", "$u", "$w")
				if op == "$mergeObjects" {
					of = "$a"
				}
				add(op[1:]+suffix(fields), op, of)
			}
		}
	}
	stages := bson.A{bson.D{{Key: "$group", Value: fields}}}
	if sorted {
		stages = bson.A{byID, stages[0]}
	}
	if g.one(2) {
		stages = append(stages, bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: int32(1)}}}})
		s.Ordered = true
		if g.one(2) {
			stages = append(stages, bson.D{{Key: "$limit", Value: int32(3)}})
		}
	}
	return stages
}

func suffix(fields bson.D) string { return string(rune('0' + len(fields))) }
