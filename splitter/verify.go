package splitter

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// verifyBatch is how many documents are read again at once.
const verifyBatch = 1000

// maxRestless bounds the documents that are left to be compared behind closed gates.
const maxRestless = 1000

// difference is a document that is not the same in inputs and outputs, as the inputs had it; nil when they had none.
type difference struct {
	id    bson.RawValue
	input bson.Raw
}

// verify compares inputs and outputs byte for byte. What differs may have changed meanwhile: it is read again after the streams have
// passed, twice, and ends the attempt if it still differs. A document that has changed again between two readings, as one that all requests
// count in does at each, says nothing yet: it is left to be compared when the gates are closed.
func (r *reshape) verify(ctx context.Context) error {
	var ids []bson.RawValue
	if err := r.meanwhile(ctx, func(ctx context.Context) (err error) {
		ids, err = r.compare(ctx)
		return err
	}); err != nil {
		return err
	}
	var before []difference
	for again := 0; len(ids) > 0; again++ {
		if _, _, err := r.pass(ctx); err != nil {
			return err
		}
		differ, err := r.differing(ctx, ids)
		if err != nil {
			return err
		}
		if again == 1 {
			return r.judge(before, differ)
		}
		before, ids = differ, nil
		for _, d := range differ {
			ids = append(ids, d.id)
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

// differing returns those of the ids whose document is not the same, or not in the same place, in the inputs and in the outputs.
func (r *reshape) differing(ctx context.Context, ids []bson.RawValue) ([]difference, error) {
	var all []difference
	for some := range slices.Chunk(ids, r.atOnce(verifyBatch)) {
		differ, err := r.differingOf(ctx, some)
		if err != nil {
			return nil, err
		}
		all = append(all, differ...)
	}
	return all, nil
}

func (r *reshape) differingOf(ctx context.Context, ids []bson.RawValue) ([]difference, error) {
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
			if r.place(d) != i || seen[k] || want[k] == nil || !sameDocument(d, want[k]) {
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
