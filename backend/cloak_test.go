package backend

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestCloak(t *testing.T) {
	raw := func(json string) bson.Raw {
		t.Helper()
		var d bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(json), true, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	cases := []struct{ name, in, want string }{
		{"fine", `{"n":1,"ok":1.0}`, ""},
		{"another error", `{"ok":0.0,"errmsg":"not master","code":11000,"codeName":"DuplicateKey"}`, ""},
		{"not primary",
			`{"ok":0.0,"errmsg":"not master, and node is recovering","code":10107,"codeName":"NotWritablePrimary","errorLabels":["RetryableWriteError"],"topologyVersion":{"counter":1}}`,
			`{"ok":0.0,"errmsg":"(NOT_PRIMARY), and (NODE_IS_RECOVERING)","code":6,"codeName":"HostUnreachable","errorLabels":["RetryableWriteError"]}`},
		{"shutdown", `{"ok":0.0,"code":91,"codeName":"ShutdownInProgress"}`, `{"ok":0.0,"code":6,"codeName":"HostUnreachable"}`},
		{"shutdown, interrupted", `{"ok":0.0,"code":11600}`, `{"ok":0.0,"code":6}`},
		{"write concern", `{"n":1,"writeConcernError":{"code":189,"errmsg":"x"},"ok":1.0}`, `{"n":1,"writeConcernError":{"code":6,"errmsg":"x"},"ok":1.0}`},
		{"one of two write errors",
			`{"n":1,"writeErrors":[{"index":0,"code":11000},{"index":1,"code":13435,"errmsg":"not master"}],"ok":1.0}`,
			`{"n":1,"writeErrors":[{"index":0,"code":11000},{"index":1,"code":6,"errmsg":"(NOT_PRIMARY)"}],"ok":1.0}`},
		{"a field of a client's document", `{"cursor":{"firstBatch":[{"code":10107}]},"ok":1.0}`, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := raw(c.in)
			want := in
			if c.want != "" {
				want = raw(c.want)
			}
			if got := Cloak(in); got.String() != want.String() {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
	for _, code := range []int64{189, 10107, 11602, 13435, 13436, 91, 11600} {
		if !isStateChange(code) {
			t.Errorf("code %d is not taken for a state change", code)
		}
	}
}

func FuzzCloak(f *testing.F) {
	for _, d := range []bson.D{
		{{Key: "ok", Value: 0.0}, {Key: "code", Value: 10107}},
		{{Key: "writeErrors", Value: bson.A{bson.D{{Key: "code", Value: 91}}}}},
		{{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 189}}}, {Key: "ok", Value: 1}},
	} {
		b, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out := Cloak(b)
		if bson.Raw(b).Validate() != nil {
			return // garbage in: it must not panic
		}
		if err := out.Validate(); err != nil {
			t.Fatalf("a valid document became an invalid one: %v", err)
		}
		if stateChanged(out) {
			t.Errorf("%v still shows a state change", out)
		}
	})
}
