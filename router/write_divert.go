package router

import (
	"context"
	"slices"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
)

// divert takes from a plan's groups the statements that an old home executed before a flip, and sends those to it again: it answers from its record. Without
// a transaction number, or out of the retry window, groups stay as they are.
func (b *writeBatch) divert(ctx context.Context, c *partition.Collection, groups []group) ([]group, error) {
	if !b.q.retryable() || len(c.Old) == 0 {
		return groups, nil
	}
	var each []func(shardkey.Range) bool
	for _, g := range groups {
		for _, s := range g.stmts {
			each = append(each, s.concerns(c, g.part))
		}
	}
	past, err := b.r.past(ctx, b.q, c, func(r shardkey.Range) bool {
		return slices.ContainsFunc(each, func(concerns func(shardkey.Range) bool) bool { return concerns(r) })
	})
	if err != nil || past == nil {
		return groups, err
	}
	var out []group
	for _, g := range groups {
		kept := group{part: g.part}
		old := map[partition.Home]int{}
		for _, s := range g.stmts {
			p, err := past.home(ctx, each[0], s.id)
			each = each[1:]
			if err != nil {
				return nil, err
			}
			if p == nil {
				kept.stmts = append(kept.stmts, s)
				continue
			}
			at, known := old[p.Home]
			if !known {
				at = len(out)
				old[p.Home] = at
				out = append(out, group{part: p})
			}
			out[at].stmts = append(out[at].stmts, s)
		}
		if len(kept.stmts) > 0 {
			out = append(out, kept)
		}
	}
	return out, nil
}

// concerns returns which ranges a statement that goes to one part may concern.
func (s *statement) concerns(c *partition.Collection, p *partition.Part) func(shardkey.Range) bool {
	if c.Key == nil {
		return func(shardkey.Range) bool { return true }
	}
	if s.op == nil {
		pos, err := c.Key.Position(s.raw)
		return func(r shardkey.Range) bool { return err == nil && r.Contains(pos) }
	}
	return s.op.concerns(c.Key, p)
}

// concerns returns which ranges an operation that goes to one part may concern.
func (op *operation) concerns(key *shardkey.Pattern, p *partition.Part) func(shardkey.Range) bool {
	t := key.Target(op.filter, op.simple)
	return func(r shardkey.Range) bool {
		if !t.Bound {
			return r.Overlaps(p.Range)
		}
		for _, pos := range t.Positions {
			if r.Contains(pos) && p.Range.Contains(pos) {
				return true
			}
		}
		return false
	}
}
