package merge

import (
	"bufio"
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

var update = flag.Bool("update", false, "write what the planner plans into testdata/plans.jsonl")

type planned struct {
	Pipeline  []bson.Raw `bson:"pipeline"`
	Collation bool       `bson:"collation,omitempty"`
	Shard     []bson.Raw `bson:"shard"`
	Merger    []bson.Raw `bson:"merger"`
	Streams   bool       `bson:"streams"`
}

type refused struct {
	Pipeline  []bson.Raw `bson:"pipeline"`
	Collation bool       `bson:"collation"`
	Code      int32      `bson:"code"`
	Names     string     `bson:"names"`
}

func lines[T any](t testing.TB, file string) []T {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		var one T
		if err := bson.UnmarshalExtJSON(sc.Bytes(), false, &one); err != nil {
			t.Fatalf("%s: %v", sc.Bytes(), err)
		}
		all = append(all, one)
	}
	return all
}

// TestPlans compares plans with those that were looked through and kept.
func TestPlans(t *testing.T) {
	const file = "testdata/plans.jsonl"
	var out bytes.Buffer
	for _, want := range lines[planned](t, file) {
		p, err := PlanPipeline(want.Pipeline, want.Collation)
		if err != nil {
			t.Errorf("%v: %v", want.Pipeline, err)
			continue
		}
		got := planned{Pipeline: want.Pipeline, Collation: want.Collation, Shard: p.Shard, Merger: p.Merger(), Streams: p.Streams}
		a, b := text(t, got), text(t, want)
		if a != b && !*update {
			t.Errorf("got  %s\nwant %s", a, b)
		}
		out.WriteString(a + "\n")
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func text(t testing.TB, p planned) string {
	t.Helper()
	s, err := bson.MarshalExtJSON(p, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(s)
}

func TestUnsupported(t *testing.T) {
	for _, want := range lines[refused](t, "testdata/unsupported.jsonl") {
		_, err := PlanPipeline(want.Pipeline, want.Collation)
		if err == nil {
			t.Errorf("%v: planned", want.Pipeline)
			continue
		}
		if e := wire.AsError(err); int32(e.Code) != want.Code || !strings.Contains(e.Message, want.Names) {
			t.Errorf("%v: %v (%d), want code %d and %q", want.Pipeline, err, e.Code, want.Code, want.Names)
		}
	}
}

// FuzzPlan: no pipeline makes the planner panic, and what it plans is made of valid documents.
func FuzzPlan(f *testing.F) {
	for _, p := range lines[planned](f, "testdata/plans.jsonl") {
		seed(f, p.Pipeline)
	}
	for _, p := range lines[refused](f, "testdata/unsupported.jsonl") {
		seed(f, p.Pipeline)
	}
	f.Fuzz(func(t *testing.T, data []byte, collation bool) {
		values, err := bson.RawArray(data).Values()
		if err != nil || bson.RawArray(data).Validate() != nil {
			return
		}
		var pipeline []bson.Raw
		for _, v := range values {
			d, ok := v.DocumentOK()
			if !ok {
				continue
			}
			if d.Validate() != nil {
				return // what is not BSON is passed on, and the backend says so
			}
			pipeline = append(pipeline, d)
		}
		p, err := PlanPipeline(pipeline, collation)
		if err != nil {
			if wire.AsError(err).Code == wire.InternalError {
				t.Errorf("%v: %v", pipeline, err)
			}
			return
		}
		for _, s := range append(p.Shard, p.Merger()...) {
			if err := s.Validate(); err != nil {
				t.Errorf("%v: a stage is invalid: %v", pipeline, err)
			}
		}
		if p.Skip < 0 || p.Limit < -1 {
			t.Errorf("%v: skip %d, limit %d", pipeline, p.Skip, p.Limit)
		}
	})
}

func seed(f *testing.F, pipeline []bson.Raw) {
	f.Helper()
	_, data, err := bson.MarshalValue(pipeline)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, len(pipeline)%2 == 0)
}
