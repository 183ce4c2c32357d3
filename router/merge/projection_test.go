package merge

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

func ext(t testing.TB, s string) bson.Raw {
	t.Helper()
	var d bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return d
}

func TestPlanProjection(t *testing.T) {
	for _, c := range []struct {
		name, projection, sort string
		// sent is what partitions are sent; "" when the client's own will do.
		sent string
		// fetched is a document that a partition returns, want what the client gets of it.
		fetched, want string
	}{
		{"none", `{}`, `{"a":1}`, ``, `{"a":1}`, `{"a":1}`},
		{"survives", `{"a":1}`, `{"a":1,"_id":1}`, ``, `{"_id":1,"a":1}`, `{"_id":1,"a":1}`},
		{"survives whole", `{"a":1,"_id":0}`, `{"a.b":1}`, ``, `{"a":{"b":1}}`, `{"a":{"b":1}}`},
		{"decimal one", `{"a":{"$numberDecimal":"1"}}`, `{"a":1}`, ``, `{"a":1}`, `{"a":1}`},
		{"hidden", `{"v":1}`, `{"a":1}`, `{"v":1,"__shardway_sort_0":"$a"}`, `{"_id":1,"v":2,"__shardway_sort_0":3}`, `{"_id":1,"v":2}`},
		{"hidden and missing", `{"v":1}`, `{"a":1}`, `{"v":1,"__shardway_sort_0":"$a"}`, `{"_id":1}`, `{"_id":1}`},
		{"nothing left", `{"v":1,"_id":0}`, `{"_id":-1}`, `{"v":1,"_id":0,"__shardway_sort_0":"$_id"}`, `{"__shardway_sort_0":1}`, `{}`},
		{"only a part", `{"a.b":1}`, `{"a.c":1}`, `{"a.b":1,"__shardway_sort_0":"$a"}`, `{"_id":1,"a":{"b":1},"__shardway_sort_0":{"b":1,"c":2}}`, `{"_id":1,"a":{"b":1}}`},
		{"two of one field", `{"v":1}`, `{"a.c":1,"a.d":1,"e":1}`, `{"v":1,"__shardway_sort_0":"$a","__shardway_sort_1":"$e"}`, `{"__shardway_sort_0":1,"__shardway_sort_1":1}`, `{}`},
		{"computed", `{"a":"$b"}`, `{"a":1}`, `{"a":"$b","__shardway_sort_0":"$a"}`, `{"a":5,"__shardway_sort_0":1}`, `{"a":5}`},
		{"elemMatch", `{"a":{"$elemMatch":{"b":1}}}`, `{"a.b":1}`, `{"a":{"$elemMatch":{"b":1}},"__shardway_sort_0":"$a"}`, `{"_id":1,"__shardway_sort_0":[{"b":3}]}`, `{"_id":1}`},
		{"slice in an inclusion", `{"v":1,"a":{"$slice":1}}`, `{"a":1}`, `{"v":1,"a":{"$slice":1},"__shardway_sort_0":"$a"}`, `{"a":[1],"__shardway_sort_0":[1,0]}`, `{"a":[1]}`},
		{"only _id", `{"_id":1}`, `{"a":1}`, `{"_id":1,"__shardway_sort_0":"$a"}`, `{"_id":1,"__shardway_sort_0":2}`, `{"_id":1}`},
		{"without _id", `{"_id":0}`, `{"_id":1}`, `{}`, `{"_id":1,"a":1}`, `{"a":1}`},
		{"excluded", `{"a":0,"b":0}`, `{"a":1}`, `{"b":0}`, `{"_id":1,"a":1,"c":1}`, `{"_id":1,"c":1}`},
		{"excluded elsewhere", `{"b":0}`, `{"a":1}`, ``, `{"a":1}`, `{"a":1}`},
		{"slice elsewhere", `{"b":{"$slice":1}}`, `{"a":1}`, ``, `{"a":1}`, `{"a":1}`},
		{"excluded within", `{"a.b":0}`, `{"a.c":1}`, `{}`, `{"a":{"b":1,"c":2}}`, `{"a":{"c":2}}`},
		{"excluded in arrays", `{"a.b":0}`, `{"a.c":1}`, `{}`, `{"a":[{"b":1,"c":2},[{"b":1}],5]}`, `{"a":[{"c":2},[{}],5]}`},
		{"nested exclusion", `{"a":{"b":0,"d":{"e":false}}}`, `{"a":1}`, `{}`, `{"a":{"b":1,"d":{"e":1,"f":1}}}`, `{"a":{"d":{"f":1}}}`},
		{"nested inclusion", `{"a":{"b":1}}`, `{"a.c":1}`, `{"a":{"b":1},"__shardway_sort_0":"$a"}`, `{"a":{"b":1},"__shardway_sort_0":{"b":1,"c":0}}`, `{"a":{"b":1}}`},
		{"slice", `{"a":{"$slice":1}}`, `{"a":1}`, `{}`, `{"_id":1,"a":[3,1]}`, `{"_id":1,"a":[3]}`},
		{"slice and exclusion", `{"a":{"$slice":-1},"b":0}`, `{"a":1,"b":1}`, `{}`, `{"_id":1,"a":[3,1],"b":1}`, `{"_id":1,"a":[1]}`},
		{"nested exclusion elsewhere", `{"z":{"b":0}}`, `{"a":1}`, ``, `{"a":1}`, `{"a":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := PlanProjection(ext(t, c.projection), parseSort(t, mustD(t, c.sort)))
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.sent == "" && p.Sent != nil:
				t.Errorf("sends %v, want the client's own", p.Sent)
			case c.sent != "" && p.Sent.String() != ext(t, c.sent).String():
				t.Errorf("sends %v, want %s", p.Sent, c.sent)
			}
			if got := p.Finish(ext(t, c.fetched)); got.String() != ext(t, c.want).String() {
				t.Errorf("finished: %v, want %s", got, c.want)
			}
		})
	}
	_, err := PlanProjection(ext(t, `{"a":{"b":{"$slice":1}}}`), parseSort(t, mustD(t, `{"a":1}`)))
	if err == nil || wire.AsError(err).Code != wire.CommandNotSupported {
		t.Errorf("a nested $slice: %v, want 115", err)
	}
}

// TestHelpersSort: keys come from the helper fields, also where the projection puts something else under the field's name.
func TestHelpersSort(t *testing.T) {
	s := parseSort(t, mustD(t, `{"a.b":-1}`))
	p, err := PlanProjection(ext(t, `{"a":"$other"}`), s)
	if err != nil {
		t.Fatal(err)
	}
	got := merged(s, &p, [][]bson.Raw{
		{ext(t, `{"_id":1,"a":{"b":9},"__shardway_sort_0":[{"b":1},{"b":7}]}`), ext(t, `{"_id":2,"a":{"b":9}}`)},
		{ext(t, `{"_id":3,"__shardway_sort_0":{"b":8}}`), ext(t, `{"_id":4,"a":1,"__shardway_sort_0":{"b":null}}`)},
	})
	want := []string{`{"_id":3}`, `{"_id":1,"a":{"b":9}}`, `{"_id":2,"a":{"b":9}}`, `{"_id":4,"a":1}`}
	for i := range want {
		if i >= len(got) || got[i].String() != ext(t, want[i]).String() {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func mustD(t testing.TB, s string) (d bson.D) {
	t.Helper()
	if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
		t.Fatal(err)
	}
	return d
}
