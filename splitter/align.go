package splitter

import (
	"context"
	"errors"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// align brings DDL that came to the inputs since the outputs were made to the outputs: it lands on both. What comes after that, until the gates are closed, is
// found there and makes the attempt begin anew.
func (r *reshape) align(ctx context.Context) error {
	now, err := r.s.inspectHome(ctx, r.inputs[0].Home)
	if err != nil {
		return retryable{err}
	}
	if !r.info.differs(now) {
		return nil
	}
	for _, o := range r.outputs {
		if err := r.s.alignHome(ctx, o.Home, r.info, now); err != nil {
			return retryable{err}
		}
	}
	r.info = now
	return nil
}

// alignHome changes indexes and options of a collection that was made like old to those of now.
func (s *Splitter) alignHome(ctx context.Context, h partition.Home, old, now collectionInfo) error {
	had, want := byName(old.indexes), byName(now.indexes)
	for name, ix := range had {
		if !reflect.DeepEqual(want[name], ix) {
			drop := bson.D{{Key: "dropIndexes", Value: h.Physical}, {Key: "index", Value: name}}
			if err := s.changeHome(ctx, h, drop, wire.IndexNotFound); err != nil {
				return err
			}
		}
	}
	var fresh []bson.D
	for name, ix := range want {
		if !reflect.DeepEqual(had[name], ix) {
			fresh = append(fresh, ix)
		}
	}
	if err := s.createIndexes(ctx, h, fresh); err != nil {
		return err
	}
	if reflect.DeepEqual(old.options, now.options) {
		return nil
	}
	mod := bson.D{{Key: "collMod", Value: h.Physical}}
	for _, o := range now.options {
		switch o.Key {
		case "validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages", "cappedSize", "cappedMax":
			mod = append(mod, o)
		default:
			if !reflect.DeepEqual(field(old.options, o.Key), o.Value) {
				return errors.New("the option " + o.Key + " of the collection changed during the reshape")
			}
		}
	}
	for _, o := range old.options {
		switch {
		case field(now.options, o.Key) != nil:
		case o.Key == "validator":
			mod = append(mod, bson.E{Key: "validator", Value: bson.D{}})
		default:
			return errors.New("the option " + o.Key + " of the collection was taken away during the reshape")
		}
	}
	if len(mod) == 1 {
		return nil
	}
	return s.changeHome(ctx, h, mod, 0)
}
