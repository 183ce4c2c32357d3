package merge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey/order"
)

func raw(t testing.TB, d any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parseSort(t testing.TB, d bson.D) order.Sort {
	t.Helper()
	s, err := order.ParseSort(raw(t, d))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// merged takes everything out of a heap over sorted sources.
func merged(s order.Sort, p *Projection, sources [][]bson.Raw) []bson.Raw {
	h := NewHeap(s, p)
	at := make([]int, len(sources))
	push := func(i int) {
		if at[i] < len(sources[i]) {
			h.Push(i, sources[i][at[i]])
			at[i]++
		}
	}
	for i := range sources {
		push(i)
	}
	var out []bson.Raw
	for {
		head, ok := h.Pop()
		if !ok {
			return out
		}
		out = append(out, p.Finish(head.Doc))
		push(head.Source)
	}
}

func randomValue(r *rand.Rand, depth int) any {
	dec, _ := bson.ParseDecimal128([]string{"1", "0.1", "-3", "NaN", "1E+3"}[r.IntN(5)])
	choices := []any{nil, int32(r.IntN(5)), int64(r.IntN(5)), float64(r.IntN(9)) / 2, dec, "s", "t", true, false, math.NaN(), math.Inf(-1),
		bson.MinKey{}, bson.MaxKey{}, bson.DateTime(r.IntN(3)), bson.ObjectID{byte(r.IntN(3))}, bson.A{}, bson.Undefined{}}
	if depth > 0 {
		choices = append(choices, bson.A{randomValue(r, depth-1), randomValue(r, depth-1)}, bson.D{{Key: "b", Value: randomValue(r, depth-1)}},
			bson.A{bson.D{{Key: "b", Value: randomValue(r, 0)}}, int32(1)})
	}
	return choices[r.IntN(len(choices))]
}

// TestMergeEqualsSort: sorted parts merged are the whole sorted, whatever the values; documents with equal keys keep the order of the parts.
func TestMergeEqualsSort(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := parseSort(t, []bson.D{{{Key: "a", Value: 1}}, {{Key: "a", Value: -1}}, {{Key: "a.b", Value: 1}, {Key: "c", Value: -1}}, {{Key: "a.0", Value: -1}, {Key: "a.b", Value: 1}}}[r.IntN(4)])
		sources := make([][]bson.Raw, 1+r.IntN(5))
		var all []bson.Raw
		for i := range sources {
			for j := range r.IntN(12) {
				d := bson.D{{Key: "_id", Value: fmt.Sprint(i, "/", j)}, {Key: "c", Value: int32(r.IntN(2))}}
				if r.IntN(5) > 0 {
					d = append(d, bson.E{Key: "a", Value: randomValue(r, 2)})
				}
				sources[i] = append(sources[i], raw(t, d))
			}
			byKey(s, sources[i])
			all = append(all, sources[i]...)
		}
		byKey(s, all) // stable, and all is in order of the parts
		got := merged(s, &Projection{}, sources)
		if !slices.EqualFunc(got, all, func(a, b bson.Raw) bool { return string(a) == string(b) }) {
			t.Fatalf("seed %d, sort by %v:\ngot  %v\nwant %v", seed, s.Fields(), got, all)
		}
	}
}

func byKey(s order.Sort, docs []bson.Raw) {
	slices.SortStableFunc(docs, func(a, b bson.Raw) int { return s.CompareKeys(s.AppendKey(nil, a), s.AppendKey(nil, b)) })
}

// TestHeapAllocatesNothing: a document a time through a heap whose sources have all been seen.
func TestHeapAllocatesNothing(t *testing.T) {
	h := NewHeap(parseSort(t, bson.D{{Key: "a", Value: 1}}), &Projection{})
	doc := raw(t, bson.D{{Key: "a", Value: 3}})
	for i := range 8 {
		h.Push(i, doc)
	}
	if n := testing.AllocsPerRun(100, func() {
		head, _ := h.Pop()
		h.Push(head.Source, doc)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLeads: a document leads when it comes out of the heap before the heads of all other sources, ties going to the first source.
func TestLeads(t *testing.T) {
	doc := func(n int32) bson.Raw {
		raw, _ := bson.Marshal(bson.D{{Key: "n", Value: n}})
		return raw
	}
	spec, _ := bson.Marshal(bson.D{{Key: "n", Value: 1}})
	s, err := order.ParseSort(spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		heads []int32 // of sources 0, 1, …
		first int
		last  int32
		want  bool
	}{
		"before all":                   {[]int32{5, 1, 9}, 1, 4, true},
		"behind one":                   {[]int32{5, 1, 9}, 1, 6, false},
		"equal to a later source's":    {[]int32{1, 5, 9}, 0, 5, true},
		"equal to an earlier source's": {[]int32{5, 1, 9}, 1, 5, false},
		"alone":                        {[]int32{5}, 0, 100, true},
		"behind the other child":       {[]int32{1, 9, 3, 10}, 0, 4, false},
	} {
		h := NewHeap(s, &Projection{})
		for i, n := range tt.heads {
			h.Push(i, doc(n))
		}
		if source, ok := h.Peek(); !ok || source != tt.first {
			t.Errorf("%s: the first is of source %d", name, source)
		}
		if got := h.Leads(doc(tt.last)); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
		if head, _ := h.Pop(); head.Source != tt.first || h.Len() != len(tt.heads)-1 {
			t.Errorf("%s: popped %d of %d", name, head.Source, h.Len())
		}
		h.Peek() // after a pop
		h.Push(tt.first, doc(0))
		if source, _ := h.Peek(); source != tt.first || h.Len() != len(tt.heads) {
			t.Errorf("%s: pushed again: source %d of %d", name, source, h.Len())
		}
	}
	empty := NewHeap(s, &Projection{})
	if _, ok := empty.Peek(); ok || empty.Leads(doc(1)) {
		t.Error("an empty heap has a first")
	}
}
