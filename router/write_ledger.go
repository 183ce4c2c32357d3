package router

import (
	"context"

	"github.com/shardway/shardway/partition"
)

// ledgered runs retryable statements at a standalone, which takes no txnNumber: what this process remembers as done is answered from memory, the rest is sent
// and remembered. Inserts go together; of updates and deletes a reply tells only sums, so they go one by one.
func (b *writeBatch) ledgered(ctx context.Context, c *partition.Collection, k chunk) outcome {
	txn := b.q.TxnNumber
	rec, err := b.r.retries.record(derive(b.q.clientSession(), k.part.Home), txn)
	if err != nil {
		return outcome{err: err}
	}
	rec.busy.Lock()
	defer rec.busy.Unlock()
	total := &writeResult{}
	var todo []*statement
	for _, s := range k.stmts {
		if e, ok := b.r.retries.result(rec, txn, s.id); ok {
			total.repeat(s, e)
		} else {
			todo = append(todo, s)
		}
	}
	size := 1
	if b.kind == &inserts {
		size = len(todo)
	}
	for len(todo) > 0 && !(b.ordered && total.failed()) {
		part := chunk{group: group{k.part, todo[:size]}}
		todo = todo[size:]
		if err := b.ledgerSend(ctx, c, part, rec, total); err != nil {
			if total.nothing() {
				return outcome{err: unremembered{err}}
			}
			total.failChunk(&part, unremembered{err}, b.ordered)
		}
	}
	return outcome{results: total}
}

// repeat adds what the ledger has of a statement.
func (w *writeResult) repeat(s *statement, e ledgerEntry) {
	w.n += e.n
	w.modified += e.modified
	if e.upserted.Type != 0 {
		w.upserted = append(w.upserted, upserted{s.index, e.upserted})
	}
	w.retried = append(w.retried, s.id)
	w.succeeded++
}

// ledgerSend sends statements to a standalone and remembers those that were run.
func (b *writeBatch) ledgerSend(ctx context.Context, c *partition.Collection, k chunk, rec *retryRecord, total *writeResult) error {
	buf := b.message(c, k, false)
	defer buf.Release()
	reply, err := b.r.do(ctx, target{Backend: k.part.Backend, Part: k.part}, buf.B)
	o := newOutcome(&reply, err)
	if o.err != nil {
		return o.err
	}
	one := &writeResult{}
	one.take(o.body, &k, b.ordered)
	bad := map[int]bool{}
	for _, e := range one.errs {
		bad[e.index] = true
	}
	for _, s := range k.stmts {
		if bad[s.index] {
			if b.ordered {
				break // what follows was not run
			}
			continue
		}
		e := ledgerEntry{n: one.n, modified: one.modified}
		if b.kind == &inserts {
			e = ledgerEntry{n: 1}
		}
		if len(one.upserted) > 0 {
			e.upserted = one.upserted[0].id
		}
		b.r.retries.setResult(rec, b.q.TxnNumber, s.id, e)
	}
	// A repetition is answered from memory and waits for no write concern: it would confirm what was not confirmed.
	one.unremembered = one.unremembered || len(one.concerns) > 0
	total.add(one)
	return nil
}
