package splitter

import (
	"context"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/records"
	"github.com/shardway/shardway/partition"
)

// answerable asks the backends of homes that are to be replaced, with gates open, what sessions did
// on them. After the flip each retryable write that concerns the homes needs that answer, and is
// refused without it until the retry window is over: so nothing is replaced on a backend that
// refuses the question, and the command ends with the server's own error. Causes that pass may be
// tried again.
func (s *Splitter) answerable(ctx context.Context, homes []partition.Home) error {
	seen := map[string]bool{}
	for _, h := range homes {
		b := s.cfg.Backends.Get(h.Backend)
		if seen[h.Backend] || b == nil || b.Kind() == backend.KindStandalone {
			continue // a standalone keeps no records, and takes no transaction number
		}
		seen[h.Backend] = true
		switch err := records.Probe(ctx, b); {
		case records.Lasting(err):
			return records.Unanswerable(h.Backend, err)
		case err != nil:
			return retryable{err}
		}
	}
	return nil
}
