package splitter

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/shardkey"
	"github.com/shardway/shardway/wire"
)

// Batches of the copy: large enough to be cheap, small enough that the foreground is not held up.
const (
	copyDocs  = 1000
	copyBytes = 2<<20 - 64<<10 // so that most batches lie in one buffer of a pool (wire.GetBuffer)
	// readBytes is about how much is read again at once.
	readBytes = 8 << 20
	// copyWriters is how many batches are written at the same time.
	copyWriters = 3
)

// collection is a home through the driver, read and written with majority.
func (s *Splitter) collection(h partition.Home) (*mongo.Collection, error) {
	b := s.cfg.Backends.Get(h.Backend)
	if b == nil {
		return nil, wire.Errorf(wire.ShardNotFound, "backend '%s' is not part of the fleet", h.Backend)
	}
	return b.Client().Database(h.DB).Collection(h.Physical, options.Collection().
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority())), nil
}

// createOutputs makes the outputs with the inputs' options and indexes. An index that expires documents is made without its time, which
// it gets after the flip: documents must not vanish from an output while the input still has them.
func (r *reshape) createOutputs(ctx context.Context) error {
	info, err := r.s.inspectHome(ctx, r.inputs[0].Home)
	if err != nil {
		return retryable{err}
	}
	r.info = info
	like := info
	like.indexes = withoutExpiry(info.indexes)
	for i := range r.outputs {
		if r.outputs[i].made, err = r.s.create(ctx, r.outputs[i].Home, like, r.coll.Key); err != nil {
			return ifPassing(err)
		}
	}
	if info.view {
		return nil
	}
	bytes := int64(0)
	for _, p := range r.inputs {
		n, err := r.s.estimate(ctx, p.Home)
		if err != nil {
			return retryable{err}
		}
		r.mu.Lock()
		r.total += n
		r.mu.Unlock()
		size, err := r.s.size(ctx, p.Home)
		if err != nil {
			return retryable{err}
		}
		bytes += size
	}
	r.average = bytes / max(r.total, 1)
	return nil
}

// atOnce bounds how many documents are held in memory at once: at most n, and fewer where they are large.
func (r *reshape) atOnce(n int) int {
	if r.average == 0 {
		return n
	}
	return int(min(int64(n), max(1, readBytes/r.average)))
}

func withoutExpiry(indexes []bson.D) []bson.D {
	var out []bson.D
	for _, ix := range indexes {
		var d bson.D
		for _, e := range ix {
			if e.Key != "expireAfterSeconds" {
				d = append(d, e)
			}
		}
		out = append(out, d)
	}
	return out
}

func (s *Splitter) estimate(ctx context.Context, h partition.Home) (int64, error) {
	c, err := s.collection(h)
	if err != nil {
		return 0, err
	}
	return c.EstimatedDocumentCount(ctx)
}

// place returns which output a document belongs to; an unsharded collection has but one.
func (r *reshape) place(doc bson.Raw) int {
	if r.coll.Key == nil {
		return 0
	}
	return r.among(doc, len(r.outputs), func(i int) shardkey.Range { return r.outputs[i].rg })
}

// copyAll scans the inputs and inserts every document into its output.
func (r *reshape) copyAll(ctx context.Context) error {
	for _, p := range r.inputs {
		if err := r.copyOne(ctx, p.Home); err != nil {
			return err
		}
	}
	return nil
}

// copyOne copies one input: batches are read while others are written.
func (r *reshape) copyOne(ctx context.Context, h partition.Home) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan *batch, 1)
	writersWanted := copyWriters
	if r.info.special() {
		writersWanted = 1 // their order is to be kept
	}
	var writers sync.WaitGroup
	for range writersWanted {
		writers.Go(func() {
			if err := r.writeBatches(ctx, batches); err != nil {
				cancel(err)
			}
		})
	}
	err := r.readBatches(ctx, h, batches)
	close(batches)
	writers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause // what the others failed with came of it
	}
	return err
}

// readBatches reads an input in batches.
func (r *reshape) readBatches(ctx context.Context, h partition.Home, batches chan<- *batch) error {
	in, err := r.s.scan(ctx, h, copyDocs, nil)
	if err != nil {
		return retryable{err}
	}
	defer in.close(ctx)
	b := r.newBatch()
	send := func() error {
		select {
		case batches <- b:
			b = r.newBatch()
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for in.next(ctx) {
		if err := r.add(b, r.place(in.doc), in.doc); err != nil {
			return err
		}
		if !b.full() {
			continue
		}
		if err := send(); err != nil {
			return err
		}
	}
	if in.err != nil {
		return retryable{in.err}
	}
	return send()
}

// writeBatches writes batches until there are no more, and rests after each unless clients wait for the end.
func (r *reshape) writeBatches(ctx context.Context, batches <-chan *batch) error {
	var p pace
	served := r.served()
	for b := range batches {
		if !r.held {
			if err := r.s.copies.wait(ctx, b.bytes); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := r.write(ctx, b); err != nil {
			return err
		}
		if r.held {
			continue
		}
		before := served
		served = r.served()
		if err := pause(ctx, p.rest(b.n, b.bytes, time.Since(began), served != before)); err != nil {
			return err
		}
	}
	return nil
}

// served counts the clients' short requests that this process has seen answered by the backends of the reshape.
func (r *reshape) served() uint64 {
	seen := map[string]bool{}
	var n uint64
	count := func(id string) {
		if b := r.s.cfg.Backends.Get(id); b != nil && !seen[id] {
			seen[id] = true
			n += b.ShortReplies()
		}
	}
	for _, p := range r.inputs {
		count(p.Backend)
	}
	for _, o := range r.outputs {
		count(o.Backend)
	}
	return n
}

// batch is documents for the outputs.
type batch struct {
	to    []*insertion // by output; nil where there is none
	n     int
	bytes int64
}

func (r *reshape) newBatch() *batch { return &batch{to: make([]*insertion, len(r.outputs))} }

// add copies a document into a batch.
func (r *reshape) add(b *batch, output int, doc bson.Raw) error {
	if b.to[output] == nil {
		in, err := r.newInsertion(r.outputs[output], copyBytes)
		if err != nil {
			return err
		}
		b.to[output] = in
	}
	b.to[output].add(doc)
	b.n++
	b.bytes += int64(len(doc))
	return nil
}

func (b *batch) full() bool { return b.n >= copyDocs || b.bytes >= copyBytes }

// write inserts a batch into the outputs, into all at the same time.
func (r *reshape) write(ctx context.Context, b *batch) error {
	errs := make([]error, len(b.to))
	var wg sync.WaitGroup
	for i, in := range b.to {
		if in != nil {
			wg.Go(func() { errs[i] = r.send(ctx, in) })
		}
	}
	wg.Wait()
	for _, err := range errs {
		var dup duplicateError
		if err != nil && !errors.As(err, &dup) {
			return err
		}
		if err := r.doubt(ctx, dup.ids); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.docs += int64(b.n)
	r.bytes += b.bytes
	r.mu.Unlock()
	return nil
}

// insert writes documents to an output, byte for byte. Equal entries of unique indexes are a duplicateError: they are the trace of a change that the stream
// still has to bring, or one _id in two inputs.
func (r *reshape) insert(ctx context.Context, out int, docs []bson.Raw) error {
	var dup error
	for len(docs) > 0 {
		in, err := r.newInsertion(r.outputs[out], 0)
		if err != nil {
			return err
		}
		for len(docs) > 0 && in.n < copyDocs && len(in.buf.B) < copyBytes {
			in.add(docs[0])
			docs = docs[1:]
		}
		switch err := r.send(ctx, in); {
		case isDuplicate(err):
			dup = err
		case err != nil:
			return err
		}
	}
	return dup
}

// duplicateError is a write to an output that met equal entries of unique indexes; ids are those that met an equal _id.
type duplicateError struct {
	error
	ids []bson.RawValue
}

func isDuplicate(err error) bool {
	var dup duplicateError
	return errors.As(err, &dup)
}
