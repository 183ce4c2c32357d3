package splitter

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey"
)

// A misplaced document is in a partition that does not hold its key's position, or has no valid key: somebody wrote to the backend directly, or its server changed the
// key on its way in. A request with the key does not find it. A reshape must not lose it and must not fail because of it, so it stays with
// the partitions it is in: it goes to the first output.

// maxMisplacedLogged bounds how many misplaced documents one reshape logs.
const maxMisplacedLogged = 100

// among returns the index of the range that holds a document's position. A misplaced document counts to the first range.
func (r *reshape) among(doc bson.Raw, ranges int, at func(i int) shardkey.Range) int {
	pos, err := r.coll.Key.Position(doc)
	if err == nil {
		for i := range ranges {
			if at(i).Contains(pos) {
				return i
			}
		}
	}
	r.logMisplaced(doc, pos, err)
	return 0
}

// logMisplaced logs a misplaced document, once.
func (r *reshape) logMisplaced(doc bson.Raw, pos shardkey.Position, why error) {
	id := doc.Lookup("_id")
	r.mu.Lock()
	known := slices.Contains(r.misplaced, valueKey(id))
	if !known && len(r.misplaced) < maxMisplacedLogged {
		r.misplaced = append(r.misplaced, valueKey(id))
	} else {
		known = true
	}
	r.mu.Unlock()
	if known {
		return
	}
	var in []string
	for _, p := range r.inputs {
		in = append(in, p.Physical+" "+p.Range.String())
	}
	r.s.log.Warn().Str("ns", r.coll.NS).Stringer("id", id).Strs("partitions", in).Int64("position", pos.Int64()).AnErr("key", why).
		Msg("a document lies in a partition that does not hold its shard key: requests with the key do not find it; delete it there and insert it through the proxy")
}
