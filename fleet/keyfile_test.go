package fleet

import (
	"os"
	"slices"
	"testing"
)

// TestKeyFile: a mongod with access control does not start in a set without a key file that only its owner may read; nothing else gets one. A restarted server keeps its key.
func TestKeyFile(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    Kind
		options Options
		set     string
		want    bool
	}{
		{"mongod set with access control", Mongod, Options{Args: []string{"--auth"}}, "rs1", true},
		{"mongod set", Mongod, Options{}, "rs1", false},
		{"mongod alone with access control", Mongod, Options{Standalone: true, Args: []string{"--auth"}}, "", false},
		{"stand-in with access control", SecantusRS, Options{Args: []string{"--auth"}}, "secantus", false},
	} {
		s := &Server{program: Program{Kind: c.kind}, options: c.options, dir: t.TempDir(), setName: c.set, port: &Port{number: 1}}
		var keys [2]string
		for i := range keys {
			if err := s.makeKey(); err != nil {
				t.Fatal(err)
			}
			key, _ := os.ReadFile(s.keyPath())
			keys[i] = string(key)
		}
		args := s.arguments()
		at := slices.Index(args, "--keyFile")
		if (at >= 0) != c.want || c.want && args[at+1] != s.keyPath() || (len(keys[0]) >= 6) != c.want || keys[0] != keys[1] {
			t.Errorf("%s: %v, keys %q", c.name, args, keys)
		}
		if info, err := os.Stat(s.keyPath()); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: the key file has the mode %v", c.name, info.Mode())
		}
	}
}
