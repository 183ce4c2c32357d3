package merge

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/order"
)

// Head is the first document of one source, waiting in a Heap.
type Head struct {
	// Source says which source it came from; equal keys come out in order of it.
	Source int
	Doc    bson.Raw
	key    []bsoncore.Value
}

// Heap brings the heads of sorted sources into one order.
type Heap struct {
	sort  order.Sort
	proj  *Projection
	heads []Head
	// popped says that the first of heads has been taken: mostly the next of the same source comes into its place, which costs half of a removal and an insertion.
	popped bool
	// keys are the memory of the sources' keys.
	keys [][]bsoncore.Value
	// spare is the memory of the key that Leads compares.
	spare []bsoncore.Value
}

// NewHeap makes a heap for a sort; proj tells where the sort fields are.
func NewHeap(s order.Sort, proj *Projection) *Heap { return &Heap{sort: s, proj: proj} }

// Push adds the head of a source that has none in the heap. The document's bytes must stay until it was popped.
func (h *Heap) Push(source int, doc bson.Raw) {
	for source >= len(h.keys) {
		h.keys = append(h.keys, nil)
	}
	h.keys[source] = h.proj.SortKey(h.keys[source][:0], doc, h.sort)
	head := Head{Source: source, Doc: doc, key: h.keys[source]}
	if h.popped {
		h.popped = false
		h.heads[0] = head
		h.down()
		return
	}
	h.heads = append(h.heads, head)
	h.up()
}

// Pop removes the first head; ok is false when there is none.
func (h *Heap) Pop() (head Head, ok bool) {
	h.settle()
	if len(h.heads) == 0 {
		return Head{}, false
	}
	h.popped = true
	return h.heads[0], true
}

// Peek returns the source that the next Pop is from, and false when there is none.
func (h *Heap) Peek() (source int, ok bool) {
	h.settle()
	if len(h.heads) == 0 {
		return 0, false
	}
	return h.heads[0].Source, true
}

// Leads reports whether a document of the source that the next Pop is from comes before the heads of all other sources, and so does everything that its source has
// before it.
func (h *Heap) Leads(doc bson.Raw) bool {
	h.settle()
	if len(h.heads) == 0 {
		return false
	}
	h.spare = h.proj.SortKey(h.spare[:0], doc, h.sort)
	for i := 1; i < len(h.heads) && i <= 2; i++ { // the second of all is one of the first's children
		c := h.sort.CompareKeys(h.spare, h.heads[i].key)
		if c > 0 || c == 0 && h.heads[0].Source > h.heads[i].Source {
			return false
		}
	}
	return true
}

// Len is the number of heads.
func (h *Heap) Len() int {
	if h.popped {
		return len(h.heads) - 1
	}
	return len(h.heads)
}

// settle closes the gap that the last Pop left.
func (h *Heap) settle() {
	if !h.popped {
		return
	}
	h.popped = false
	last := len(h.heads) - 1
	h.heads[0] = h.heads[last]
	h.heads[last] = Head{}
	h.heads = h.heads[:last]
	h.down()
}

func (h *Heap) before(i, j int) bool {
	if c := h.sort.CompareKeys(h.heads[i].key, h.heads[j].key); c != 0 {
		return c < 0
	}
	return h.heads[i].Source < h.heads[j].Source
}

// up moves the last head to its place.
func (h *Heap) up() {
	for i := len(h.heads) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.before(i, parent) {
			return
		}
		h.heads[i], h.heads[parent] = h.heads[parent], h.heads[i]
		i = parent
	}
}

// down moves the first head to its place.
func (h *Heap) down() {
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.heads); child++ {
			if h.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.heads[i], h.heads[least] = h.heads[least], h.heads[i]
		i = least
	}
}
