package router

import "context"

// Whole batches: where all documents of a backend's batch come next as they are, the client gets the batch as it came, in the buffer that it came in.

// untouched reports whether the client gets the branches' documents as they are, all of them.
func (f *fanout) untouched() bool {
	return f.skip == 0 && f.limit < 0 && f.surplus == nil && f.proj.Nothing()
}

// wholeComes reports whether the next documents are a whole batch, or must be asked for: what a batch has so far is then sent by itself,
// so that the following ones go as they come.
func (f *fanout) wholeComes(ctx context.Context, q *Request) (bool, error) {
	if f.heap != nil {
		if f.run < longRun || f.branches[f.last].taken > 0 && len(f.branches[f.last].docs) > 0 {
			return false, nil
		}
		if err := f.heads(ctx, q); err != nil {
			return false, err
		}
		return f.nextRun() != nil, nil
	}
	for range f.branches {
		if br := f.branches[f.turn%len(f.branches)]; len(br.docs) > 0 {
			return br.worth(), nil
		}
		f.turn++
	}
	return !f.drained(), nil
}

// wholeBatch gives the client the batch of one branch as it came, when it is large enough to be worth a reply.
func (f *fanout) wholeBatch(ctx context.Context, q *Request, b *batch) (bool, error) {
	if f.drained() {
		return false, nil
	}
	for {
		br, err := f.ready()
		if err != nil {
			return false, err
		}
		if br == nil {
			if more, err := f.refill(ctx, q); !more || err != nil {
				return false, err
			}
			continue
		}
		if !br.worth() {
			return false, nil
		}
		n, ok := br.sample()
		if !ok {
			return false, nil
		}
		f.seen, f.seenBytes = f.seen+n, f.seenBytes+int64(len(br.docs))
		b.takeWhole(br, int(n))
		f.turn++
		return true, nil
	}
}

// longRun is after how many documents of one branch, without a break, it is looked whether its next batch comes before all others' documents.
const longRun = 64

// nextRun returns the branch whose whole batch comes next in order, of which only the head was taken, into the heap; nil when it is not so, or not known.
func (f *fanout) nextRun() *branch {
	if f.run < longRun {
		return nil
	}
	i, ok := f.heap.Peek()
	if !ok || i != f.last {
		return nil
	}
	br := f.branches[i]
	if br.taken != 1 || len(br.batch) < enough/4 {
		return nil
	}
	last := br.lastOf()
	if last == nil || !f.heap.Leads(last) {
		f.run = 0 // not again at once: looking for the last document costs something
		return nil
	}
	return br
}

// wholeRun gives the client the batch of one branch as it came, when all of it comes next in order.
func (f *fanout) wholeRun(ctx context.Context, q *Request, b *batch) (bool, error) {
	if err := f.heads(ctx, q); err != nil {
		return false, err
	}
	br := f.nextRun()
	if br == nil {
		return false, nil
	}
	head, _ := f.heap.Pop()
	br.docs = br.batch
	n, _ := br.sample()
	f.seen, f.seenBytes = f.seen+n, f.seenBytes+int64(len(br.docs))
	b.takeWhole(br, int(n))
	f.pop(head.Source, int(n))
	return true, nil
}
