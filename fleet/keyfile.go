package fleet

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
)

// needsKey reports whether the server does not start without a key file: a mongod with access control in a set, even of one.
func (s *Server) needsKey() bool {
	return s.program.Kind == Mongod && s.setName != "" && slices.Contains(s.options.Args, "--auth")
}

// keyPath is where the key file lies. Members of one set share a key; these are sets of one.
func (s *Server) keyPath() string { return filepath.Join(s.dir, "key") }

// makeKey writes the key file if the server needs one that it does not have. A mongod takes only one that nobody else may read.
func (s *Server) makeKey() error {
	if !s.needsKey() {
		return nil
	}
	if _, err := os.Stat(s.keyPath()); err == nil {
		return nil
	}
	return os.WriteFile(s.keyPath(), []byte(rand.Text()), 0o600)
}
