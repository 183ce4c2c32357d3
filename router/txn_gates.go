package router

import (
	"context"
	"errors"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// passInTransaction is pass for a statement of a transaction. Gates that the transaction holds already need not be passed, closed or not; those of other
// partitions are passed, if the partition was there when the transaction began, and then held.
func (r *Router) passInTransaction(ctx context.Context, t *transaction, ns string, mode partition.Mode, checkViews bool,
	plan func(*partition.Collection) ([]*partition.Part, error),
	f func(*partition.Collection, []*partition.Part) error) error {
	for {
		c, err := r.lookup(ctx, ns)
		if err != nil {
			return err
		}
		if checkViews {
			if err := r.checkView(ctx, c); err != nil {
				return err
			}
		}
		parts, err := plan(c)
		if err != nil && !errors.Is(err, errUnknownDB) {
			return err
		}
		if len(parts) == 0 {
			if gone := t.admitsNothing(ns); gone != nil {
				return gone
			}
			if err != nil {
				return err
			}
			return f(c, parts)
		}
		if err := t.stay(ctx, parts); err != nil {
			return err
		}
		fresh := t.fresh(parts)
		err = partition.Enter(ctx, fresh, mode)
		if errors.Is(err, partition.ErrReplan) {
			t.chooseAgain()
			continue
		}
		if err != nil {
			return err
		}
		if err := t.hold(fresh); err != nil {
			partition.Leave(fresh, mode)
			return err
		}
		return insideTransaction(c, parts, fresh, mode, f)
	}
}

func insideTransaction(c *partition.Collection, parts, fresh []*partition.Part, mode partition.Mode, f func(*partition.Collection, []*partition.Part) error) error {
	defer partition.Leave(fresh, mode)
	return f(c, parts)
}

// stay chooses the transaction's backend, or refuses parts that are on another one.
func (t *transaction) stay(ctx context.Context, parts []*partition.Part) error {
	at := t.where()
	for _, p := range parts {
		if at == "" {
			at = p.Backend
		}
		if p.Backend != at && t.view != nil && !t.knows(p) {
			return snapshotGone(p.Gate().NS()) // it was moved meanwhile: run again, the transaction may be whole on one backend
		}
		if p.Backend != at {
			return wire.Errorf(wire.OperationNotSupportedInTransaction,
				"a transaction stays on one backend: this one is on '%s' and the statement needs '%s' too; bind its statements to one value of the shard key, or bring the collections together with movePrimary or moveChunk",
				at, p.Backend)
		}
	}
	if t.where() != "" {
		if t.lease != nil && t.r.cfg.Member.Lease(at) != t.lease {
			return noSuchTransaction(t.number, cutOff)
		}
		return nil
	}
	if alone, err := t.r.standalone(ctx, at); err != nil {
		return err
	} else if alone {
		return wire.Errorf(wire.IllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos: backend '%s' is a standalone", at)
	}
	if t.r.cfg.Member != nil {
		b := t.r.cfg.Backends.Get(at)
		if b == nil {
			return &leaseError{backend: at, unsent: true}
		}
		lease, err := t.r.lease(ctx, b) // no gate of the transaction's is held yet
		if err != nil {
			return err
		}
		if err := lease.BeforeTransaction(ctx); err != nil {
			return wire.Errorf(wire.HostUnreachable, "a transaction cannot be announced at backend '%s': %v", at, err)
		}
		t.lease = lease
	}
	t.mu.Lock()
	t.backend = at
	t.mu.Unlock()
	return nil
}

// chooseAgain takes the choice of a backend back when what it was chosen for has moved before anything was sent.
func (t *transaction) chooseAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.started && len(t.held) == 0 {
		t.backend, t.lease = "", nil
	}
}

// fresh returns the parts whose gates the transaction does not hold.
func (t *transaction) fresh(parts []*partition.Part) []*partition.Part {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*partition.Part
	for _, p := range parts {
		if !holdsGate(t.held, p) && !holdsGate(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func holdsGate(parts []*partition.Part, p *partition.Part) bool {
	for _, h := range parts {
		if h.Gate() == p.Gate() {
			return true
		}
	}
	return false
}

// hold holds gates that have just been passed until the transaction is settled. The first ones pin the view: what is not in it was not there, or not in this place, when
// the transaction began, and it would miss documents there.
func (t *transaction) hold(fresh []*partition.Part) error {
	if t.view == nil {
		t.view = t.r.cfg.Table.View()
	}
	for _, p := range fresh {
		if !t.knows(p) {
			return snapshotGone(p.Gate().NS())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range fresh {
		p.Gate().BeginTransaction()
		t.held = append(t.held, p)
	}
	return nil
}

func snapshotGone(ns string) error {
	return wire.Errorf(wire.SnapshotUnavailable, "Unable to read from a snapshot: partitions of '%s' have been replaced since the transaction began; run the transaction again", ns)
}

// knows reports whether a part was a home of its namespace when the transaction began.
func (t *transaction) knows(p *partition.Part) bool {
	ns := p.Gate().NS()
	if m := t.view.Catalog.Maps[ns]; m != nil {
		return m.Names(p.Backend, p.Physical)
	}
	_, coll := catalog.SplitNS(ns)
	d := t.view.Catalog.Databases[p.DB]
	return d != nil && d.Primary == p.Backend && coll == p.Physical
}

// admitsNothing refuses to find nothing where there was something when the transaction began.
func (t *transaction) admitsNothing(ns string) error {
	if t.view == nil {
		return nil
	}
	if m := t.view.Catalog.Maps[ns]; m != nil {
		if m.Dropped {
			return nil
		}
		return snapshotGone(ns)
	}
	if db, _ := catalog.SplitNS(ns); t.view.Catalog.Databases[db] != nil {
		return snapshotGone(ns)
	}
	return nil
}
