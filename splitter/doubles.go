package splitter

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

const (
	// maxDoubles bounds the _ids that the copy of a merge has met twice.
	maxDoubles = 1000
	// doubleLooks is how often an _id must be found in two inputs, with the same documents, to be a real double.
	doubleLooks = 3
	// doubleWait is the first pause between two looks.
	doubleWait = 100 * time.Millisecond
)

// The inputs of a merge may hold an _id twice, which MongoDB keeps unique per collection only. But an _id may also be met twice because its document gets another
// key meanwhile, which deletes it in one input and inserts it into another. So what is met twice is read again after the streams have passed, and only
// what stays is refused.

// doubt keeps ids that the copy met twice to be read again: when the streams have passed, or at once when there are very many.
func (r *reshape) doubt(ctx context.Context, ids []bson.RawValue) error {
	if len(ids) == 0 {
		return nil
	}
	r.doubting.Lock() // several batches are written at a time
	defer r.doubting.Unlock()
	for _, id := range ids {
		r.pending = append(r.pending, bson.RawValue{Type: id.Type, Value: append([]byte(nil), id.Value...)})
	}
	if len(r.pending) <= maxDoubles {
		return nil
	}
	if err := r.applyIDs(ctx, nil); err != nil {
		return err
	}
	if len(r.doubles) > maxDoubles/2 {
		for _, d := range r.doubles {
			return r.twice(d.id)
		}
	}
	return nil
}

// settleDoubles ends a merge, naming the _id, if two inputs hold one for good.
func (r *reshape) settleDoubles(ctx context.Context) error {
	if len(r.inputs) < 2 || len(r.pending) == 0 {
		return nil
	}
	if err := r.applyIDs(ctx, nil); err != nil {
		return err
	}
	began, looks := time.Now(), map[string]int{}
	for wait := doubleWait; len(r.doubles) > 0; wait *= 2 {
		before := r.doubles
		if time.Since(began) > followLimit {
			return retryable{errors.New("documents with the same _id are in two of the partitions again and again")}
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		if _, _, err := r.pass(ctx); err != nil {
			return err
		}
		if err := r.applyIDs(ctx, nil); err != nil {
			return err
		}
		for k, d := range r.doubles {
			if before[k].docs != d.docs {
				looks[k] = 0
			} else if looks[k]++; looks[k] >= doubleLooks {
				return r.twice(d.id)
			}
		}
	}
	return nil
}

// double is an _id that was found in two inputs, with both documents' bytes.
type double struct {
	id   bson.RawValue
	docs string
}

// twice says that two partitions hold one _id: they cannot become one.
func (r *reshape) twice(id bson.RawValue) error {
	return wire.Errorf(wire.DuplicateKey, "the partitions of %s cannot be merged: two of their documents have the _id %s", r.coll.NS, id)
}
