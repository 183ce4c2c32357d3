package merge

import (
	"container/heap"

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
}

// NewHeap makes a heap for a sort; proj tells where the sort fields are.
func NewHeap(s order.Sort, proj *Projection) *Heap { return &Heap{sort: s, proj: proj} }

// Push adds the head of a source that has none in the heap. The document's bytes must stay until it was popped.
func (h *Heap) Push(source int, doc bson.Raw) {
	heap.Push((*heads)(h), Head{Source: source, Doc: doc, key: h.proj.SortKey(nil, doc, h.sort)})
}

// Pop removes the first head; ok is false when there is none.
func (h *Heap) Pop() (head Head, ok bool) {
	if len(h.heads) == 0 {
		return Head{}, false
	}
	return heap.Pop((*heads)(h)).(Head), true
}

// Len is the number of heads.
func (h *Heap) Len() int { return len(h.heads) }

type heads Heap

func (h *heads) Len() int { return len(h.heads) }
func (h *heads) Less(i, j int) bool {
	if c := h.sort.CompareKeys(h.heads[i].key, h.heads[j].key); c != 0 {
		return c < 0
	}
	return h.heads[i].Source < h.heads[j].Source
}
func (h *heads) Swap(i, j int) { h.heads[i], h.heads[j] = h.heads[j], h.heads[i] }
func (h *heads) Push(x any)    { h.heads = append(h.heads, x.(Head)) }
func (h *heads) Pop() any {
	last := h.heads[len(h.heads)-1]
	h.heads = h.heads[:len(h.heads)-1]
	return last
}
