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

// verify compares inputs and outputs byte for byte, in both directions. What differs may have changed meanwhile: it is read again after the streams have
// passed, twice, and ends the attempt if it still differs.
func (r *reshape) verify(ctx context.Context) error {
	differ, err := r.compare(ctx)
	if err != nil {
		return err
	}
	for again := 0; len(differ) > 0; again++ {
		if again == 2 {
			r.s.log.Error().Str("ns", r.coll.NS).Str("reshape", r.rec.ID.Hex()).Stringer("id", differ[0]).Int("documents", len(differ)).Msg("inputs and outputs of a reshape differ")
			return retryable{errors.New("inputs and outputs differ, first at _id " + differ[0].String())}
		}
		if _, _, err := r.pass(ctx); err != nil {
			return err
		}
		if differ, err = r.differing(ctx, differ); err != nil {
			return err
		}
	}
	return nil
}

// compare scans all and returns the ids that differ.
func (r *reshape) compare(ctx context.Context) ([]bson.RawValue, error) {
	var differ []bson.RawValue
	scan := func(h partition.Home) error {
		return r.scanIDs(ctx, h, func(ids []bson.RawValue) error {
			d, err := r.differing(ctx, ids)
			differ = append(differ, d...)
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
	cur, err := c.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(verifyBatch).SetNoCursorTimeout(true))
	if err != nil {
		return retryable{err}
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var ids []bson.RawValue
	for cur.Next(ctx) {
		id := cur.Current.Lookup("_id")
		ids = append(ids, bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)})
		if len(ids) == verifyBatch {
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

// differing returns those ids whose document is not the same, or not in the same place, in the inputs and in the outputs.
func (r *reshape) differing(ctx context.Context, ids []bson.RawValue) ([]bson.RawValue, error) {
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
	var out []bson.RawValue
	for _, id := range ids {
		if bad[string(append([]byte{byte(id.Type)}, id.Value...))] {
			out = append(out, id)
		}
	}
	return out, nil
}

func idKey(doc bson.Raw) string {
	id := doc.Lookup("_id")
	return string(append([]byte{byte(id.Type)}, id.Value...))
}
