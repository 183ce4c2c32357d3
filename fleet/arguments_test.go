package fleet

import (
	"slices"
	"testing"
)

func TestArguments(t *testing.T) {
	cases := []struct {
		name    string
		kind    Kind
		options Options
		has     []string
		lacks   []string
	}{
		{"mongod set", Mongod, Options{}, []string{"--replSet", "rs1", "--dbpath"}, []string{"--standalone", "--storage-path"}},
		{"mongod alone", Mongod, Options{Standalone: true}, []string{"--dbpath"}, []string{"--replSet", "--standalone"}},
		{"crate set", SecantusRS, Options{SyncOnCommit: true}, []string{"--sync-on-commit", "--log-file-max"}, []string{"--standalone"}},
		{"crate alone", SecantusRS, Options{Standalone: true}, []string{"--standalone"}, []string{"--sync-on-commit"}},
		{"wheel", SecantusPy, Options{Args: []string{"--auth"}}, []string{"--storage-path", "--auth"}, []string{"--log-file-max"}},
	}
	for _, c := range cases {
		f := &Fleet{program: Program{Kind: c.kind}, options: c.options}
		s := &Server{program: f.program, options: c.options, port: &Port{number: 1}}
		if !c.options.Standalone {
			s.setName = f.setName(1)
		}
		got := s.arguments()
		for _, want := range c.has {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %s in %v", c.name, want, got)
			}
		}
		for _, not := range c.lacks {
			if slices.Contains(got, not) {
				t.Errorf("%s: %s in %v", c.name, not, got)
			}
		}
	}
}

func TestKindOf(t *testing.T) {
	for text, want := range map[string]Kind{
		"mongod": Mongod, "mongod-8.0": Mongod, "db version v8.0.4\n": Mongod,
		"secantusd-rs": SecantusRS, "secantusd-py": SecantusPy, "sh": unknownKind, "mongos": unknownKind,
	} {
		if got := kindOf(text); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", text, got, want)
		}
	}
}
