package splitter

import (
	"bytes"
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/partition"
)

const verifyBatch = 1000

// maxRestless bounds the documents that are left to be compared behind closed gates.
const maxRestless = 1000

// difference is a document that is not the same in inputs and outputs, as the inputs had it; nil when they had none.
type difference struct {
	id    bson.RawValue
	input bson.Raw
}

// verify compares inputs and outputs byte for byte, in both directions. What differs may have changed meanwhile: it is read again after the streams have
// passed, twice, and ends the attempt if it still differs. A document that has changed again between two readings, as one that all requests
// count in does at each, says nothing yet: it is left to be compared when the gates are closed.
func (r *reshape) verify(ctx context.Context) error {
	differ, err := r.compare(ctx)
	if err != nil {
		return err
	}
	for again := 0; len(differ) > 0; again++ {
		before := differ
		if _, _, err := r.pass(ctx); err != nil {
			return err
		}
		ids := make([]bson.RawValue, len(before))
		for i, d := range before {
			ids[i] = d.id
		}
		if differ, err = r.differing(ctx, ids); err != nil {
			return err
		}
		if again == 1 {
			return r.judge(before, differ)
		}
	}
	return nil
}

// judge sorts what still differs into what stands, an error, and what does not rest.
func (r *reshape) judge(before, differ []difference) error {
	was := make(map[string]bson.Raw, len(before))
	for _, d := range before {
		was[valueKey(d.id)] = d.input
	}
	for _, d := range differ {
		if bytes.Equal(was[valueKey(d.id)], d.input) {
			return r.differs(d.id, len(differ))
		}
		r.restless = append(r.restless, d.id)
	}
	if len(r.restless) > maxRestless {
		return retryable{errors.New("too many documents change faster than they can be compared")}
	}
	return nil
}

// verifyRestless compares, behind closed gates and after the last marker, what did not rest before.
func (r *reshape) verifyRestless(ctx context.Context) error {
	if len(r.restless) == 0 {
		return nil
	}
	differ, err := r.differing(ctx, r.restless)
	if err == nil && len(differ) > 0 {
		err = r.differs(differ[0].id, len(differ))
	}
	return err
}

// differs logs a document that is not the same in inputs and outputs and returns the error that ends the attempt.
func (r *reshape) differs(id bson.RawValue, n int) error {
	r.s.log.Error().Str("ns", r.coll.NS).Str("reshape", r.rec.ID.Hex()).Stringer("id", id).Int("documents", n).Msg("inputs and outputs of a reshape differ")
	return retryable{errors.New("inputs and outputs differ, first at _id " + id.String())}
}

// compare scans all and returns what differs, each document once.
func (r *reshape) compare(ctx context.Context) ([]difference, error) {
	var differ []difference
	seen := map[string]bool{}
	scan := func(h partition.Home) error {
		return r.scanIDs(ctx, h, func(ids []bson.RawValue) error {
			found, err := r.differing(ctx, ids)
			for _, d := range found {
				if k := valueKey(d.id); !seen[k] {
					seen[k] = true
					differ = append(differ, d)
				}
			}
			return err
		})
	}
	for _, p := range r.inputs {
		if err := scan(p.Home); err != nil {
			return nil, err
		}
	}
	for _, o := range r.outputs {
		if err := scan(o.Home); err != nil {
			return nil, err
		}
	}
	return differ, nil
}

// scanIDs calls f with the ids of a collection, batch by batch.
func (r *reshape) scanIDs(ctx context.Context, h partition.Home, f func([]bson.RawValue) error) error {
	c, err := r.s.collection(h)
	if err != nil {
		return err
	}
	cur, err := c.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(int32(r.atOnce(verifyBatch))).SetNoCursorTimeout(true))
	if err != nil {
		return retryable{err}
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var ids []bson.RawValue
	for cur.Next(ctx) {
		id := cur.Current.Lookup("_id")
		ids = append(ids, bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)})
		if len(ids) >= r.atOnce(verifyBatch) {
			if err := f(ids); err != nil {
				return err
			}
			ids = nil
		}
	}
	if err := cur.Err(); err != nil {
		return retryable{err}
	}
	if len(ids) == 0 {
		return nil
	}
	return f(ids)
}

// differing returns those of the ids whose document is not the same, or not in the same place, in the inputs and in the outputs.
func (r *reshape) differing(ctx context.Context, ids []bson.RawValue) ([]difference, error) {
	want := map[string]bson.Raw{}
	for _, p := range r.inputs {
		docs, err := r.readAgain(ctx, p.Home, ids)
		if err != nil {
			return nil, retryable{err}
		}
		for _, d := range docs {
			want[idKey(d)] = d
		}
	}
	seen := map[string]bool{}
	bad := map[string]bool{}
	for i, o := range r.outputs {
		docs, err := r.readAgain(ctx, o.Home, ids)
		if err != nil {
			return nil, retryable{err}
		}
		for _, d := range docs {
			k := idKey(d)
			at, err := r.place(d)
			if err != nil || at != i || seen[k] || !bytes.Equal(d, want[k]) {
				bad[k] = true
			}
			seen[k] = true
		}
	}
	for k := range want {
		if !seen[k] {
			bad[k] = true
		}
	}
	var out []difference
	for _, id := range ids {
		if k := valueKey(id); bad[k] {
			out = append(out, difference{id: id, input: want[k]})
		}
	}
	return out, nil
}

func idKey(doc bson.Raw) string { return valueKey(doc.Lookup("_id")) }

// valueKey is a value as a key of a map.
func valueKey(v bson.RawValue) string { return string(append([]byte{byte(v.Type)}, v.Value...)) }
