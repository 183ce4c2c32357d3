package router

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

// ShareDefaults gives a backend that joins the fleet the default read and write concern that somebody has set on the others, as from has them: a request that names
// none must mean the same everywhere. What was never set is left alone, and so is a standalone, which takes none.
func ShareDefaults(ctx context.Context, from, to *backend.Backend) error {
	if from == nil || from == to || to.Kind() == backend.KindStandalone {
		return nil
	}
	reply, err := from.Run(ctx, "admin", bson.D{{Key: "getDefaultRWConcern", Value: 1}})
	if unknown := (*wire.Error)(nil); errors.As(err, &unknown) && unknown.Code == wire.CommandNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	cmd := bson.D{{Key: "setDefaultRWConcern", Value: 1}}
	for _, name := range []string{"defaultReadConcern", "defaultWriteConcern"} {
		concern, err := reply.LookupErr(name)
		source, _ := reply.Lookup(name + "Source").StringValueOK()
		if err != nil || source == "implicit" { // before 5.0 there is no source, and no concern that nobody set
			continue
		}
		cmd = append(cmd, bson.E{Key: name, Value: withoutProvenance(concern)})
	}
	if len(cmd) == 1 {
		return nil
	}
	if _, err := to.Run(ctx, "admin", append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})); err != nil {
		return wire.Errorf(wire.OperationFailed, "backend '%s' does not take the default concerns of the others: %v", to.ID(), err)
	}
	return nil
}

// withoutProvenance is a concern as a client may give it.
func withoutProvenance(v bson.RawValue) any {
	doc, ok := v.DocumentOK()
	if !ok {
		return v
	}
	elems, _ := doc.Elements()
	d := bson.D{}
	for _, e := range elems {
		if e.Key() != "provenance" {
			d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	return d
}
