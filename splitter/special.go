package splitter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
)

// special reports whether a collection's documents have more than their ids to tell them apart: the order of a capped collection; or less: a time-series collection has no
// unique ids and no change stream. Such a one is moved while writes wait.
func (i *collectionInfo) special() bool {
	return field(i.options, "capped") == true || field(i.options, "timeseries") != nil
}

// remedy says what helps where a copy takes longer than writes may be held.
func (r *reshape) remedy() string {
	if r.info.special() {
		return "capped and time-series collections are moved while writes wait: raise the limit"
	}
	return "make the backend a replica set of one, or raise the limit"
}

// lastMarkers, behind closed gates, are the times of a marker on each backend that has a change stream. Nothing may have come before it since writes were held.
func (r *reshape) lastMarkers(ctx context.Context) (map[string]bson.Timestamp, error) {
	times, changed, err := r.pass(ctx)
	if err == nil && changed > 0 {
		err = retryable{errors.New("the collection was written to while its writes were held")} // by a transaction that had only read until then
	}
	return times, err
}

// compareClosed compares inputs and outputs that nobody writes to.
func (r *reshape) compareClosed(ctx context.Context) error {
	switch {
	case field(r.info.options, "timeseries") != nil:
		return r.sameDigest(ctx, addUnordered)
	case r.info.special():
		return r.sameDigest(ctx, addInOrder)
	}
	differ, err := r.compare(ctx)
	if err == nil && len(differ) > 0 {
		err = errors.New("inputs and outputs differ, first at _id " + differ[0].String())
	}
	return err
}

// addInOrder adds a document to a digest that tells orders apart: a capped collection's.
func addInOrder(sum uint64, doc bson.Raw) uint64 {
	return sum*0x100000001b3 + xxhash.Sum64(idFirst(doc))
}

// addUnordered adds a document to a digest that does not: buckets give documents, and their fields, in orders of their own.
func addUnordered(sum uint64, doc bson.Raw) uint64 {
	elems, _ := doc.Elements()
	slices.SortFunc(elems, func(a, b bson.RawElement) int { return bytes.Compare(a, b) })
	var d xxhash.Digest
	d.Reset()
	for _, e := range elems {
		_, _ = d.Write(e) // never fails
	}
	return sum + d.Sum64()
}

// sameDigest compares the one input with the one output.
func (r *reshape) sameDigest(ctx context.Context, add func(uint64, bson.Raw) uint64) error {
	in, n, err := r.digest(ctx, r.inputs[0].Home, add)
	if err != nil {
		return err
	}
	out, copied, err := r.digest(ctx, r.outputs[0].Home, add)
	if err == nil && (in != out || n != copied) {
		err = retryable{fmt.Errorf("the copy of %s is not the same: it has %d documents for %d", r.coll.NS, copied, n)}
	}
	return err
}

// digest reads a collection in natural order.
func (r *reshape) digest(ctx context.Context, h partition.Home, add func(uint64, bson.Raw) uint64) (sum uint64, n int64, err error) {
	c, err := r.s.scan(ctx, h, copyDocs, nil)
	if err != nil {
		return 0, 0, retryable{err}
	}
	defer c.close(ctx)
	for ; c.next(ctx); n++ {
		sum = add(sum, c.doc)
	}
	if c.err != nil {
		return 0, 0, retryable{c.err}
	}
	return sum, n, nil
}
