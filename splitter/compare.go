package splitter

import (
	"bytes"
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

const (
	// compareBatch is how many documents of a home are read at once.
	compareBatch = 1000
	// maxLoose and maxLooseBytes bound the documents that have no counterpart yet. While nothing is wrong there are as many as are changed while both sides
	// are read.
	maxLoose      = 100_000
	maxLooseBytes = 64 << 20
)

// compare reads inputs and outputs once, side by side in the order of _id, and returns the ids of the documents that are not byte for byte the same, or not in
// the output they belong to. It needs to know nothing of that order, which a default collation changes, but that it is the same on both sides: what
// has no counterpart at once is kept until it comes.
func (r *reshape) compare(ctx context.Context) ([]bson.RawValue, error) {
	one, many, place := r.sides()
	lone, err := r.inOrder(ctx, one)
	if err != nil {
		return nil, err
	}
	defer lone.close(ctx)
	parts := make([]*scan, len(many))
	for i, h := range many {
		if parts[i], err = r.inOrder(ctx, h); err != nil {
			return nil, err
		}
		defer parts[i].close(ctx)
	}
	l := newLoose(len(many))
	for lone.next(ctx) {
		i := place(lone.doc)
		if parts[i].next(ctx) {
			if sameDocument(lone.doc, parts[i].doc) {
				continue
			}
			l.add(i, 1, parts[i].doc)
		}
		l.add(i, 0, lone.doc)
		if l.tooMany() {
			return nil, retryable{errors.New("inputs and outputs differ in too many documents")}
		}
	}
	if lone.err != nil {
		return nil, retryable{lone.err}
	}
	for i, p := range parts {
		for p.next(ctx) && !l.tooMany() {
			l.add(i, 1, p.doc)
		}
		if p.err != nil {
			return nil, retryable{p.err}
		}
	}
	if l.tooMany() {
		return nil, retryable{errors.New("inputs and outputs differ in too many documents")}
	}
	return l.ids(), nil
}

// sameDocument reports whether two documents are byte for byte the same, but for the place of _id,
// which no copy keeps.
func sameDocument(a, b bson.Raw) bool {
	return bytes.Equal(a, b) || bytes.Equal(idFirst(a), idFirst(b))
}

// sides returns the side of a reshape that is one home, the homes of the other, and which of these a document belongs to.
func (r *reshape) sides() (one partition.Home, many []partition.Home, place func(bson.Raw) int) {
	if len(r.inputs) == 1 {
		return r.inputs[0].Home, homesOfOutputs(r.outputs), r.place
	}
	return r.outputs[0].Home, homesOfParts(r.inputs), func(doc bson.Raw) int {
		return r.among(doc, len(r.inputs), func(i int) shardkey.Range { return r.inputs[i].Range })
	}
}

// inOrder reads a home in the order of _id.
func (r *reshape) inOrder(ctx context.Context, h partition.Home) (*scan, error) {
	c, err := r.s.scan(ctx, h, r.atOnce(compareBatch), bson.D{{Key: "_id", Value: 1}})
	if err != nil {
		return nil, retryable{err}
	}
	return c, nil
}

// loose are documents whose counterpart has not come: for each home of the many, those of the lone side and those of the home, by _id.
type loose struct {
	docs  [][2]map[string]bson.Raw
	n     int
	bytes int
}

func newLoose(homes int) *loose {
	l := &loose{docs: make([][2]map[string]bson.Raw, homes)}
	for i := range l.docs {
		l.docs[i] = [2]map[string]bson.Raw{{}, {}}
	}
	return l
}

// add keeps a copy of the document until it comes on the other side with the same bytes.
func (l *loose) add(home, side int, doc bson.Raw) {
	k := idKey(doc)
	if other, there := l.docs[home][1-side][k]; there && sameDocument(other, doc) {
		delete(l.docs[home][1-side], k)
		l.n--
		l.bytes -= len(doc)
		return
	}
	l.docs[home][side][k] = bytes.Clone(doc)
	l.n++
	l.bytes += len(doc)
}

func (l *loose) tooMany() bool { return l.n > maxLoose || l.bytes > maxLooseBytes }

// ids are those of the documents that are left, each once.
func (l *loose) ids() []bson.RawValue {
	var ids []bson.RawValue
	seen := map[string]bool{}
	for _, sides := range l.docs {
		for _, docs := range sides {
			for k, doc := range docs {
				if !seen[k] {
					seen[k] = true
					ids = append(ids, doc.Lookup("_id"))
				}
			}
		}
	}
	return ids
}
