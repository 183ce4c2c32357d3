package merge

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/shardkey/order"
)

func raw(t *testing.T, json string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatal(err)
	}
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestProjectionFinish(t *testing.T) {
	for _, c := range []struct{ sort, projection, sent, fetched, want string }{
		{`{"a":1}`, `{"v":1}`, `{"v":1,"__shardway_sort_0":"$a"}`, `{"_id":1,"v":2,"__shardway_sort_0":3}`, `{"_id":1,"v":2}`},
		{`{"a.b":1}`, `{"a":1}`, ``, `{"_id":1,"a":{"b":2}}`, `{"_id":1,"a":{"b":2}}`},
		{`{"a.b":1}`, `{"a.c":1}`, `{"a.c":1,"__shardway_sort_0":"$a"}`, `{"a":{"c":1},"__shardway_sort_0":{"b":1,"c":1}}`, `{"a":{"c":1}}`},
		{`{"_id":1}`, `{"_id":0,"v":1}`, `{"_id":0,"v":1,"__shardway_sort_0":"$_id"}`, `{"v":1,"__shardway_sort_0":7}`, `{"v":1}`},
		{`{"a.b":1}`, `{"a.b":0,"z":0}`, `{"z":0}`, `{"a":[{"b":1,"c":2},[{"b":3}],4]}`, `{"a":[{"c":2},[{}],4]}`},
		{`{"a":1}`, `{"a":{"$slice":1}}`, `{}`, `{"a":[1,2,3]}`, `{"a":[1]}`},
		{`{"a":1}`, `{"a":{"$slice":-2},"z":0}`, `{"z":0}`, `{"a":[1,2,3]}`, `{"a":[2,3]}`},
		{`{"a":1}`, `{"a":{"$slice":[-2,1]}}`, `{}`, `{"a":[1,2,3]}`, `{"a":[2]}`},
		{`{"a":1}`, `{"a":{"$slice":[5,1]}}`, `{}`, `{"a":[1,2,3],"b":1}`, `{"a":[],"b":1}`},
		{`{"a.b":1}`, `{"a.b":{"$slice":1}}`, `{}`, `{"a":[{"b":[1,2]},{"b":5}]}`, `{"a":[{"b":[1]},{"b":5}]}`},
		{`{"a":1}`, `{"b":{"$slice":1}}`, ``, `{"a":1,"b":[1]}`, `{"a":1,"b":[1]}`},
	} {
		s, err := order.ParseSort(raw(t, c.sort))
		if err != nil {
			t.Fatal(err)
		}
		p, err := PlanProjection(raw(t, c.projection), s)
		if err != nil {
			t.Errorf("%s under %s: %v", c.sort, c.projection, err)
			continue
		}
		if c.sent == "" && p.Sent != nil || c.sent != "" && p.Sent.String() != raw(t, c.sent).String() {
			t.Errorf("%s under %s: sends %s, want %s", c.sort, c.projection, p.Sent, c.sent)
		}
		if got := p.Finish(raw(t, c.fetched)); got.String() != raw(t, c.want).String() {
			t.Errorf("%s under %s: %s, want %s", c.sort, c.projection, got, c.want)
		}
	}
}
